"""`remora explain`: where an event, a queue or a topic is, why it waits, and what to type next."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from remora import app, endpoint_kinds
from remora.cli import admin_client
from remora.cli.attributes import DURATION
from remora.cli.explain_event import (
    Asked,
    EventFindings,
    as_json_bucket,
    bucket_lines,
    look_for,
    not_known,
    view_bucket,
)
from remora.cli.explained import (
    DaemonAnswer,
    EventPlace,
    QueueOrders,
    QueueView,
    as_json_queue,
    event_lines,
    queue_lines,
    topic_lines,
    view_queue,
)
from remora.cli.options import gathered_into, json_option, running_option
from remora.cli.output import print_json, print_line, run_async
from remora.cli.rows import Row, UnknownTopic, balances, complain, hold_of, look_at, origin_option, pick, rows_of
from remora.cli.status import silence_lines
from remora.cli.steps import SILENT_S, told
from remora.config import Settings
from remora.metrics.stages import slow_lines
from remora.model.errors import DaemonNotReachable
from remora.model.exits import Exit
from remora.model.shard import Shard
from remora.model.words import several
from remora.policy.ownership.hosts import names_of
from remora.ports.store import ShardStore

KINDS = ("topic", "queue", "bucket", "event")

MOST_PLACES = 20
"""Places of an event that are shown to people: with notifications it may wait in hundreds of topics."""


@click.command()
@click.argument("what")
@click.option("--as", "kind", type=click.Choice(KINDS), help="What WHAT is, where several share a name.")
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
@running_option
@json_option
@gathered_into(Asked)
def explain(settings: Settings, asked: Asked, as_json: bool) -> None:
    """Say where WHAT is, why it waits, and what to type next.

    WHAT is a topic, a queue, a bucket, or an event, by its id or its key BUCKET/OBJECT, as it is or URL-encoded; of a
    bucket it shows the notifications that are for it, when each last sent something, why nothing arrives, and the
    oldest events that wait. Reads the store, takes no lock, and asks the daemon of this host, which may be away.
    For an event it says which queue holds it and how many entries stand in front of it, whether it is a dead
    letter, and with --bootstrap at which offset Kafka has it. Queues keep no trace of single entries that have left
    them: what cannot be known is said, too.

    Exit code 1 when an event was found nowhere, or when Kafka or a file of the store could not be looked into.

    \b
    Examples:
      remora explain orders
      remora explain photos/2026/cat.jpg --topic orders --bootstrap localhost:9092
      remora explain photos --as bucket
      remora explain orders --json | jq -r '.queues[] | [.queue, .why] | @tsv'
    """

    if not asked.what.strip():
        raise click.UsageError("WHAT is empty: name a topic, a queue, or an event by its id or its key")

    async def look() -> tuple[EventFindings, dict[str, str]]:
        said = await _said(settings)
        async with app.store_of(settings) as store:
            said = replace(said, names=names_of(await store.members.live()))
            return await _answer(store, settings, asked, said), dict(store.damaged)

    with told(after_s=SILENT_S) as tell:
        tell(f"looking for {asked.what} in queues and dead letters" + (" and in Kafka" if asked.bootstrap else ""))
        answer, damaged = run_async(look())
    schemes = (each.row.topic.target.scheme for each in answer.queues if each.row.topic)
    answer.slow = slow_lines(answer.stages, {settings.store.kind, *schemes}) if answer.queues else []
    if as_json:
        print_json(_as_json(answer))
    else:
        print_findings(asked, answer)
    complain([*damaged.values(), *answer.failures])
    if not answer.is_found:
        sys.exit(Exit.FAILURE)


async def _said(settings: Settings) -> DaemonAnswer:
    host = settings.ownership.host
    try:
        return DaemonAnswer(host, await admin_client.fetch_status(settings.admin))
    except DaemonNotReachable as exc:
        return DaemonAnswer(host, None, str(exc))


# ------------------------------------------------------------------------------------------------- what is meant


async def _answer(store: ShardStore, settings: Settings, asked: Asked, said: DaemonAnswer) -> EventFindings:
    kind, meant = _meant(await rows_of(store), asked)
    answer = EventFindings(kind)
    released = await store.releases.released()
    if kind == "event" and asked.kind in (None, "bucket") and asked.topic is None:
        answer.bucket = await view_bucket(store, asked.what, said.status, is_asked=asked.kind == "bucket")
    if kind == "event":
        holding = await look_for(store, asked, meant, answer)
    else:
        holding = meant
    answer.stages = (said.status or {}).get("stages", [])
    for row, shards in holding:
        answer.queues += await _views(store, settings, row, shards, said, released)
    if said.status is None and answer.queues:
        answer.unknown.append(f"what the workers are doing: {said.silence}")
    elif said.status is not None:
        answer.unknown += silence_lines(said.status, "queues and failures")
    if not answer.is_found:
        answer.unknown += await not_known(store, asked, meant, answer)
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
    said: DaemonAnswer,
    released: frozenset[Shard],
) -> list[QueueView]:
    stats, books = await look_at(store, shards), await balances(store, shards)
    hold = await hold_of(store, row.topic) if row.topic else None
    reason = row.reason(endpoint_kinds.schemes(settings))
    return [
        view_queue(row, stats[each], books.get(each), QueueOrders(reason, each in released, hold), said)
        for each in shards
        if each in stats
    ]


# ------------------------------------------------------------------------------------------------------ showing


def print_findings(asked: Asked, answer: EventFindings) -> None:
    """For people: what was found, and what cannot be known."""
    if answer.kind == "queue":
        lines = [line for each in answer.queues for line in queue_lines(each)]
    elif answer.kind == "topic":
        lines = topic_lines(asked.what, answer.queues)
    else:
        lines = bucket_lines(answer.bucket) if answer.bucket is not None else []
        looked = several(answer.looked_at, "waiting entry", "waiting entries")
        of_bucket = asked.kind is None and {each.key.partition("/")[0] for each in answer.places} == {asked.what}
        title = f"{'bucket' if of_bucket else 'event'} {asked.what}"
        lines += [f"{'  events' if lines else title}: looked at {looked}"]
        lines += [line for each in answer.places[:MOST_PLACES] for line in event_lines(each, answer.queues)]
        if (more := len(answer.places) - MOST_PLACES) > 0:
            lines.append(f"  and in {several(more, 'further place')}: --topic looks into one topic, --json shows all")
        lines += [f"  in Kafka: {each.shown}" for each in answer.delivered]
        if not answer.is_found:
            name = "" if asked.kind or asked.topic else "no topic or queue has this name, "
            lines.append(f"  found nowhere: {name}it waits in none of these queues and is no dead letter")
    lines += [f"  slow: {each}" for each in answer.slow]
    for line in [*lines, *(f"not known: {each}" for each in answer.unknown)]:
        print_line(line)


def _as_json(answer: EventFindings) -> dict[str, object]:
    return {
        "kind": answer.kind,
        "bucket": None if answer.bucket is None else as_json_bucket(answer.bucket),
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
        "slow": answer.slow,
        "not_known": answer.unknown,
    }


def _json_place(place: EventPlace) -> dict[str, object]:
    found: dict[str, object] = {
        "queue": place.queue,
        "position": place.position,
        "key": place.key,
        "event_id": place.event_id,
        "event_name": place.event_name,
        "created": place.created,
    }
    return found if place.cause else found | {"ahead": place.ahead}
