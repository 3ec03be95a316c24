"""`remora pipeline maintain`: tables of a catalog kept in shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from remora.cli.options import gathered_into, json_option, seconds
from remora.cli.output import print_json, print_table
from remora.cli.steps import told
from remora_pipeline.cli.lake import catalog_options

if TYPE_CHECKING:
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress


@dataclass(frozen=True, slots=True)
class _MaintainOptions:
    """The options of `remora pipeline maintain`."""

    target_mib: int
    most: int
    keep_s: float
    orphans_s: float
    as_json: bool


@click.command("maintain")
@catalog_options
@click.option(
    "--target-size",
    "target_mib",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    metavar="MIB",
    help="How large files shall become; those below half of it are put together.",
)
@click.option(
    "--most", type=click.IntRange(2), default=10_000, show_default=True, help="Most files of a table in one run."
)
@click.option(
    "--keep",
    "keep_s",
    metavar="DURATION",
    default="7d",
    show_default=True,
    callback=seconds,
    help="How far back snapshots show a table as it was.",
)
@click.option(
    "--orphans",
    "orphans_s",
    metavar="DURATION",
    default="3d",
    show_default=True,
    callback=seconds,
    help="How old a file is that no snapshot names when it is removed; longer than any batch takes.",
)
@json_option
@gathered_into(_MaintainOptions)
def maintain(asked: _MaintainOptions, lake: LakeAddress | None) -> None:
    """Put small files of a catalog's tables together, expire old snapshots, and remove files of no table.

    A run is bounded by --most; what is left is done by the next one, and so is what a landing overtook. It can be
    killed at any time, and needs no Spark.

    \b
    Example:
      remora pipeline maintain --catalog https://catalog/ --keep 30d
    """
    from remora_pipeline.replay.pipeline.iceberg.upkeep import (  # its libraries take a second to load
        UpkeepPlan,
        maintain,
    )

    if lake is None:
        raise click.UsageError("Missing option '--catalog'.")
    plan = UpkeepPlan(lake, asked.target_mib << 20, asked.most, asked.keep_s, asked.orphans_s)
    with told() as tell:
        done = maintain(plan, tell)
    if asked.as_json:
        print_json([asdict(each) for each in done])
        return
    print_table(
        ["table", "small files", "became", "snapshots expired", "files removed", ""],
        [
            [
                each.table,
                f"{each.compacted:,}",
                f"{each.files:,}",
                f"{each.expired:,}",
                f"{each.removed:,}",
                "a landing went first; run it again" if each.is_overtaken else "",
            ]
            for each in done
        ],
    )
