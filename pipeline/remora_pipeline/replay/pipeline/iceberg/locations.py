"""Where a table's data files lie: as pyiceberg lays them, in folders that every file system can have."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from hashlib import sha256

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadata

_LONGEST = 200
"""Bytes of a folder's name. File systems take 255."""


class ShortLocations(SimpleLocationProvider):
    """Folders by partition. The name of one that would be too long, for its bucket, is cut and ends in a hash of it."""

    def new_data_location(self, data_file_name: str, partition_key: PartitionKey | None = None) -> str:
        """The location of a new file."""
        if partition_key is None:
            return super().new_data_location(data_file_name)
        folders = [
            each if len(each) <= _LONGEST else f"{each[: _LONGEST - 17]}~{sha256(each.encode()).hexdigest()[:16]}"
            for each in partition_key.to_path().split("/")  # ASCII; a '/' of a value is escaped in it
        ]
        return "/".join((self.data_path, *folders, data_file_name))


_OURS = f"{ShortLocations.__module__}.{ShortLocations.__qualname__}"
_CHOSEN = (TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL, TableProperties.OBJECT_STORE_ENABLED)
"""Properties by which somebody says where a table's files lie."""


def data_files(table: TableMetadata, rows: pa.Table, store: FileIO, *, is_together: bool = False) -> Iterable[DataFile]:
    """Write rows as files for a table, with `is_together` those of a partition as one file, however many they are.

    Without it pyiceberg begins another file after so many bytes in memory; compression leaves few of them. The table
    keeps its properties: other programs may write it.
    """
    properties = dict(table.properties)
    if not any(name in properties for name in _CHOSEN):
        properties[TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL] = _OURS
    if is_together:
        properties[TableProperties.WRITE_TARGET_FILE_SIZE_BYTES] = str(sys.maxsize)
    return _dataframe_to_data_files(table.model_copy(update={"properties": properties}), rows, store)
