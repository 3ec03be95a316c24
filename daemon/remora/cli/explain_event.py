"""What `remora explain` says of a bucket, and of one event in it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, unquote_plus

from remora.cli.delivered import Delivered, KafkaNotReachable, find_delivered
from remora.cli.explained import EventPlace, QueueView
from remora.cli.rows import Row, look_at
from remora.codec.event_entry import decode
from remora.codec.rendering_plain import created_ns, key
from remora.model.errors import CodecError, ShardGone, StoreDamaged
from remora.model.notification import Definitions
from remora.model.record import CorruptBytes
from remora.model.shard import Origin, Shard
from remora.model.words import duration, moment, several
from remora.policy.ingest.matcher import takes_bucket
from remora.policy.status.bucket_news import next_for_silence, why_silent
from remora.ports.store import ShardStore

MOST_FOUND = 100
"""At most this many entries of one key are shown."""


@dataclass(frozen=True, slots=True)
class BucketView:
    """A bucket with all that is known of it. `news` is what the daemon's status has of it, None where it is silent."""

    name: str
    definitions: Definitions
    news: Mapping[str, Any] | None

    @property
    def matching(self) -> dict[str, tuple[str, ...]]:
        """The topics of each notification that is for this bucket."""
        return {each.id: each.topics for each in self.definitions.notifications if takes_bucket(each, self.name)}

    @property
    def why(self) -> str:
        """Why nothing of it arrives; empty where something does, or where nobody can say."""
        matching, defined = list(self.matching), bool(self.definitions.notifications)
        if self.news is None and matching:
            return ""
        return why_silent(self.name, matching, self.news or {}, any_defined=defined)

    @property
    def next_command(self) -> str:
        """What to type next; empty where nothing has to be done."""
        if not self.why:
            return ""
        return next_for_silence(self.name, list(self.matching), self.news or {}, shlex.quote(self.name))


async def view_bucket(
    store: ShardStore, name: str, status: Mapping[str, Any] | None, *, is_asked: bool
) -> BucketView | None:
    """The bucket of this name; None where nothing speaks for there being one, and nobody `is_asked` for one.

    `status` is the daemon's; None where it does not answer.
    """
    definitions = await store.notifications.definitions()
    rows = status.get("buckets", []) if status is not None else []
    news = next((row for row in rows if row["bucket"] == name), None)
    is_named = any(each.buckets and takes_bucket(each, name) for each in definitions.notifications)
    if not (is_asked or news or is_named):
        return None
    return BucketView(name, definitions, None if status is None else news or {})


def bucket_lines(view: BucketView) -> list[str]:
    """The bucket for a person."""
    news, now = view.news or {}, time.time()
    sent = news.get("sent") or {}
    lines = [f"bucket {view.name}"]
    for name, topics in view.matching.items():
        when = f"last sent {duration(max(0.0, now - sent[name]))} ago" if name in sent else "has sent nothing"
        if name not in sent and view.news is None:
            when = "whether it has sent something is not known, since the daemon does not answer"
        elif name not in sent:
            when += " since the daemon's start"
        lines.append(f"  notification {name} to {', '.join(topics)}: {when}")
    if view.why:
        what = "why the last event went nowhere" if sent and view.matching else "why nothing arrives"
        lines.append(f"  {what}: {view.why}")
        lines.append(f"  try: {view.next_command}")
    elif filtered := news.get("filtered"):
        ago = duration(max(0.0, now - filtered["at"]))
        lines.append(f"  the last event that matched none: {filtered['event']} of key {filtered['key']}, {ago} ago")
    return lines


def as_json_bucket(view: BucketView) -> dict[str, object]:
    """The bucket for programs."""
    news = view.news or {}
    return {
        "bucket": view.name,
        "notifications": [
            {"id": name, "topics": list(topics), "last_sent": (news.get("sent") or {}).get(name)}
            for name, topics in view.matching.items()
        ],
        "last_filtered": news.get("filtered"),
        "last_refused": news.get("refused"),
        "why": view.why,
        "next": view.next_command,
    }


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
