"""`remora pipeline inventory`: the current objects of each bucket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from remora.cli.options import FOLDER, NEW_FOLDER, gathered_into, json_option, master_option, memory_option
from remora.cli.output import print_json
from remora.replay.pipeline.directory import LandedDirectory
from remora.replay.pipeline.inventory import Plan, take
from remora.replay.spark_stages import running_stage
from remora.replay.steps import told


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of `remora pipeline inventory`."""

    out: Path
    buckets: tuple[str, ...]
    keep: int
    memory: str
    is_dry: bool
    master: str | None
    as_json: bool


@click.command("inventory")
@click.argument("landed", type=FOLDER)
@click.option("--out", required=True, type=NEW_FOLDER, help="Folder of the inventory.")
@click.option("--bucket", "buckets", multiple=True, metavar="NAME", help="Only this bucket; can be repeated.")
@click.option(
    "--keep", type=click.IntRange(1), default=2, show_default=True, help="Snapshots to keep, the new one included."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be read, and make nothing.")
@memory_option
@master_option
@json_option
@gathered_into(_Options)
def inventory(landed: Path, asked: _Options) -> None:
    """Make a table of the objects that each bucket has by now, from the events in LANDED.

    LANDED is the folder of `remora pipeline land`; that may run meanwhile. OUT/current/objects is the table, as
    Parquet; it is replaced in one step, and a reader never sees a part. An object is there when the last event of its
    key made it and none removed it; of an object with versions the current one is there.

    \b
    Example:
      remora pipeline inventory landed --out inventory
    """
    plan = Plan(landed, asked.out, asked.buckets, asked.keep, asked.memory)
    if asked.is_dry:
        commit = LandedDirectory(landed).commit()
        chosen = f" of {', '.join(asked.buckets)}" if asked.buckets else ""
        click.echo(f"{landed}: would read the events{chosen} up to batch {commit.whole}; {commit.events:,} in all")
        return
    with told(far=running_stage) as tell:
        tell(f"reading {landed}")
        found, is_new = take(plan, master=asked.master)
    if asked.as_json:
        print_json(msgspec.to_builtins(found) | {"new": is_new})
        return
    what = f"{found.objects:,} objects by the events up to batch {found.batch}"
    click.echo(f"{asked.out}: {what}" if is_new else f"{asked.out}: nothing has landed since; {what}")
