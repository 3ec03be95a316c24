"""`remora topic set --shards`: another number of shards, and what is shown of a topic's layouts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remora.cli.rows import Row
from remora.cli.steps import SILENT_S, told
from remora.model.errors import TopicRefused
from remora.model.ledger import Balance
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic, shard_of
from remora.model.words import several
from remora.ports.store import ShardStore

LOOK_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class ReshardAsked:
    """What `topic set` is asked for about shards; `timeout_s` is how long it waits with `wait`."""

    shards: int | None
    wait: bool
    timeout_s: int | None


async def resharded(store: ShardStore, topic: Topic, asked: ReshardAsked) -> tuple[Topic, str]:
    """The topic with the number of shards that is asked for, and a sentence where that is another one.

    Raises TopicRefused while a former layout has entries.

    With `wait` it waits until that is delivered, says so on standard error, and is refused when the time is over.
    """
    if asked.shards is None or (asked.shards == topic.shards and topic.coming is None):
        return topic, ""
    timeout_s = 300 if asked.timeout_s is None else asked.timeout_s
    until = asyncio.get_running_loop().time() + timeout_s
    with told(after_s=SILENT_S) as tell:
        while True:
            try:
                changed = await store.own_topics.reshard(topic, asked.shards)
                break
            except TopicRefused:
                now = await store.own_topics.find(topic.name)
                is_held = now is not None and now.id == topic.id and bool(now.former)
                if not (asked.wait and is_held) or asyncio.get_running_loop().time() >= until:
                    raise
                tell(f"waiting until the former shards of {topic.name} are delivered, for up to {timeout_s} s")
            await asyncio.sleep(LOOK_INTERVAL_S)
    entries = sum(each.entries for each in await store.inspection.backlog(changed.former_shards()))
    first = f"; {several(entries, 'entry', 'entries')} of the former ones come first" if entries else ""
    shards = several(changed.shards, "shard")
    return changed, f"topic {topic.name} has {shards} now, of generation {changed.generation}{first}"


async def layouts_json(store: ShardStore, topic: Topic) -> list[dict[str, Any]]:
    """A topic's layouts, oldest first, with what waits in each."""
    waiting = {each.shard: each.entries for each in await store.inspection.backlog(topic.all_shards())}
    return [
        {
            "generation": each.generation,
            "shards": each.shards,
            "state": str(each.state),
            "entries": sum(
                waiting.get(shard_of(topic.queue, number, topic.origin, each.generation), 0)
                for number in range(each.shards)
            ),
        }
        for each in topic.layouts
    ]


async def ended_json(store: ShardStore, topic: Topic) -> list[dict[str, object]]:
    """The queues that went with their layouts: where each ended, and how many entries it had."""
    return [
        {
            "queue": each.name,
            "generation": each.generation,
            "incarnation": each.incarnation,
            "end": each.end,
            "committed": each.committed,
        }
        for each in await store.own_topics.former_queues(topic)
    ]


async def ended_balances(store: ShardStore, row: Row) -> Sequence[Balance]:
    """The final ledgers of the queues of a topic that went with their layouts."""
    if row.topic is None or row.origin is not Origin.REMORA or not row.topic.generation:
        return ()
    return [
        Balance(Shard(each.name, Origin.REMORA), each.committed, 0, each.removed)
        for each in await store.own_topics.former_queues(row.topic)
    ]
