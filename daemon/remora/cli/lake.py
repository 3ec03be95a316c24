"""The options that say in which catalog tables are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from remora.cli.options import FILE

TABLE_KINDS = ("parquet", "iceberg")


def lake_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--table`, `--catalog` and what belongs to it; the command gets a LakeAddress as `lake`, or None."""

    @click.option(
        "--table",
        type=click.Choice(TABLE_KINDS),
        default="parquet",
        show_default=True,
        help="Folders of Parquet, or tables of a catalog.",
    )
    @click.option(
        "--catalog",
        metavar="URI",
        help="Catalog of Iceberg tables: https://HOST/... (REST), jdbc:postgresql://HOST/DATABASE or jdbc:sqlite:FILE.",
    )
    @click.option(
        "--namespace",
        default="remora",
        show_default=True,
        help="The tables' namespace in the catalog; one for each topic.",
    )
    @click.option(
        "--warehouse",
        metavar="URI",
        help="Where the catalog's tables lie: file:///... or s3a://BUCKET/...; a REST catalog may know.",
    )
    @click.option(
        "--catalog-config",
        type=FILE,
        help="Settings of the catalog and the object store, by pyiceberg's names: token=, s3.endpoint=, ...",
    )
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        table: str,
        catalog: str | None,
        namespace: str,
        warehouse: str | None,
        catalog_config: Path | None,
        **kwargs: Any,
    ) -> Any:
        if (table == "iceberg") != (catalog is not None):
            raise click.UsageError("--table iceberg and --catalog belong together")
        lake = None
        if catalog is not None:
            from remora.replay.pipeline.iceberg.catalog import LakeAddress  # its libraries take a second to load
            from remora.replay.properties import pairs

            lake = LakeAddress(catalog, namespace, warehouse, pairs(catalog_config) if catalog_config else {})
        return function(*args, lake=lake, **kwargs)

    return wrapper
