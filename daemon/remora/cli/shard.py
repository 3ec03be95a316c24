"""`remora shard`: who holds which queue, moving one by hand, and giving queues back the room that they leak."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from remora import app, endpoint_kinds
from remora.cli.groups import CommandGroup
from remora.cli.options import config_option, daemon_option, gathered_into, json_option
from remora.cli.output import print_json, print_line, print_table, run_async, size
from remora.cli.rows import complain, hold_of, look_at, origin_option
from remora.cli.steps import SILENT_S, told
from remora.cli.trace import myself, trace
from remora.cli.which import Which, find_queue, for_each, which_queues
from remora.config import Settings
from remora.engine.catalogue import topic_among, topic_of
from remora.engine.claims import POLL_S, claim, is_held_by_worker, move, release
from remora.model.errors import RemoraError, TopicRefused
from remora.model.member import WorkerCookie
from remora.model.shard import LockHolder, Mend, Origin, Shard, ShardStats
from remora.model.words import duration, several
from remora.policy.admission.holds import hold_text
from remora.policy.ownership.hosts import Names, names_of, owner_text
from remora.policy.ownership.not_owned import reason_to_leave
from remora.ports.store import ShardStore


class ForeignQueue(RemoraError):
    """A queue that no worker would take."""


@click.group(cls=CommandGroup)
def shard() -> None:
    """Show who holds each queue, take one from radosgw, give one back, or move one to another worker.

    \b
    Start with:
      remora shard list
      remora shard claim --all    # on RADOS: take over what radosgw delivers
    """


@shard.command("list")
@click.option("--exact", is_flag=True, help="List and count entries where the OSDs keep no count.")
@daemon_option
@json_option
def list_command(settings: Settings, exact: bool, as_json: bool) -> None:
    """List queues: owner, lease left, entries, bytes and oldest age. Takes no lock.

    \b
    Example:
      remora shard list --json | jq -r '.[] | select(.owner == null) | .queue'
    """

    async def figures() -> tuple[dict[Shard, ShardStats], frozenset[Shard], Names, Mapping[str, str]]:
        async with app.store_of(settings) as store:
            shards, released = await store.catalog.shards(), await store.releases.released()
            names = names_of(await store.members.live())
            return await look_at(store, shards, exact=exact), released, names, store.damaged

    look, released, names, damaged = run_async(figures())
    stats = [look[each] for each in sorted(look)]
    if as_json:
        print_json([as_json_row(each, is_released=each.shard in released) for each in stats])
    else:
        _print_figures(stats, released, names)
    complain(damaged.values())


def _print_figures(stats: Sequence[ShardStats], released: frozenset[Shard], names: Names) -> None:
    print_table(
        ("QUEUE", "MADE BY", "OWNER", "LEASE LEFT", "ENTRIES", "BYTES", "OLDEST"),
        [
            (
                each.shard.queue,
                each.shard.origin,
                owner_text(each.holder, names) + (", released" if each.shard in released else ""),
                duration(each.holder.lease_left_s) if each.holder else "-",
                f"{'' if each.entries_exact else '~'}{each.entries}",
                size(each.used_bytes),
                duration(each.oldest_age_s),
            )
            for each in stats
        ],
        "there is no queue",
    )


@shard.command("claim")
@which_queues
@config_option
def claim_command(settings: Settings, which: Which) -> None:
    """Take each QUEUE from a running radosgw and give it to a running remora worker.

    Breaks the gateway's lock. The gateway stops at its next step; what it has under way may still arrive. What was
    released before is delivered by remora again.

    \b
    Example, all that gateways hold and remora would deliver:
      remora shard claim --all

    \b
    Only those of one kind of endpoint, which ownership.schemes has to name:
      remora shard claim --all --scheme https
    """

    async def work(store: ShardStore, found: Shard) -> str:
        why = reason_to_leave(await topic_of(store, found), endpoint_kinds.schemes(settings))
        if why is not None:
            raise ForeignQueue(f"{found} stays where it is: {why}")
        was, held = owner_text((await store.inspection.stats(found)).holder), owner_text(None)
        by = myself(settings)
        try:
            held = owner_text(await claim(store, found, by))
        finally:  # also where nobody came: the lock is broken all the same
            trace("shard_claim", "a queue was claimed", queue=found.queue, old=was, new=held, **by.known)
        return f"{found} is held by {held}"

    waits = "waiting for a worker to take what is claimed, for up to 20 s a queue"
    for_each(settings, lambda store: which.find(store, settings), work, waits)


@shard.command("release")
@which_queues
@click.option("--wait", is_flag=True, help="Wait until spilled entries are delivered, however long that takes.")
@config_option
def release_command(settings: Settings, which: Which, wait: bool) -> None:
    """Leave each QUEUE to radosgw until it is claimed.

    The workers of all hosts release it when they have finished what they have under way, and never take it again
    before `remora shard claim`, however often they are started anew. A radosgw takes it within half a minute.

    A radosgw knows nothing of spilled entries: these are delivered first, and the queue is left to radosgw then.

    No radosgw takes a queue of remora's own: there the command breaks its owner's lock, and any worker may
    take it again.

    \b
    Example:
      remora shard release orders
    """

    async def work(store: ShardStore, found: Shard) -> str:
        topic = topic_among(await store.catalog.topics(), found) if found.origin is Origin.RADOSGW else None
        if topic is not None and (hold := await hold_of(store, topic)) is not None:
            raise TopicRefused(f"{found} stays: topic {topic.label} is {hold_text(hold)}, and radosgw would deliver it")
        was = await release(store, found)
        while spilled := (await store.inspection.stats(found)).spilled_entries:
            if not wait or found.origin is not Origin.RADOSGW:
                break
            await asyncio.sleep(POLL_S)
        trace("shard_release", "a queue was released", queue=found.queue, old=owner_text(was), **myself(settings).known)
        if spilled and found.origin is Origin.RADOSGW:
            waits = several(spilled, "spilled entry is", "spilled entries are")
            return f"releasing {found}: {waits} delivered first"
        return _released_text(found, was)

    waits = "waiting for workers to finish what they have under way, for up to 10 s a queue"
    for_each(settings, lambda store: which.find(store, settings), work, waits)


@shard.command("move")
@click.argument("queue")
@click.option("--to", "worker", required=True, metavar="WORKER", help="The worker's id, or the beginning of it.")
@origin_option
@config_option
def move_command(settings: Settings, queue: str, worker: str, origin: Origin | None) -> None:
    """Have QUEUE's worker hand it to another one, on whichever host.

    The queue rests for a moment, and nothing is sent twice. It stays there: evening out the numbers does not take it
    back, and balance by load leaves it alone for balance.grace.

    \b
    Example:
      remora shard move orders.3 --to 5f0c
    """

    async def work() -> str:
        async with app.store_of(settings) as store:
            found = await find_queue(store, queue, origin)
            was = owner_text((await store.inspection.stats(found)).holder)
            held = owner_text(await move(store, found, worker))
            trace("shard_move", "a queue was moved", queue=found.queue, old=was, new=held, **myself(settings).known)
            return f"{found} is held by {held}"

    with told(after_s=SILENT_S) as tell:
        tell(f"waiting for {queue} to be handed over")
        said = run_async(work())
    print_line(said)


def _released_text(shard: Shard, was: LockHolder | None) -> str:
    if shard.origin is Origin.REMORA:
        return f"{shard} was held by {owner_text(was)}; it is free now" if was else f"{shard} was free already"
    if was is None:
        return f"{shard} was free already; workers leave it to radosgw until it is claimed"
    verb = "was held" if is_held_by_worker(was) else "is held"
    return f"{shard} {verb} by {owner_text(was)}; workers leave it to radosgw until it is claimed"


def as_json_row(stats: ShardStats, *, is_released: bool = False) -> dict[str, object]:
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
            "is_remora": is_held_by_worker(holder),
            "host": worker.host if worker else None,
            "worker": worker.worker if worker else None,
        },
        "released": is_released,
        "entries": stats.entries,
        "entries_exact": stats.entries_exact,
        "spilled_entries": stats.spilled_entries,
        "bytes": stats.used_bytes,
        "capacity_bytes": stats.capacity_bytes,
        "reservations": stats.reservations,
        "oldest_age_seconds": stats.oldest_age_s,
    }


@dataclass(frozen=True, slots=True)
class HealAsked:
    """What `shard heal` is asked for."""

    queue: str | None
    topic: str | None
    every: bool
    origin: Origin | None
    dry_run: bool


@shard.command("heal")
@click.argument("queue", required=False)
@click.option("--topic", help="All queues of this topic.")
@click.option("--all", "every", is_flag=True, help="All registered queues, also those that remora does not deliver.")
@origin_option
@click.option("--dry-run", is_flag=True, help="Say what would be given back, and write nothing.")
@config_option
@gathered_into(HealAsked)
def heal_command(settings: Settings, asked: HealAsked) -> None:
    """Give QUEUE the room back that it has leaked. Takes no lock.

    OSDs before 19.2.4 and 20.2.3 keep 10 bytes of a queue for each event that was ever reserved for, until an empty
    queue is full and every PUT gets 503. A worker mends the queues that it holds by itself (rados.heal); this mends any
    queue, whoever holds it. Clients that write to it meanwhile notice nothing.

    \b
    Examples:
      remora shard heal --all --dry-run
      remora shard heal orders
    """
    if [asked.queue is not None, asked.topic is not None, asked.every].count(True) != 1:
        raise click.UsageError("name one QUEUE, or give --topic or --all")

    async def work(store: ShardStore, found: Shard) -> str:
        if asked.dry_run:
            return _what_leaks(found, await store.mends.look(found))
        done = await store.mends.mend_unheld(found, patient=True)
        if done.after is not None:
            trace(
                "shard_heal", "a queue got its leaked room back", queue=found.queue,
                leaked_before=done.before.leaked_bytes, leaked_after=done.after.leaked_bytes, **myself(settings).known,
            )  # fmt: skip
        return _what_leaks(found, done)

    for_each(
        settings,
        lambda store: _queues_to_heal(store, settings, asked),
        work,
        "waiting for the store to answer of each queue",
    )


async def _queues_to_heal(store: ShardStore, settings: Settings, asked: HealAsked) -> Sequence[Shard]:
    if not asked.every:
        return await Which((asked.queue,) if asked.queue is not None else (), asked.topic, asked.origin).find(
            store, settings
        )
    return [each for each in await store.catalog.shards() if asked.origin in (None, each.origin)]


def _what_leaks(queue: Shard, done: Mend) -> str:
    """What was found in a queue, and what was done about it."""
    before = done.before
    had = f"{queue} leaks {before.leaked_bytes} bytes, and {before.room_bytes} of {before.capacity_bytes} are free"
    if not before.leaked_bytes:
        return f"{queue} leaks nothing, and {before.room_bytes} of {before.capacity_bytes} bytes are free"
    if done.is_busy:
        return f"{had}; not mended, since other clients always came first: try again"
    if done.after is None:
        return had
    return f"{had}; mended: {done.after.leaked_bytes} leak, and {done.after.room_bytes} are free"
