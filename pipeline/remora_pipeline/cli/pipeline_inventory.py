"""`remora pipeline inventory`: the current objects of each bucket."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from remora.cli.options import FOLDER, NEW_FOLDER, gathered_into, json_option, master_option, memory_option
from remora.cli.output import print_json, print_line
from remora.cli.steps import told
from remora.model.words import several
from remora_pipeline.cli.lake import lake_options
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, landing_at, take
from remora_pipeline.replay.spark_stages import running_stage

if TYPE_CHECKING:
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress


@dataclass(frozen=True, slots=True)
class _InventoryOptions:
    """The options of `remora pipeline inventory`."""

    landed: Path | None
    out: Path | None
    buckets: tuple[str, ...]
    keep: int
    whole: bool
    memory: str
    is_dry: bool
    master: str | None
    as_json: bool


@click.command("inventory")
@click.argument("landed", type=FOLDER, required=False)
@click.option("--out", type=NEW_FOLDER, help="Folder of the inventory, without a catalog.")
@click.option("--bucket", "buckets", multiple=True, metavar="NAME", help="Only this bucket; can be repeated.")
@click.option(
    "--keep", type=click.IntRange(1), default=2, show_default=True, help="Snapshots to keep, the new one included."
)
@click.option("--whole", is_flag=True, help="Of a catalog's table: from all events, not from what is new.")
@lake_options
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be read, and make nothing.")
@memory_option
@master_option
@json_option
@gathered_into(_InventoryOptions)
def inventory(asked: _InventoryOptions, lake: LakeAddress | None) -> None:
    """Make a table of the objects that each bucket has by now, from the events in LANDED.

    LANDED is the folder of `remora pipeline land`; that may run meanwhile. OUT/current/objects is the table, as
    Parquet; it is replaced in one step, and a reader never sees a part. An object is there when the last event of its
    key made it and none removed it; of an object with versions the current one is there.

    With --table iceberg it is the table NAMESPACE.inventory beside the events, and only the objects are looked up that
    new events name; its snapshots show the buckets as they were.

    \b
    Examples:
      remora pipeline inventory landed --out inventory
      remora pipeline inventory --table iceberg --catalog https://lake/
    """
    if lake is not None:
        _take_in_lake(asked, lake)
        return
    if asked.landed is None or asked.out is None:
        raise click.UsageError("LANDED and --out are needed, or --table iceberg with --catalog")
    if asked.whole:
        raise click.UsageError("--whole is for a catalog's table; without one all events are read each time")
    plan = InventoryPlan(asked.landed, asked.out, asked.buckets, asked.keep, asked.memory)
    if asked.is_dry:
        commit = landing_at(asked.landed).commit()
        chosen = f" of {', '.join(asked.buckets)}" if asked.buckets else ""
        print_line(
            f"{asked.landed}: would read the events{chosen} up to batch {commit.whole}; {commit.events:,} in all"
        )
        return
    with told(far=running_stage) as tell:
        tell(f"reading {asked.landed}")
        found, is_new = take(plan, master=asked.master)
    if asked.as_json:
        print_json(msgspec.to_builtins(found) | {"new": is_new})
        return
    what = f"{several(found.objects, 'object')} by the events up to batch {found.batch}"
    print_line(f"{asked.out}: {what}" if is_new else f"{asked.out}: nothing has landed since; {what}")


def _take_in_lake(asked: _InventoryOptions, lake: LakeAddress) -> None:
    # The libraries of these take a second to load.
    from remora_pipeline.replay.pipeline.iceberg.inventory import take_in_lake
    from remora_pipeline.replay.pipeline.iceberg.lag import journal

    if asked.landed or asked.out or asked.buckets:
        raise click.UsageError("LANDED, --out and --bucket are for folders; with --catalog all is in its tables")
    if asked.is_dry:
        table, landed = journal(lake)
        if table is None or table.current_snapshot() is None:
            raise ReplayRefused(f"{lake.named('events')}: nothing has landed there")
        what = f"would read the events of {lake.named('events')} up to batch {landed.batch}; {landed.events:,} in all"
        print_line(f"{lake.named('inventory')}: {what}")
        return
    found = take_in_lake(lake, whole=asked.whole, memory=asked.memory, master=asked.master)
    if asked.as_json:
        print_json(asdict(found))
        return
    how = "nothing has landed since"
    if found.is_new:
        how = "from all events" if found.changed is None else f"{several(found.changed, 'object')} looked up"
    print_line(f"{lake.named('inventory')}: {several(found.objects, 'object')}; {how}")
