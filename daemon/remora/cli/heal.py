"""`remora shard heal`: gives queues the room back that the OSDs of some releases leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from remora.cli.options import config_option, gathered_into
from remora.cli.rows import origin_option
from remora.cli.trace import myself, trace
from remora.cli.which import Which, for_each
from remora.config import Settings
from remora.model.shard import Mend, Origin, Shard
from remora.ports.store import ShardStore


@dataclass(frozen=True, slots=True)
class HealAsked:
    """What `shard heal` is asked for."""

    queue: str | None
    topic: str | None
    every: bool
    origin: Origin | None
    dry_run: bool


@click.command("heal")
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
            return _said(found, await store.mends.look(found))
        done = await store.mends.mend_unheld(found, patient=True)
        if done.after is not None:
            trace(
                "shard_heal", "a queue got its leaked room back", queue=found.queue,
                leaked_before=done.before.leaked_bytes, leaked_after=done.after.leaked_bytes, **myself(settings).known,
            )  # fmt: skip
        return _said(found, done)

    for_each(
        settings, lambda store: _queues(store, settings, asked), work, "waiting for the cluster to answer of each queue"
    )


async def _queues(store: ShardStore, settings: Settings, asked: HealAsked) -> Sequence[Shard]:
    if not asked.every:
        return await Which((asked.queue,) if asked.queue is not None else (), asked.topic, asked.origin).find(
            store, settings
        )
    return [each for each in await store.catalog.shards() if asked.origin in (None, each.origin)]


def _said(queue: Shard, done: Mend) -> str:
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
