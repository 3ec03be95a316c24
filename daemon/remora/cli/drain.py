"""Draining a topic of remora's own before it is removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from remora.cli.output import print_line
from remora.cli.steps import SILENT_S, told
from remora.model.errors import TopicRefused
from remora.model.ingest import Removed
from remora.model.topic import Topic
from remora.model.words import several
from remora.ports.store import ShardStore

LOOK_INTERVAL_S = 0.25


async def drained(store: ShardStore, topic: Topic, timeout_s: float) -> Removed | None:
    """Close a topic, wait until it is empty, and remove it; None, said on standard error, when that takes too long."""
    closed = replace(topic, closed=True)
    await store.own_topics.change(closed)
    removed = None
    try:
        removed = await _emptied(store, closed, timeout_s)
        if removed is None:
            why = await _what_waits(store, topic)
            print_line(f"remora: topic {topic.name} was not empty within {timeout_s:g} s: {why}", err=True)
    finally:
        if removed is None:
            print_line(
                f"remora: topic {topic.name} stays closed for new events; `remora topic set {topic.name} --open`"
                " opens it again",
                err=True,
            )
    return removed


async def _emptied(store: ShardStore, topic: Topic, timeout_s: float) -> Removed | None:
    """Remove the topic once it is empty; None when the time ends before. A removal that has begun is finished."""
    until = asyncio.get_running_loop().time() + timeout_s
    waiting = await _waiting(store, topic)
    with told(after_s=SILENT_S) as tell:
        while True:
            tell(f"waiting until {several(waiting, 'entry is', 'entries are')} delivered, for up to {timeout_s:g} s")
            if not waiting:
                try:
                    return await store.own_topics.remove(topic, discard=False)
                except TopicRefused:
                    pass  # a queue that could not be looked at, or an event that was under way when it was closed
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0:
                return None
            await asyncio.sleep(min(LOOK_INTERVAL_S, left_s))
            waiting = await _waiting(store, topic)


async def _waiting(store: ShardStore, topic: Topic) -> int:
    """What has to leave the queues: entries, and reservations, which may still be committed."""
    return sum(each.entries + each.reservations for each in await store.inspection.backlog(topic.all_shards()))


async def _what_waits(store: ShardStore, topic: Topic) -> str:
    found = await store.inspection.backlog(topic.all_shards())
    entries, reservations = sum(each.entries for each in found), sum(each.reservations for each in found)
    waits = f"{several(entries, 'entry', 'entries')} and {several(reservations, 'reservation')}"
    text = f"{waits} wait in {len(found)} of {several(len(topic.all_shards()), 'queue')}"
    if any(each.holder is None or each.holder.lease_left_s <= 0 for each in found):
        return f"{text}, some of which no worker holds: does a daemon run?"
    return f"{text}; `remora status` says why"
