"""`remora explain`: where an event, a queue or a topic is, why it waits, and what to type next."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import click

from remora import app
from remora.cli import admin_client
from remora.cli.attributes import DURATION
from remora.cli.delivered import Delivered, find_delivered
from remora.cli.explained import Place, QueueView, as_json_queue, event_lines, queue_lines, topic_lines, view_queue
from remora.cli.ledger import balances
from remora.cli.options import config_option, gathered_into, json_option
from remora.cli.output import print_json, run_async
from remora.cli.rows import Row, UnknownTopic, complain, look_at, origin_option, pick, rows_of
from remora.codec.event_entry import decode
from remora.codec.rendering_plain import created_ns, key
from remora.config import Settings
from remora.model.entry import EventEntry
from remora.model.errors import CodecError, DaemonNotReachable, ShardGone, StoreDamaged
from remora.model.exits import Exit
from remora.model.record import CorruptBytes
from remora.model.shard import Origin, Shard
from remora.ports.store import ShardStore

MOST_FOUND = 100
"""At most this many entries of one key are shown."""

KINDS = ("topic", "queue", "event")


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


@dataclass(slots=True)
class Answer:
    """What was found. `looked_at` counts entries in queues; `is_cut` when a queue holds more than were looked at."""

    kind: str
    queues: list[QueueView] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    looked_at: int = 0
    is_cut: bool = False
    unknown: list[str] = field(default_factory=list)


@click.command()
@click.argument("what")
@click.option(
    "--as", "kind", type=click.Choice(KINDS), help="What WHAT is, where a topic, a queue or a key share a name."
)
@click.option("--topic", help="Look for an event in this topic's queues only.")
@origin_option
@click.option(
    "--bootstrap", metavar="HOST:PORT", help="Look for an event also in Kafka, at this broker without a login."
)
@click.option(
    "--since", "since_s", type=DURATION, default="1d", show_default=True, help="In Kafka: records of this time."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Look at this many entries of each queue, from the oldest on.",
)
@config_option
@json_option
@gathered_into(Asked)
def explain(settings: Settings, asked: Asked, as_json: bool) -> None:
    """Say where WHAT is, why it waits, and what to type next.

    WHAT is a topic, a queue, or an event, by its id or its key BUCKET/OBJECT. Reads the store, takes no lock, and asks
    the daemon of this host, which may be away. For an event it says which queue holds it and how many entries stand in
    front of it, whether it is a dead letter, and with --bootstrap at which offset Kafka has it. Queues keep no trace of
    single entries that have left them: what cannot be known is said, too.

    Exit code 1 when an event was found nowhere.

    \b
    Examples:
      remora explain orders
      remora explain photos/2026/cat.jpg --topic orders --bootstrap localhost:9092
      remora explain orders --json | jq -r '.queues[] | [.queue, .why] | @tsv'
    """

    async def look() -> tuple[Answer, dict[str, str]]:
        status = await _status(settings)
        async with app.store_of(settings) as store:
            return await _answer(store, settings, asked, status), dict(store.damaged)

    answer, damaged = run_async(look())
    if as_json:
        print_json(_as_json(answer))
    else:
        _print(asked, answer)
    complain(damaged)
    if answer.kind == "event" and not (answer.places or answer.delivered):
        sys.exit(Exit.FAILURE)


async def _status(settings: Settings) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = await admin_client.fetch_status(settings.admin)
    except DaemonNotReachable:
        return None
    return status


# ------------------------------------------------------------------------------------------------- what is meant


async def _answer(store: ShardStore, settings: Settings, asked: Asked, status: dict[str, Any] | None) -> Answer:
    rows = await rows_of(store)
    kind, meant = _meant(rows, asked)
    answer = Answer(kind)
    released = await store.releases.released()
    if kind != "event":
        ((row, shards),) = meant
        answer.queues = await _views(store, settings, row, shards, status, released)
        if status is None:
            answer.unknown.append("what the workers are doing: no daemon answers on this host")
        return answer
    holding: dict[Shard, Row] = {}
    for row, shards in meant:
        for shard in shards:
            before = len(answer.places)
            await _look_into(store, shard, asked, answer)
            if len(answer.places) > before:
                holding[shard] = row
    for shard, row in holding.items():
        answer.queues += await _views(store, settings, row, [shard], status, released)
    await _look_at_letters(store, asked, meant, answer)
    if asked.bootstrap is not None:
        names = sorted({row.topic.target.topic if row.topic else row.label for row, _ in meant})
        since = time.time() - asked.since_s
        for name in names:
            answer.delivered += await find_delivered(asked.bootstrap, name, os.fsencode(asked.what), since)
    if not (answer.places or answer.delivered):
        answer.unknown += await _unknown(store, asked, meant, answer)
    return answer


def _meant(rows: Sequence[Row], asked: Asked) -> tuple[str, list[tuple[Row, Sequence[Shard]]]]:
    """The kind of what was asked about, and the queues that it concerns by topic.

    Raises UnknownTopic and AmbiguousTopic where a topic or queue is asked for by its kind.
    """
    candidates = [row for row in rows if asked.origin in (None, row.origin)]
    if asked.topic is None and asked.kind in (None, "topic"):
        names = [row for row in candidates if asked.what in (row.label, row.topic.name if row.topic else "")]
        if names or asked.kind == "topic":
            row = pick(rows, asked.what, asked.origin)
            return "topic", [(row, row.shards)]
    if asked.topic is None and asked.kind in (None, "queue"):
        found = [(row, [each]) for row in candidates for each in row.shards if each.queue == asked.what]
        if len(found) == 1:
            return "queue", [*found]
        if asked.kind == "queue":
            why = "radosgw and remora both have it; say which with --origin" if found else "there is none"
            raise UnknownTopic(f"queue {asked.what!r}: {why}")
    if asked.topic is not None:
        candidates = [pick(rows, asked.topic, asked.origin)]
    return "event", [(row, row.shards) for row in candidates]


async def _views(
    store: ShardStore,
    settings: Settings,
    row: Row,
    shards: Sequence[Shard],
    status: dict[str, Any] | None,
    released: frozenset[Shard],
) -> list[QueueView]:
    stats, books = await look_at(store, shards), await balances(store, shards)
    return [
        view_queue(row, stats[each], books.get(each), row.reason(settings), status, is_released=each in released)
        for each in shards
        if each in stats
    ]


# ---------------------------------------------------------------------------------------------- finding an event


async def _look_into(store: ShardStore, shard: Shard, asked: Asked, answer: Answer) -> None:
    """Add the places of the event in one queue."""
    needle, ahead = os.fsencode(asked.what), 0
    part = needle.rpartition(b"/")[2] or needle
    try:
        async for position, data in store.inspection.dump(shard):
            if ahead >= asked.limit:
                answer.is_cut = True
                return
            answer.looked_at += 1
            if part in data and not isinstance(data, CorruptBytes) and len(answer.places) < MOST_FOUND:
                place = _place(shard.queue, position, data, needle)
                if place is not None:
                    answer.places.append(replace(place, ahead=ahead))
            ahead += 1
    except (ShardGone, StoreDamaged):
        return


def _place(queue: str, position: str, data: bytes, needle: bytes) -> Place | None:
    """The place of an entry whose event has this id or key; None for every other, and for one that says nothing."""
    try:
        entry = decode(data)
    except CodecError:
        return None
    found = key(entry.event)
    if needle not in (entry.event.event_id, found):
        return None
    return Place(
        queue, position, os.fsdecode(found), os.fsdecode(entry.event.event_id), _name(entry), created_ns(entry) / 1e9
    )


def _name(entry: EventEntry) -> str:
    return entry.event.event_name.decode(errors="replace")


async def _look_at_letters(
    store: ShardStore, asked: Asked, meant: Sequence[tuple[Row, Sequence[Shard]]], answer: Answer
) -> None:
    """Add the dead letters of the event. Those of queues that are gone count where no topic was named."""
    queues = {shard.queue for _, shards in meant for shard in shards} if asked.topic is not None else None
    needle = os.fsencode(asked.what)
    async for letter in store.letters.stored():
        if (queues is not None and letter.queue not in queues) or not letter.is_as_committed:
            continue
        place = _place(letter.queue, f"{letter.incarnation}:{letter.position}", letter.raw, needle)
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


async def _unknown(
    store: ShardStore, asked: Asked, meant: Sequence[tuple[Row, Sequence[Shard]]], answer: Answer
) -> list[str]:
    """What cannot be known of an event that was found nowhere."""
    stats = await look_at(store, (shard for _, shards in meant for shard in shards))
    reservations = sum(each.reservations for each in stats.values())
    lines = [
        "whether it was delivered, or expired and was dropped: queues keep no trace of single entries that left them"
        + ("" if asked.bootstrap else "; with --bootstrap it is looked for in Kafka")
    ]
    if asked.bootstrap:
        since = datetime.fromtimestamp(time.time() - asked.since_s, UTC)
        lines.append(f"whether Kafka had it before {since:%Y-%m-%d %H:%M:%S} UTC (--since)")
    if reservations:
        lines.append(
            f"whether it is one of {reservations} reservations that are open: they have no content before commit"
        )
    else:
        lines.append("whether it was ever committed: no reservation is open, so it does not wait for its commit now")
    if answer.is_cut:
        lines.append(f"what stands behind the oldest {asked.limit} entries of each queue (--limit)")
    return lines


# ------------------------------------------------------------------------------------------------------ showing


def _print(asked: Asked, answer: Answer) -> None:
    if answer.kind == "queue":
        lines = [line for each in answer.queues for line in queue_lines(each)]
    elif answer.kind == "topic":
        lines = topic_lines(asked.what, answer.queues)
    else:
        lines = [f"event {asked.what}: looked at {answer.looked_at} waiting entries"]
        lines += [line for each in answer.places for line in event_lines(each, answer.queues)]
        lines += [f"  in Kafka: {each.shown}" for each in answer.delivered]
        if not (answer.places or answer.delivered):
            lines.append("  found nowhere: it waits in none of these queues and is no dead letter")
    for line in [*lines, *(f"not known: {each}" for each in answer.unknown)]:
        click.echo(line)


def _as_json(answer: Answer) -> dict[str, object]:
    return {
        "kind": answer.kind,
        "queues": [as_json_queue(each) for each in answer.queues],
        "waiting": [_json_place(each) for each in answer.places if not each.cause],
        "dead_letters": [
            _json_place(each)
            | {"cause": each.cause, "reason": each.reason, "attempts": each.attempts, "parked_at": each.parked_at}
            for each in answer.places
            if each.cause
        ],
        "delivered": [each.as_json() for each in answer.delivered],
        "looked_at": answer.looked_at,
        "not_known": answer.unknown,
    }


def _json_place(place: Place) -> dict[str, object]:
    found: dict[str, object] = {
        "queue": place.queue,
        "position": place.position,
        "key": place.key,
        "event_id": place.event_id,
        "event_name": place.event_name,
        "created": place.created,
    }
    return found if place.cause else found | {"ahead": place.ahead}
