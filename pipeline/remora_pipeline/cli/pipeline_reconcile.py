"""`remora pipeline reconcile`: what events tell of a bucket beside what is in it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from remora.cli.options import (
    FILE,
    FOLDER,
    NEW_FOLDER,
    gathered_into,
    instant,
    json_option,
    master_option,
    memory_option,
    region_option,
    seconds,
)
from remora.cli.output import print_json, print_line, print_table
from remora.cli.steps import told
from remora.cli.token_file import token_of
from remora.client import IngestClient
from remora.model.exits import Exit
from remora.model.words import several
from remora_pipeline.cli.lake import catalog_options
from remora_pipeline.replay.pipeline.emit import Emission, EmitProgress, emit
from remora_pipeline.replay.pipeline.reconcile import plan_emission
from remora_pipeline.replay.pipeline.reconcile import reconcile as run
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan, at_time
from remora_pipeline.replay.pipeline.reconciled_page import sentence
from remora_pipeline.replay.pipeline.reconciliation import Reconcile, ReconciledDirectory
from remora_pipeline.replay.run.targets.ingest import IngestAddress, check_ingest
from remora_pipeline.replay.run.targets.s3 import Gateway
from remora_pipeline.replay.spark_stages import running_stage

if TYPE_CHECKING:
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress

_DEFAULT_INGEST = "unix:/run/remora/ingest.sock"
_SHOWN_REFUSED = 20
_PATH = click.Path(exists=True, path_type=Path)


@dataclass(frozen=True, slots=True)
class _ReconcileOptions:
    """The options of `remora pipeline reconcile`."""

    inventory: Path | None
    backfill: bool
    landed: Path | None
    tenant: str
    s3: str | None
    region: str
    listing: Path | None
    manifest: Path | None
    listed_at_us: int | None
    out: Path
    grace_s: float
    topic: str | None
    ingest: str
    token_file: Path | None
    ca_file: Path | None
    rate: float
    is_dry: bool
    memory: str
    master: str | None
    as_json: bool


@click.command("reconcile")
@click.argument("bucket")
@click.option("--inventory", type=FOLDER, help="Folder of `remora pipeline inventory`: what the events say.")
@click.option("--backfill", is_flag=True, help="Instead: no events are known, and every object is missing.")
@click.option("--landed", type=FOLDER, help="The landing of the inventory.  [default: where it was]")
@click.option("--tenant", default="", help="The bucket's tenant.")
@click.option(
    "--s3",
    metavar="URL",
    help="The bucket's S3 endpoint, with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: list it there. Beside a file,"
    " only look at objects before their events are sent.",
)
@region_option
@click.option(
    "--listing", type=_PATH, help="A listing: .parquet, .csv with a head, .json lines; key, size, last_modified, ..."
)
@click.option("--s3-inventory", "manifest", type=FILE, help="manifest.json of an S3 Inventory, with its files.")
@click.option(
    "--listed-at",
    "listed_at_us",
    metavar="TIME",
    callback=instant,
    help="When --listing was begun.  [default: its age]",
)
@click.option("--out", required=True, type=NEW_FOLDER, help="Folder of what is found; a new one each time.")
@click.option(
    "--grace",
    "grace_s",
    metavar="DURATION",
    default="5m",
    show_default=True,
    callback=seconds,
    help="How long an event may take to land. What changed later than this before the listing is left out.",
)
@click.option("--emit", "topic", metavar="TOPIC", help="Send an event for each finding to this topic of remora's.")
@click.option("--ingest", metavar="ADDRESS", default=_DEFAULT_INGEST, show_default=True, help="Where --emit sends.")
@click.option("--token-file", type=FILE, help="A file with the ingest API's token.")
@click.option("--ca-file", type=FILE, help="Whose signature the ingest API's certificate must have.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=500.0,
    show_default=True,
    help="Most events a second.",
)
@catalog_options
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be read, and read and send nothing.")
@memory_option
@master_option
@json_option
@gathered_into(_ReconcileOptions)
def reconcile(bucket: str, asked: _ReconcileOptions, lake: LakeAddress | None) -> None:
    """Compare what events say of BUCKET with what is in it, and send the events that are missing.

    It finds what was lost before any queue held it. Missing: an object without an event. Extra: an object that is gone.
    Differing: another size, ETag or version. OUT/findings is a table of them, OUT/reconcile.json the summary,
    OUT/index.html a page. Writers may go on meanwhile, and `remora pipeline land` should: the time
    distinguishes a change from a difference.

    With --emit each finding becomes an event, ObjectSynthetic:Created:Reconcile or ObjectSynthetic:Removed:Reconcile,
    where a second look at the object finds it unchanged. Killed, it goes on when it is run again; without --emit a
    folder that has a result is refused. An event that the ingest API will never take, and an object that S3 does not
    show, are named, counted and passed over. Consumers that go by the order of arrival, not by
    `sequencer`, must not be sent such events while writers run.

    \b
    Examples:
      remora pipeline reconcile photos --inventory inventory --s3 http://gateway:8000 --out out
      remora pipeline reconcile photos --inventory inventory --s3-inventory manifest.json --out out
      remora pipeline reconcile photos --catalog https://catalog/ --s3 http://gateway:8000 --out out
      remora pipeline reconcile photos --backfill --s3 http://gateway:8000 --out out --emit events

    Exit codes: 0 they agree, or all events were sent; 3 they differ, or some events were refused for good; 1 failed,
    2 wrong usage.
    """
    plan = replace(_plan(bucket, asked, is_in_lake=lake is not None), lake=lake)
    if asked.is_dry:
        where = lake.named("inventory") if lake is not None else plan.inventory
        events = "no events (--backfill)" if where is None else f"the inventory in {where}"
        listing = plan.listing or plan.manifest or asked.s3
        print_line(f"{bucket}: would compare {events} with the listing of {listing}, into {plan.out}")
        return
    server = IngestAddress(asked.ingest, token_of(asked.token_file), str(asked.ca_file) if asked.ca_file else None)
    before = ReconciledDirectory(plan.out).made()
    with told(far=running_stage) as tell:
        if asked.topic:
            _ask_before_sending(plan, server, asked.topic)
        found = run(plan, master=asked.master, tell=tell)
        sent = _sent(plan, found, asked, server, tell) if asked.topic else None
    if before is not None and not asked.as_json:
        print_line(f"{plan.out}: goes on with what was found beside the listing of {at_time(before.ended_us)}")
    _report(found, sent, asked)
    if (not found.is_clean and sent is None) or (sent is not None and sent.refused):
        sys.exit(Exit.DIFFERS)


def _plan(bucket: str, asked: _ReconcileOptions, *, is_in_lake: bool) -> ReconcilePlan:
    if not bucket:
        raise click.UsageError("BUCKET is empty")
    if sum((asked.inventory is not None, asked.backfill, is_in_lake)) != 1:
        raise click.UsageError("one of --inventory, --catalog and --backfill says what is known of events")
    if asked.listing and asked.manifest:
        raise click.UsageError("--listing and --s3-inventory exclude each other")
    if not (asked.listing or asked.manifest or asked.s3):
        raise click.UsageError("one of --s3, --listing and --s3-inventory tells what is in the bucket")
    if asked.topic and not asked.s3:
        raise click.UsageError("--emit needs --s3, to look at each object once more before its event is sent")
    return ReconcilePlan(
        bucket=bucket,
        out=asked.out,
        inventory=asked.inventory,
        landed=asked.landed,
        tenant=asked.tenant,
        gateway=_gateway(asked.s3, asked.region) if asked.s3 else None,
        listing=asked.listing,
        manifest=asked.manifest,
        listed_at_us=asked.listed_at_us,
        grace_s=asked.grace_s,
        memory=asked.memory,
        goes_on=asked.topic is not None,
    )


def _gateway(url: str, region: str) -> Gateway:
    access, secret = os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not (access and secret):
        raise click.UsageError("--s3 needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
    return Gateway(url, region, access, secret, os.environ.get("AWS_SESSION_TOKEN", ""))


def _ask_before_sending(plan: ReconcilePlan, server: IngestAddress, topic: str) -> None:
    """Raise ReplayRefused where no event could be sent: before hours go into finding out which."""
    from remora_pipeline.replay.pipeline.s3_objects import see_bucket  # its libraries take a second to load

    assert plan.gateway is not None, "--emit needs --s3"
    see_bucket(plan.gateway, plan.bucket)
    asyncio.run(check_ingest(server, topic))


def _sent(
    plan: ReconcilePlan,
    found: Reconcile,
    asked: _ReconcileOptions,
    server: IngestAddress,
    tell: Callable[[str], None],
) -> EmitProgress:
    from remora_pipeline.replay.pipeline.s3_objects import looking, s3_reader  # its libraries take a second to load

    gateway = plan.gateway
    assert gateway is not None, "--emit needs --s3"

    async def send() -> EmitProgress:
        to = IngestClient(server.address, token=server.token, ca_file=server.ca_file)
        async with to as client, s3_reader(gateway, 16) as s3:
            look = looking(s3, gateway, found.bucket)
            emission = Emission(asked.topic or "", asked.rate)
            return await emit(directory, client, look, emission, tell)

    directory = ReconciledDirectory(plan.out)
    with directory.locked():
        plan_emission(plan.out, topic=asked.topic or "", lake=plan.lake, master=asked.master)
        return asyncio.run(send())


def _report(found: Reconcile, sent: EmitProgress | None, asked: _ReconcileOptions) -> None:
    if asked.as_json:
        print_json(msgspec.to_builtins(found) | ({"emitted": msgspec.to_builtins(sent)} if sent else {}))
        return
    print_line(f"{'PASS' if found.is_clean else 'FAIL'}  {found.bucket}: {sentence(found)}")
    print_table(
        ["", "keys"],
        [["in the bucket", f"{found.listed:,}"], ["by the events", f"{found.told:,}"]]
        + [["left out, as changing" if kind == "changing" else kind, f"{n:,}"] for kind, n in found.counts.items()],
    )
    if sent is not None:
        print_line(f"sent {several(sent.sent, 'event')} to {asked.topic}; left out as changed: {sent.changed:,}")
        if sent.repeated:
            print_line(f"there twice, perhaps, with equal eventId: {sent.repeated:,}, repeated after ten minutes")
        _print_refused(sent.refused, ReconciledDirectory(asked.out))
    print_line(f"page: {asked.out / 'index.html'}")


def _print_refused(count: int, directory: ReconciledDirectory) -> None:
    if not count:
        return
    print_line(f"refused for good {count:,}, which are in {directory.emit / 'refused'}:")
    for each in islice(directory.refused(), _SHOWN_REFUSED):
        print_line(f"  {each.key}  {each.reason}")
    if count > _SHOWN_REFUSED:
        print_line(f"  and {count - _SHOWN_REFUSED:,} more")
