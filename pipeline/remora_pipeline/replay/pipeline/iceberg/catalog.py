"""The catalog that tables are in, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from requests.exceptions import ConnectionError as NotConnected
from requests.exceptions import InvalidURL, RequestException, Timeout
from sqlalchemy import inspect, make_url
from sqlalchemy.exc import ArgumentError, OperationalError, ProgrammingError, SQLAlchemyError

from remora_pipeline.replay.errors import ReplayError, ReplayRefused

FORMS = "https://HOST/... (REST), jdbc:postgresql://HOST/DATABASE or jdbc:sqlite:FILE"
"""The catalogs that there are."""

_SQLITE = "jdbc:sqlite:"

_MAKES_NOTHING = {"init_catalog_tables": "false"}
"""Of a database: pyiceberg makes its own tables in one that has none."""

_MAGIC = b"SQLite format 3\0"
"""How each database of SQLite begins that is not empty: https://www.sqlite.org/fileformat2.html."""

_FORM = "remora.table"
"""The table's property that says which table of remora's it is."""

_GROUPS = ("auth", "ssl")
"""Settings that are groups of others, which a file of one setting a line cannot say."""

_TOLD = (
    RequestException, RESTError, SQLAlchemyError, NotInstalledError, NotImplementedError, NoSuchNamespaceError,
    CommitFailedException, OSError, ValueError, ImportError,
)  # fmt: skip
"""What catalogs and stores of files raise, as far as it is not our fault."""

_NO_URL = "the address is no URL"
_PACKAGES = {"psycopg2": "psycopg2-binary"}
"""What to install for a module that is called otherwise."""

_STRANGE = re.compile(r"RESTError ([0-9]+): (?:Received unexpected|Could not decode)", re.IGNORECASE)
"""What pyiceberg says of an answer that is none of a REST catalog's, with its status."""

_NO_WAREHOUSE = "No default path is set"


@dataclass(frozen=True)
class LakeAddress:
    """A namespace of a catalog. `properties` are the catalog's and the object store's, by pyiceberg's names."""

    uri: str
    namespace: str
    warehouse: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def connected(self, *, makes: bool = True) -> Catalog:
        """The catalog. Raises ReplayRefused for an address of no known form, for a file that is no database of SQLite,
        and for one that is not there unless this `makes` it; ReplayError for a package that the catalog needs and that
        is not installed, and for a server that is no catalog. Without `makes` an empty database stays empty.
        """
        known = dict(self.properties) | ({"warehouse": self.warehouse} if self.warehouse else {})
        name = known.pop("catalog-name", "remora")
        with told_as(self.uri):
            address = _address(self.uri)
            for group in _GROUPS:
                if group in known:
                    raise ReplayRefused(f"{group}: is a group of settings, which a file of single ones cannot have")
            if self.uri.startswith(_SQLITE):
                _check_file(self.uri, makes=makes)
            if {"#", "?"} & set(known.get("warehouse", "")):  # what stands behind these is in the name of no file
                raise ReplayRefused(f"{known['warehouse']}: a warehouse is named without '#' and '?'")
            try:
                return load_catalog(name, **(known | address | ({} if makes else _MAKES_NOTHING)))
            except (AttributeError, TypeError) as exc:
                if address["type"] != "rest":
                    raise
                # pyiceberg takes what the server says of its settings for tables, whatever it is.
                raise ReplayError(f"{without_credentials(self.uri)}: {_not_of_a_catalog(_OTHER_JSON)}") from exc

    def is_there(self) -> bool:
        """Whether there may be a catalog at the address: false before the first landing into a file of SQLite."""
        return not self.uri.startswith(_SQLITE) or Path(self.uri.removeprefix(_SQLITE)).exists()

    def named(self, table: str) -> str:
        """A table of the namespace, as catalogs name it."""
        return f"{self.namespace}.{table}"


def _address(uri: str) -> dict[str, str]:
    scheme, _, rest = uri.partition(":")
    if scheme in ("http", "https"):
        return {"type": "rest", "uri": uri}
    if uri.startswith("jdbc:postgresql://"):
        found = f"postgresql+{rest.replace('postgresql:', 'psycopg2:', 1)}"
        try:
            make_url(found)
        except (ArgumentError, ValueError) as exc:  # whose texts may have a part of a password
            raise ReplayRefused(f"{without_credentials(uri)}: {_NO_URL}") from exc
        return {"type": "sql", "uri": found}
    if uri.startswith(_SQLITE):
        return {"type": "sql", "uri": f"sqlite:///{uri.removeprefix(_SQLITE)}"}
    if scheme in ("file", "hdfs", "s3", "s3a") or uri.startswith("/"):
        why = f"a catalog of folders (Hadoop's) cannot commit safely; it must be {FORMS}"
        raise ReplayRefused(f"{without_credentials(uri)}: {why}")
    raise ReplayRefused(f"{without_credentials(uri)}: is no catalog; it must be {FORMS}")


def _check_file(uri: str, *, makes: bool) -> None:
    """SQLite takes a short file of somebody else's for an empty database, and overwrites it."""
    path = uri.removeprefix(_SQLITE)
    file = Path(path)
    if path in ("", ":memory:") or "?" in path:
        raise ReplayRefused(f"{uri}: names no file, whose name is without a question mark")
    if file.is_dir():
        raise ReplayRefused(f"{uri}: is a folder, and must be a file")
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
    except _TOLD as exc:
        raise ReplayError(f"{without_credentials(what)}: {_why(what, exc)}") from exc


def _why(what: str, exc: Exception) -> str:
    """The cause, in one line."""
    if isinstance(exc, NotConnected | Timeout):
        return f"the catalog cannot be reached: {_innermost(exc)}"
    if isinstance(exc, InvalidURL):  # whose text may have a part of a password
        return _NO_URL
    if isinstance(exc, ImportError | NotInstalledError):
        return _lacking(exc)
    if isinstance(exc, ValidationError) and what.startswith(_HTTP):
        is_json = exc.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
        return _not_of_a_catalog(_OTHER_JSON if is_json else "it is no JSON")
    cause = getattr(exc, "orig", None) or exc  # SQLAlchemy's own texts have the statement with its values
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    said = lines[0][:300] if lines else type(exc).__name__
    if isinstance(exc, RESTError) and (strange := _STRANGE.match(said)):
        return _not_of_a_catalog(f"it has status {strange[1]}")
    if said.startswith(_NO_WAREHOUSE):
        return "the catalog does not know where tables lie: say it with --warehouse"
    return said


_HTTP = ("http:", "https:")
_OTHER_JSON = "it is JSON of another form"


def _not_of_a_catalog(why: str) -> str:
    return f"the answer is not a REST catalog's: {why}"


def _lacking(exc: Exception) -> str:
    """Which package is missing, and how it is installed."""
    cause = exc.__cause__ if isinstance(exc.__cause__, ImportError) else exc
    package = (getattr(cause, "name", None) or "").partition(".")[0]
    if package and isinstance(cause, ModuleNotFoundError):
        return f"{package} is missing; install it with: pip install {_PACKAGES.get(package, package)}"
    return (str(cause).splitlines() or [type(cause).__name__])[0]


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
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (OperationalError, ProgrammingError):
            if not isinstance(catalog, SqlCatalog) or inspect(catalog.engine).has_table(IcebergTables.__tablename__):
                raise
            return None  # a database in which no catalog is
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
