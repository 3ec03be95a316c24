"""The options that say in which catalog tables are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remora.cli.options import FILE
from remora_pipeline.replay.errors import ReplayRefused

if TYPE_CHECKING:
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress

_catalog = click.option(
    "--catalog",
    metavar="URI",
    help="Catalog of Iceberg tables: https://HOST/... (REST), jdbc:postgresql://HOST/DATABASE or jdbc:sqlite:FILE.",
)
_namespace = click.option(
    "--namespace",
    default="remora",
    show_default=True,
    help="The tables' namespace in the catalog; one for each topic.",
)
_warehouse = click.option(
    "--warehouse",
    metavar="URI",
    help="Where a database's tables lie: file:///... or s3a://BUCKET/...; a REST catalog may know.",
)
_config = click.option(
    "--catalog-config",
    type=FILE,
    help="Settings of the catalog and the object store, by pyiceberg's names: token=, s3.endpoint=, ...",
)
_table = click.option(
    "--table",
    type=click.Choice(["parquet", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Folders of Parquet, or tables of a catalog.",
)


def catalog_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--catalog` and what belongs to it; the command gets a LakeAddress as `lake`, or None without a catalog."""

    @_catalog
    @_namespace
    @_warehouse
    @_config
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        catalog: str | None,
        namespace: str,
        warehouse: str | None,
        catalog_config: Path | None,
        **kwargs: Any,
    ) -> Any:
        if not all(namespace.split(".")):
            raise click.UsageError(f"--namespace {namespace!r}: expected a name, or names that dots join")
        lake = None
        if catalog is not None:
            from remora_pipeline.replay.properties import pairs

            known = pairs(catalog_config) if catalog_config else {}
            lake = _address()(catalog, namespace, warehouse, known)
        return function(*args, lake=lake, **kwargs)

    return wrapper


def _address() -> type[LakeAddress]:
    """The class. Raises ReplayRefused where pyiceberg cannot read its own settings, which it does as it is loaded."""
    from pyiceberg.utils.config import PYICEBERG_YML, Config  # these libraries take a second to load
    from strictyaml import YAMLError

    try:
        Config()
    except (ValueError, TypeError, AttributeError, YAMLError) as exc:
        # An error of YAML's shows the line, which may have a password.
        why = f"cannot be read: {exc}" if isinstance(exc, UnicodeDecodeError) else "is no YAML as pyiceberg writes it"
        raise ReplayRefused(f"{PYICEBERG_YML} in PYICEBERG_HOME, the home or this directory: {why}") from exc
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress

    return LakeAddress


def lake_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--table` beside the options of the catalog, for commands that write folders, too."""

    @_table
    @catalog_options
    @functools.wraps(function)
    def wrapper(*args: Any, table: str, lake: object | None, **kwargs: Any) -> Any:
        if (table == "iceberg") != (lake is not None):
            raise click.UsageError("--table iceberg and --catalog belong together")
        return function(*args, lake=lake, **kwargs)

    return wrapper
