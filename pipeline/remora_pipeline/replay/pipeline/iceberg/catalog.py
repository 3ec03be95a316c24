"""The catalog that tables are in, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from requests.exceptions import ConnectionError as NotConnected
from requests.exceptions import InvalidURL, RequestException, Timeout
from sqlalchemy.exc import SQLAlchemyError

from remora_pipeline.replay.errors import ReplayError, ReplayRefused

FORMS = "https://HOST/... (REST), jdbc:postgresql://HOST/DATABASE or jdbc:sqlite:FILE"
"""The catalogs that there are."""

_SQLITE = "jdbc:sqlite:"

_MAGIC = b"SQLite format 3\0"
"""How each database of SQLite begins that is not empty: https://www.sqlite.org/fileformat2.html."""

_FORM = "remora.table"
"""The table's property that says which table of remora's it is."""


@dataclass(frozen=True)
class LakeAddress:
    """A namespace of a catalog. `properties` are the catalog's and the object store's, by pyiceberg's names."""

    uri: str
    namespace: str
    warehouse: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def connected(self, *, makes: bool = True) -> Catalog:
        """The catalog. Raises ReplayRefused for an address of no known form, for a file that is no database of SQLite,
        and for one that is not there unless this `makes` it.
        """
        known = dict(self.properties) | ({"warehouse": self.warehouse} if self.warehouse else {})
        name = known.pop("catalog-name", "remora")
        with told_as(self.uri):
            if self.uri.startswith(_SQLITE):
                _check_file(self.uri, makes=makes)
            return load_catalog(name, **(known | _address(self.uri)))

    def named(self, table: str) -> str:
        """A table of the namespace, as catalogs name it."""
        return f"{self.namespace}.{table}"


def _address(uri: str) -> dict[str, str]:
    scheme, _, rest = uri.partition(":")
    if scheme in ("http", "https"):
        return {"type": "rest", "uri": uri}
    if uri.startswith("jdbc:postgresql://"):
        return {"type": "sql", "uri": f"postgresql+{rest.replace('postgresql:', 'psycopg2:', 1)}"}
    if uri.startswith(_SQLITE):
        return {"type": "sql", "uri": f"sqlite:///{uri.removeprefix(_SQLITE)}"}
    if scheme in ("file", "hdfs", "s3", "s3a") or uri.startswith("/"):
        why = f"a catalog of folders (Hadoop's) cannot commit safely; it must be {FORMS}"
        raise ReplayRefused(f"{without_credentials(uri)}: {why}")
    raise ReplayRefused(f"{without_credentials(uri)}: is no catalog; it must be {FORMS}")


def _check_file(uri: str, *, makes: bool) -> None:
    """SQLite takes a short file of somebody else's for an empty database, and overwrites it."""
    file = Path(uri.removeprefix(_SQLITE))
    if not file.exists():
        if not makes:
            raise ReplayRefused(f"{uri}: there is no such file; a landing makes it")
    elif file.stat().st_size:
        with file.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise ReplayRefused(f"{uri}: the file is no database of SQLite")


@contextmanager
def told_as(what: str) -> Iterator[None]:
    """Make a ReplayError in one line of what catalogs and stores of files raise."""
    try:
        yield
    except ReplayError:
        raise
    except (RequestException, RESTError, SQLAlchemyError, OSError, ValueError, ImportError) as exc:
        cause = getattr(exc, "orig", None) or exc  # SQLAlchemy's own texts have the statement with its values
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        why = lines[0][:300] if lines else type(exc).__name__
        if isinstance(exc, NotConnected | Timeout):
            why = f"the catalog cannot be reached: {_innermost(exc)}"
        elif isinstance(exc, InvalidURL):  # whose text may have a part of a password
            why = "the address is no URL"
        raise ReplayError(f"{without_credentials(what)}: {why}") from exc


def without_credentials(uri: str) -> str:
    """An address without user, password and parameters, which may hold a password, too; a file's as it is."""
    scheme, sep, rest = uri.partition("://")
    # What stands before the last '@' goes: a badly quoted password may hold a '/'.
    return f"{scheme}{sep}{rest.partition('?')[0].rpartition('@')[2]}" if sep else uri


def _innermost(exc: BaseException) -> str:
    """What the operating system, TLS or HTTP says, around which requests and urllib3 wrap errors of their own."""
    found: BaseException | None = exc
    while found is not None:
        exc, inner = found, (getattr(found, "reason", None), *found.args, found.__cause__)
        found = next((each for each in inner if isinstance(each, BaseException)), None)
    if isinstance(exc, HTTPException) and not isinstance(exc, OSError):
        return "what answers there speaks no HTTP"
    return getattr(exc, "strerror", None) or str(exc)


def existing(catalog: Catalog, lake: LakeAddress, name: str) -> Table | None:
    """A table of remora's; None where there is none. Raises ReplayRefused for one of another form."""
    with told_as(lake.uri):
        try:
            table = catalog.load_table(lake.named(name))
        except NoSuchTableError:
            return None
    if table.properties.get(_FORM) != name:
        raise ReplayRefused(f"{lake.named(name)}: is a table of another form; choose another --namespace")
    return table


def made(
    catalog: Catalog, lake: LakeAddress, name: str, form: tuple[Schema, PartitionSpec], properties: Mapping[str, str]
) -> Table:
    """A table of remora's, made where there is none; columns that an older remora did not know are added.

    That rewrites nothing: in files from before, such a column is null.
    """
    schema, spec = form
    with told_as(lake.uri):
        if existing(catalog, lake, name) is None:
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(lake.namespace)
            with suppress(TableAlreadyExistsError):  # another process was quicker
                catalog.create_table(
                    lake.named(name), schema, partition_spec=spec, properties={**properties, _FORM: name}
                )
        table = existing(catalog, lake, name)
        assert table is not None, "a table that was made is there"
        lacking = [field.name for field in schema.fields if field.name not in table.schema().column_names]
        if lacking:
            with table.update_schema() as update:
                update.union_by_name(schema)
            table = catalog.load_table(lake.named(name))
    return table
