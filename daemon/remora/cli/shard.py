"""`remora shard`: who holds which queue, and moving one by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from remora import app
from remora.cli.groups import Group
from remora.cli.options import config_option, json_option
from remora.cli.output import duration, print_json, print_table, run_async, size
from remora.cli.rows import complain, look_at, origin_option
from remora.config import Settings
from remora.engine.catalogue import topic_of
from remora.engine.claims import claim, evict, is_workers
from remora.model.cookie import WorkerCookie
from remora.model.errors import RemoraError
from remora.model.shard import LockHolder, Origin, Shard, ShardStats
from remora.policy.eligible import reason_to_leave
from remora.ports import ShardStore


class NotOurs(RemoraError):
    """A queue that no worker would take."""


class UnknownQueue(RemoraError):
    """There is no registered queue of this name."""


class AmbiguousQueue(RemoraError):
    """radosgw and remora both have a queue of this name."""


@click.group(cls=Group)
def shard() -> None:
    """Show who holds each queue, take one from radosgw, or give one back."""


@shard.command("list")
@click.option("--exact", is_flag=True, help="List and count entries where the OSDs keep no count.")
@config_option
@json_option
def list_command(settings: Settings, exact: bool, as_json: bool) -> None:
    """List queues: owner, lease left, entries, bytes and oldest age. Takes no lock.

    \b
    Example:
      remora shard list --json | jq -r '.[] | select(.owner == null) | .queue'
    """

    async def figures() -> tuple[dict[Shard, ShardStats], Mapping[str, str]]:
        async with app.store_of(settings) as store:
            return await look_at(store, await store.shards(), exact=exact), store.damaged

    look, damaged = run_async(figures())
    stats = [look[each] for each in sorted(look)]
    if as_json:
        print_json([as_json_row(each) for each in stats])
    else:
        _print_figures(stats)
    complain(damaged)


def _print_figures(stats: Sequence[ShardStats]) -> None:
    print_table(
        ("QUEUE", "MADE BY", "OWNER", "LEASE LEFT", "ENTRIES", "BYTES", "OLDEST"),
        [
            (
                each.shard.queue,
                each.shard.origin,
                owner_text(each.holder),
                duration(each.holder.lease_left_s) if each.holder else "-",
                f"{'' if each.entries_exact else '~'}{each.entries}",
                size(each.used_bytes),
                duration(each.oldest_age_s),
            )
            for each in stats
        ],
    )


@shard.command("claim")
@click.argument("queue")
@origin_option
@config_option
def claim_command(settings: Settings, queue: str, origin: Origin | None) -> None:
    """Take QUEUE from a running radosgw and give it to a running remora worker.

    Breaks the gateway's lock. The gateway stops at its next step; what it has under way may still arrive.

    \b
    Example, all that a gateway holds and remora would deliver:
      remora status --json | jq -r '.left[] | select(.reason == "held by another owner") | .queue' |
          xargs -rn1 remora shard claim
    """

    async def work() -> LockHolder:
        async with app.store_of(settings) as store:
            found = await _find(store, queue, origin)
            why = reason_to_leave(await topic_of(store, found), app.SCHEMES)
            if why is not None:
                raise NotOurs(f"{queue} stays where it is: {why}")
            return await claim(store, found)

    click.echo(f"{queue} is held by {owner_text(run_async(work()))}")


@shard.command("release")
@click.argument("queue")
@origin_option
@config_option
def release_command(settings: Settings, queue: str, origin: Origin | None) -> None:
    """Break the lock of whoever holds QUEUE.

    A worker that loses its lock so stays away for 45 seconds: long enough for radosgw, which looks for free
    queues every 30 seconds, to take it.

    \b
    Example:
      remora shard release orders.3
    """

    async def work() -> LockHolder | None:
        async with app.store_of(settings) as store:
            return await evict(store, await _find(store, queue, origin))

    was = run_async(work())
    click.echo(f"{queue} was held by {owner_text(was)}; it is free now" if was else f"{queue} was free already")


async def _find(store: ShardStore, queue: str, origin: Origin | None) -> Shard:
    found = [each for each in await store.shards() if each.queue == queue and origin in (None, each.origin)]
    if not found:
        raise UnknownQueue(f"there is no registered queue {queue!r}; `remora shard list` shows them")
    if len(found) > 1:
        raise AmbiguousQueue(f"radosgw and remora both have a queue {queue!r}: say which with --origin")
    return found[0]


def owner_text(holder: LockHolder | None) -> str:
    """Who holds a lock, for a person."""
    if holder is None:
        return "nobody"
    expired = " expired" if holder.lease_left_s <= 0 else ""
    if worker := WorkerCookie.parse(holder.cookie):
        return f"remora on {worker.host}, worker {worker.worker}{expired}"
    kind = "remora" if is_workers(holder) else "radosgw or other"
    return f"{kind} {holder.entity} ({holder.cookie}){expired}"


def as_json_row(stats: ShardStats) -> dict[str, object]:
    """A shard's figures with the names that `remora shard list --json` promises."""
    holder = stats.holder
    worker = WorkerCookie.parse(holder.cookie) if holder else None
    return {
        "queue": stats.shard.queue,
        "origin": str(stats.shard.origin),
        "owner": None
        if holder is None
        else {
            "entity": holder.entity,
            "cookie": holder.cookie,
            "address": holder.address,
            "lease_left_seconds": round(holder.lease_left_s, 3),
            "is_remora": is_workers(holder),
            "host": worker.host if worker else None,
            "worker": worker.worker if worker else None,
        },
        "entries": stats.entries,
        "entries_exact": stats.entries_exact,
        "bytes": stats.used_bytes,
        "capacity_bytes": stats.capacity_bytes,
        "reservations": stats.reservations,
        "oldest_age_seconds": stats.oldest_age_s,
    }
