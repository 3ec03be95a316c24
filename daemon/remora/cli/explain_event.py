"""Looks for an event: in queues, among dead letters, and in Kafka."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, unquote_plus

from remora.cli.delivered import Delivered, KafkaNotReachable, find_delivered
from remora.cli.explain_bucket import BucketView
from remora.cli.explained import EventPlace, QueueView
from remora.cli.rows import Row, look_at
from remora.codec.event_entry import decode
from remora.codec.rendering_plain import created_ns, key
from remora.model.errors import CodecError, ShardGone, StoreDamaged
from remora.model.record import CorruptBytes
from remora.model.shard import Origin, Shard
from remora.model.words import moment, several
from remora.ports.store import ShardStore

MOST_FOUND = 100
"""At most this many entries of one key are shown."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was asked."""

    what: str
    kind: str | None
    topic: str | None
    origin: Origin | None
    bootstrap: str | None
    since_s: float
    limit: int

    @property
    def needles(self) -> frozenset[bytes]:
        """What the key or the id of an event may be: as it was given, and where it is URL-encoded, what it means."""
        return frozenset(os.fsencode(each) for each in (self.what, unquote(self.what), unquote_plus(self.what)))


@dataclass(slots=True)
class EventFindings:
    """What was found. `looked_at` counts entries in queues; `is_cut` when a queue holds more than were looked at.

    `failures` are places that were asked for and could not be looked into. `stages` are those of the daemon's status,
    and `slow` says of each that is slow on the way of these queues what it takes, and what follows.
    """

    kind: str
    queues: list[QueueView] = field(default_factory=list)
    places: list[EventPlace] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    looked_at: int = 0
    is_cut: bool = False
    unknown: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    bucket: BucketView | None = None
    slow: list[str] = field(default_factory=list)

    @property
    def is_found(self) -> bool:
        """Whether there is anything to be said of what was asked about."""
        return self.kind != "event" or self.bucket is not None or bool(self.places or self.delivered)


async def look_for(
    store: ShardStore, asked: Asked, meant: Sequence[tuple[Row, Sequence[Shard]]], answer: EventFindings
) -> list[tuple[Row, Sequence[Shard]]]:
    """Add all places of the event; returns the queues in which it waits."""
    holding: list[tuple[Row, Sequence[Shard]]] = []
    for row, shards in meant:
        for shard in shards:
            before = len(answer.places)
            await _look_into(store, shard, asked, answer)
            if len(answer.places) > before:
                holding.append((row, [shard]))
    await _look_at_letters(store, asked, meant, answer)
    if asked.bootstrap is not None:
        await _look_into_kafka(asked.bootstrap, asked, meant, answer)
    return holding


async def _look_into(store: ShardStore, shard: Shard, asked: Asked, answer: EventFindings) -> None:
    """Add the places of the event in one queue."""
    needles, ahead = asked.needles, 0
    parts = {each.rpartition(b"/")[2] or each for each in needles}
    try:
        async for position, data in store.inspection.dump(shard):
            if ahead >= asked.limit:
                answer.is_cut = True
                return
            answer.looked_at += 1
            may_be = not isinstance(data, CorruptBytes) and any(part in data for part in parts)
            if may_be and len(answer.places) < MOST_FOUND:
                place = _place(shard.queue, position, data, needles)
                if place is not None:
                    answer.places.append(replace(place, ahead=ahead))
            ahead += 1
    except (ShardGone, StoreDamaged):
        return


async def _look_into_kafka(
    bootstrap: str, asked: Asked, meant: Sequence[tuple[Row, Sequence[Shard]]], answer: EventFindings
) -> None:
    """Add the records of the event. A broker that does not answer is asked once; one may lack topics of others."""
    since = max(time.time() - asked.since_s, 0.0)  # Kafka has no times before 1970
    try:
        found = await find_delivered(bootstrap, _topics_of_kafka(meant), asked.needles, since)
    except KafkaNotReachable as exc:
        answer.failures.append(str(exc))
        return
    answer.delivered += found.records
    answer.unknown += [
        f"whether topic {each!r} of Kafka has it: {bootstrap} has no such topic" for each in found.missing
    ]


def _topics_of_kafka(meant: Sequence[tuple[Row, Sequence[Shard]]]) -> list[str]:
    """Returns the topics' names in Kafka. A topic without known metadata has the name of its queue."""
    rows = [row for row, _ in meant]
    topics = {each.topic.target.topic for each in rows if each.topic and each.topic.target.scheme == "kafka"}
    return sorted(topics | {each.label for each in rows if each.topic is None})


def _place(queue: str, position: str, data: bytes, needles: Set[bytes]) -> EventPlace | None:
    """The place of an entry with this id, key or bucket; None for others, and for one that says nothing."""
    try:
        entry = decode(data)
    except CodecError:
        return None
    found = key(entry.event)
    if needles.isdisjoint((entry.event.event_id, found, entry.event.bucket_name)):
        return None
    return EventPlace(
        queue,
        position,
        os.fsdecode(found),
        os.fsdecode(entry.event.event_id),
        entry.event.event_name.decode(errors="replace"),
        created_ns(entry) / 1e9,
    )


async def _look_at_letters(
    store: ShardStore, asked: Asked, meant: Sequence[tuple[Row, Sequence[Shard]]], answer: EventFindings
) -> None:
    """Add the dead letters of the event. Those of queues that are gone count where no topic was named."""
    queues = {shard.queue for _, shards in meant for shard in shards} if asked.topic is not None else None
    async for letter in store.letters.stored():
        if (queues is not None and letter.queue not in queues) or not letter.is_as_committed:
            continue
        place = _place(letter.queue, f"{letter.incarnation}:{letter.position}", letter.raw, asked.needles)
        if place is not None and len(answer.places) < MOST_FOUND:
            answer.places.append(
                replace(
                    place,
                    cause=letter.cause,
                    reason=letter.reason,
                    attempts=letter.attempts,
                    parked_at=letter.parked_at,
                )
            )


async def not_known(
    store: ShardStore, asked: Asked, meant: Sequence[tuple[Row, Sequence[Shard]]], answer: EventFindings
) -> list[str]:
    """What cannot be known of an event that was found nowhere."""
    stats = await look_at(store, (shard for _, shards in meant for shard in shards))
    reservations = sum(each.reservations for each in stats.values())
    lines = [
        "whether it was delivered, or expired and was dropped: queues keep no trace of single entries that left them"
        + ("; with --bootstrap it is looked for in Kafka" if not asked.bootstrap and _topics_of_kafka(meant) else "")
    ]
    if asked.bootstrap and not answer.failures:
        lines.append(f"whether Kafka had it before {moment(time.time() - asked.since_s)} (--since)")
    if reservations:
        lines.append(
            f"whether it is in {several(reservations, 'open reservation')}: none has content before its commit"
        )
    else:
        lines.append("whether it was ever committed: no reservation is open, so it does not wait for its commit now")
    if answer.is_cut:
        lines.append(
            f"what stands behind the oldest {several(asked.limit, 'entry', 'entries')} of each queue (--limit)"
        )
    return lines
