"""What a reconcile is to compare, and what is wrong with that as far as it shows in a moment: before Spark starts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import read
from remora_pipeline.replay.pipeline.directory import LandedDirectory, Landing
from remora_pipeline.replay.pipeline.listing import Manifest, manifest_of, see_listing
from remora_pipeline.replay.pipeline.reconciliation import Listing, Reconcile, ReconciledDirectory
from remora_pipeline.replay.pipeline.snapshots import Inventory, InventoryDirectory
from remora_pipeline.replay.run.targets.s3 import Gateway

if TYPE_CHECKING:
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress


@dataclass(frozen=True)
class ReconcilePlan:
    """What to compare. Events are known by an `inventory` or by the tables of a `lake`; without both it is a backfill,
    and every object is missing.

    One of `gateway`, `listing` and `manifest` tells what is in the bucket; with several, a file goes before S3, which
    is then only looked at before events are sent. `landed` is the landing, where the inventory does not name it.
    `goes_on` is of one whose findings are sent: what was found before is taken as it is.
    """

    bucket: str
    out: Path
    inventory: Path | None
    lake: LakeAddress | None = None
    landed: Path | None = None
    tenant: str = ""
    gateway: Gateway | None = None
    listing: Path | None = None
    manifest: Path | None = None
    listed_at_us: int | None = None
    grace_s: float = 300.0
    memory: str = "2g"
    goes_on: bool = False


def ask_first(plan: ReconcilePlan, directory: ReconciledDirectory) -> None:
    """Raise ReplayError where the comparison cannot be made: the events or the listing are not there or of another
    bucket, or S3 does not list it."""
    if plan.lake is not None:
        from remora_pipeline.replay.pipeline.iceberg.known import tables_there  # its libraries take a second to load

        tables_there(plan.lake)
    elif plan.inventory is not None:
        inventory_of(plan)
    if plan.manifest is not None:
        refuse_what_is_to_come(str(plan.manifest), manifest_for(plan, plan.manifest).made_us, plan.grace_s)
    elif plan.listing is not None:
        see_listing(plan.listing)
        refuse_what_is_to_come(str(plan.listing), listed_at_us(plan, plan.listing), plan.grace_s)
    elif listed_before(plan, directory) is None:
        from remora_pipeline.replay.pipeline.s3_objects import see_bucket  # its libraries take a second to load

        assert plan.gateway is not None, "there is something that tells what is in the bucket"
        see_bucket(plan.gateway, plan.bucket)


def refuse_made(plan: ReconcilePlan, made: Reconcile) -> None:
    """Raise ReplayRefused where what was found before is not what is asked for: the result of another comparison, or of
    an earlier one, unless its findings are sent."""
    if (made.bucket, made.tenant) != (plan.bucket, plan.tenant):
        raise ReplayRefused(f"{plan.out}: is the reconcile of bucket {made.bucket}, not of {plan.bucket}")
    if not plan.goes_on:
        raise ReplayRefused(
            f"{plan.out}: has the result of {at_time(made.ended_us)} already: compare into a new folder, or send what"
            " was found with --emit"
        )
    file = plan.manifest or plan.listing
    if file is not None and str(file) != made.source:
        raise ReplayRefused(f"{plan.out}: has the result of another listing, {made.source}: compare into a new folder")
    is_backfill = plan.inventory is None and plan.lake is None
    if is_backfill != (made.landing is None):
        what = "a backfill" if made.landing is None else "a comparison with events"
        raise ReplayRefused(f"{plan.out}: has the result of {what}: compare into a new folder")


def inventory_of(plan: ReconcilePlan) -> tuple[Inventory, LandedDirectory]:
    """The newest inventory of a folder, and the landing that it was made of. Raises ReplayRefused."""
    assert plan.inventory is not None, "the events are known by a folder"
    newest = InventoryDirectory(plan.inventory).newest()
    if newest is None:
        raise ReplayRefused(f"{plan.inventory}: there is no inventory in it (no current)")
    if newest.buckets and plan.bucket not in newest.buckets:
        raise ReplayRefused(f"{plan.inventory}: is of {', '.join(newest.buckets)} only, not of {plan.bucket}")
    path = plan.landed or (Path(newest.landed) if newest.landed else None)
    if path is None:
        raise ReplayRefused(f"{plan.inventory}: an older remora made it; name the landing that it is of with --landed")
    landed = LandedDirectory(path)
    if read(landed.landing, Landing).id != newest.landing:
        raise ReplayRefused(f"{plan.inventory}: was made of another landing than {path}")
    return newest, landed


def manifest_for(plan: ReconcilePlan, path: Path) -> Manifest:
    """The manifest of an S3 Inventory of the plan's bucket. Raises ReplayRefused."""
    manifest = manifest_of(path)
    if manifest.bucket != plan.bucket:
        raise ReplayRefused(f"{path}: is of bucket {manifest.bucket}, not of {plan.bucket}")
    return manifest


def listed_at_us(plan: ReconcilePlan, listing: Path) -> int:
    """When a file was listed: as somebody says, else by its age."""
    return listing.stat().st_mtime_ns // 1000 if plan.listed_at_us is None else plan.listed_at_us


def listed_before(plan: ReconcilePlan, directory: ReconciledDirectory) -> Listing | None:
    """The listing of the bucket that an earlier run has made. Raises ReplayRefused where it is of another bucket."""
    listing = directory.listed()
    if listing is not None and listing.bucket != plan.bucket:
        raise ReplayRefused(f"{directory.path}: has a listing of bucket {listing.bucket}, not of {plan.bucket}")
    return listing


def refuse_what_is_to_come(source: str, begun_us: int, grace_s: float) -> None:
    """Raise ReplayRefused for a listing of the future; clocks may differ."""
    if begun_us / 1e6 > time.time() + grace_s:
        at = at_time(begun_us)
        raise ReplayRefused(f"{source}: was listed at {at}, which is yet to come: --listed-at")


def at_time(us: int) -> str:
    """A time as people and --listed-at have it."""
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"
