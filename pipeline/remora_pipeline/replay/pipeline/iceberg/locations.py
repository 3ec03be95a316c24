"""Where a table's data files lie: as pyiceberg lays them, in folders that every file system can have."""

from __future__ import annotations

from hashlib import sha256

from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadata

_LONGEST = 200
"""Bytes of a folder's name, of which file systems have 255."""


class ShortLocations(SimpleLocationProvider):
    """Folders by partition. The name of one that would be too long, for its bucket, is cut and ends in a hash of it."""

    def new_data_location(self, data_file_name: str, partition_key: PartitionKey | None = None) -> str:
        """The location of a new file."""
        if partition_key is None:
            return super().new_data_location(data_file_name)
        folders = "/".join(map(_short, partition_key.to_path().split("/")))  # a '/' of a value is escaped in it
        return f"{self.data_path}/{folders}/{data_file_name}"


_OURS = f"{ShortLocations.__module__}.{ShortLocations.__qualname__}"
_CHOSEN = (TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL, TableProperties.OBJECT_STORE_ENABLED)
"""Properties by which somebody says where a table's files lie."""


def with_short_folders(metadata: TableMetadata) -> TableMetadata:
    """A table's metadata for who writes its files. The property stays out of the table: other programs may write it."""
    if any(name in metadata.properties for name in _CHOSEN):
        return metadata
    properties = {**metadata.properties, TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL: _OURS}
    return metadata.model_copy(update={"properties": properties})


def _short(folder: str) -> str:
    if len(folder) <= _LONGEST:  # it is ASCII
        return folder
    return f"{folder[: _LONGEST - 17]}~{sha256(folder.encode()).hexdigest()[:16]}"
