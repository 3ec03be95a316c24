"""`remora topic`: what is delivered, where to, and what waits. What changes topics is in `own_topic.py`."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from remora import app, endpoint_kinds
from remora.cli import admin_client
from remora.cli.advice import show_advice
from remora.cli.apply_topics import apply_command
from remora.cli.attributes import shown_arguments
from remora.cli.groups import CommandGroup
from remora.cli.hold import hold_command, resume_command
from remora.cli.layouts import ended_json, layouts_json
from remora.cli.options import config_option, daemon_option, gathered_into, json_option, running_option, seconds
from remora.cli.output import print_json, print_line, print_table, run_async, size
from remora.cli.own_topic import create_command, rm_command, set_command
from remora.cli.rows import Row, UnknownTopic, complain, hold_of, look_at, origin_option, row_named, rows_of
from remora.cli.ways import is_well, steps_of
from remora.codec.event_entry import decode
from remora.codec.rendering_plain import body
from remora.config import Settings
from remora.model.errors import CodecError, DaemonNotReachable, EndpointError, ShardGone
from remora.model.exits import Exit
from remora.model.record import CorruptBytes
from remora.model.shard import Origin, ShardStats
from remora.model.topic import Topic
from remora.model.words import duration, several
from remora.policy.admission.holds import hold_text, in_force
from remora.ports.endpoint import ProbeStep
from remora.ports.store import ShardStore


@dataclass(frozen=True, slots=True)
class StatsAsked:
    """What `topic stats` is asked for; `watch` in seconds."""

    exact: bool
    advice: bool
    watch: float


MOST_LISTED = 16
"""Queues of a topic that a text names one by one."""


@click.group(cls=CommandGroup)
def topic() -> None:
    """Make, change and remove remora's own topics; show all topics and what waits in their queues.

    Remora's own topics get their events through the ingest API, and their attributes have the names and meanings
    that radosgw's have. radosgw's topics are shown, never altered: make and change them through radosgw's own API.

    \b
    Start with:
      remora topic create orders --endpoint kafka://broker:9092
      remora topic stats
    """


for command in (
    create_command, set_command, rm_command, apply_command, hold_command, resume_command,
):  # fmt: skip
    topic.add_command(command)


@topic.command("test")
@click.argument("name")
@click.option("--send-test", "sends_test", is_flag=True, help="End with an s3:TestEvent, which receivers get.")
@origin_option
@config_option
@json_option
def test_command(settings: Settings, name: str, sends_test: bool, origin: Origin | None, as_json: bool) -> None:
    """Try the way to the endpoint of topic NAME, step by step, from this host.

    Looks up names, connects, agrees on TLS, logs in, and looks whether the topic, exchange or path is there and this
    user may write to it. It sends no event unless --send-test is given; where a protocol shows nothing without one it
    says so. It goes on up to the first step that fails, and ends with exit code 1 then. The daemon need not run.

    \b
    Examples:
      remora topic test orders
      remora topic test hooks --send-test
    """

    async def work() -> list[ProbeStep]:
        async with app.store_of(settings) as store:
            row = await row_named(store, name, origin)
        if row.topic is None:
            raise UnknownTopic(f"topic {name!r}: its metadata cannot be read, and nothing else tells its endpoint")
        return await steps_of(row.topic, settings, sends_test=sends_test, shows=not as_json)

    steps = run_async(work())
    if as_json:
        print_json([dataclasses.asdict(each) for each in steps])
    if not is_well(steps):
        sys.exit(Exit.FAILURE)


@topic.command("list")
@daemon_option
@json_option
def list_command(settings: Settings, as_json: bool) -> None:
    """List topics, who made each, and who delivers it, or holds it back.

    \b
    Example:
      remora topic list --json | jq -r '.[] | select(.delivered_by == "remora") | .topic'
    """

    async def rows() -> tuple[list[Row], dict[str, str], Mapping[str, str]]:
        async with app.store_of(settings) as store:
            found = await rows_of(store)
            topics = {each.topic.first_shard: each.topic for each in found if each.topic}
            holds = in_force(await store.holds.held(), topics, time.time())
            held = {topics[shard].label: hold_text(hold) for shard, hold in holds.items() if shard in topics}
            return found, held, store.damaged

    found, held, damaged = run_async(rows())
    if as_json:
        said = ({"held": held[row.label]} if row.label in held else {} for row in found)
        print_json([_as_json(row, settings) | each for row, each in zip(found, said, strict=True)])
    else:
        _print_rows(found, held, settings)
    complain(damaged.values())


def _print_rows(found: Sequence[Row], held: Mapping[str, str], settings: Settings) -> None:
    print_table(
        ("TOPIC", "MADE BY", "SHARDS", "QUEUE", "ENDPOINT", "DELIVERY", "DELIVERED BY"),
        [
            (
                row.label,
                row.origin,
                row.open_shards,
                row.shards[0].queue if row.shards else "-",
                row.topic.target.redacted if row.topic else "-",
                (endpoint_kinds.delivery_mode(row.topic.target, settings) if row.topic else "") or "-",
                _delivered_by(row, held.get(row.label, ""), settings),
            )
            for row in found
        ],
        "there is no topic",
    )


def _delivered_by(row: Row, held: str, settings: Settings) -> str:
    schemes = endpoint_kinds.schemes(settings)
    if reason := row.reason(schemes):
        return f"{row.delivered_by(schemes)}: {reason}"
    closed = "closed for new events" if row.topic and row.topic.closed else ""
    return "; ".join(filter(None, ["remora", closed, held]))


@topic.command("show")
@click.argument("name")
@origin_option
@daemon_option
@json_option
def show_command(settings: Settings, name: str, origin: Origin | None, as_json: bool) -> None:
    """Show the attributes of topic NAME. Credentials are never printed.

    For a topic that numbers its events it shows the last number, and the number up to which all events have left their
    queues. For one of remora's own it shows the notifications that send to it.

    \b
    Example:
      remora topic show orders
    """

    async def row() -> dict[str, object]:
        async with app.store_of(settings) as store:
            found = await row_named(store, name, origin)
            hold = await hold_of(store, found.topic) if found.topic else None
            shown = _as_json(found, settings) | {"sequence": await _sequence(store, found)}
            shown |= {"held": hold_text(hold)} if hold else {}
            if found.topic is not None and found.origin is Origin.REMORA:
                shown["notifications"] = list((await store.notifications.definitions()).naming(found.label))
                layouts = await layouts_json(store, found.topic)
                shown["layouts"] = (
                    layouts
                    if as_json
                    else [
                        f"generation {each['generation']} of {several(each['shards'], 'shard')} is {each['state']}"
                        f" with {several(each['entries'], 'entry', 'entries')}"
                        for each in layouts
                    ]
                )
                shown |= {"ended": await ended_json(store, found.topic)} if as_json else {}
        if found.topic is not None:
            shown["remarks"] = [
                *endpoint_kinds.remarks(found.topic.target, settings),
                *await _standing(found.topic, settings),
            ]
        return shown

    shown = run_async(row())
    if as_json:
        print_json(shown)
        return
    for key, value in shown.items():
        print_line(f"{key}: {_line(value)}")


async def _standing(topic: Topic, settings: Settings) -> list[str]:
    """What the topic's servers say of themselves, or why they say nothing now."""
    try:
        return await endpoint_kinds.standing(topic, settings)
    except EndpointError as exc:
        return [str(exc)]


async def _sequence(store: ShardStore, row: Row) -> str | dict[str, int]:
    """How far a topic's sequence has come, or why it has none."""
    if row.origin is Origin.RADOSGW:
        return "none: radosgw commits events without a number"
    if row.topic is None or not row.topic.is_sequenced:
        return "none"
    reached = await store.own_topics.sequence(row.topic)
    return {"tail": reached.tail, "delivered": reached.delivered}


def _line(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not value and not isinstance(value, int):
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    if not isinstance(value, list):
        return value
    return ", ".join(value if len(value) <= MOST_LISTED else [*value[:2], "...", value[-1]])


@topic.command("stats")
@click.argument("name", required=False)
@click.option("--exact", is_flag=True, help="List and count entries where the OSDs keep no count.")
@click.option("--advice", is_flag=True, help="Say how many shards what comes in would take, now and by the last days.")
@click.option(
    "--watch",
    metavar="DURATION",
    callback=seconds,
    default="1m",
    show_default=True,
    help="How long --advice watches; seconds or with a unit.",
)
@origin_option
@running_option
@json_option
@gathered_into(StatsAsked)
def stats_command(
    settings: Settings, name: str | None, asked: StatsAsked, origin: Origin | None, as_json: bool
) -> None:
    """Show reservations, entries, bytes, leak, room and oldest age of topic NAME, or of all topics.

    Figures are summed over shards, but the room is that of the queue with the least. How long it lasts (FULL IN) is
    known if the daemon of this host holds the queues. A count with a ~ is estimated from the bytes, on RADOS;
    --exact lists the queue and counts.

    With --advice it watches for a minute, or as long as --watch says, and shows how many shards the busiest minute
    would take, of those watched and of those that daemons have kept of the last 30 days. Nothing is changed.

    \b
    Examples:
      remora topic stats orders --json | jq .[0].entries
      remora topic stats orders --advice
    """
    exact = asked.exact
    if asked.advice:
        show_advice(settings, name, origin, asked.watch, as_json=as_json)
        return

    async def figures() -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        async with app.store_of(settings) as store:
            if name:
                rows = [await row_named(store, name, origin)]
            else:
                rows = [row for row in await rows_of(store) if origin in (None, row.origin)]
            look = await look_at(store, (shard for row in rows for shard in row.shards), exact=exact)
            lasts = await _seconds_until_full(settings)
            totals = [
                _total(row, [look[each] for each in row.shards if each in look])
                | {"seconds_until_full": lasts.get(row.label)}
                for row in rows
            ]
            return totals, store.damaged

    totals, damaged = run_async(figures())
    if as_json:
        print_json(totals)
    else:
        _print_totals(totals)
    complain(damaged.values())


async def _seconds_until_full(settings: Settings) -> dict[str, float | None]:
    """How long the room of topics lasts, as far as the daemon of this host knows; nothing where it does not answer."""
    try:
        status = await admin_client.fetch_status(settings.admin)
    except DaemonNotReachable:
        return {}
    return {each["topic"]: each["room"]["seconds_until_full"] for each in status["topics"] if each.get("room")}


def _print_totals(totals: Sequence[dict[str, Any]]) -> None:
    print_table(
        ("TOPIC", "SHARDS", "RESERVATIONS", "ENTRIES", "BYTES", "CAPACITY", "LEAKED", "ROOM", "FULL IN", "OLDEST"),
        [
            (
                each["topic"],
                each["shards"],
                each["reservations"],
                f"{'' if each['entries_exact'] else '~'}{each['entries']}",
                size(each["bytes"]),
                size(each["capacity_bytes"]),
                size(each["leaked_bytes"]),
                "-" if each["room_bytes"] is None else size(each["room_bytes"]),
                duration(each["seconds_until_full"]),
                duration(each["oldest_age_seconds"]),
            )
            for each in totals
        ],
        "there is no topic",
    )


@topic.command("dump")
@click.argument("name")
@click.option("--raw", is_flag=True, help="Print the raw entry in base64 instead of the notification.")
@origin_option
@daemon_option
def dump_command(settings: Settings, name: str, raw: bool, origin: Origin | None) -> None:
    """Print the pending entries of topic NAME as JSON lines, oldest first in each shard, without removing any.

    \b
    Example:
      remora topic dump orders | jq -r '.notification.Records[0].s3.object.key'
    """

    async def dump() -> None:
        async with app.store_of(settings) as store:
            for shard in (await row_named(store, name, origin)).shards:
                try:
                    async for position, data in store.inspection.dump(shard):
                        print_json(_dumped(shard.queue, position, data, raw=raw), indent=None)
                except ShardGone:
                    continue

    run_async(dump())


def _dumped(queue: str, position: str, data: bytes, *, raw: bool) -> dict[str, object]:
    """One pending entry; what is corrupt or cannot be decoded is given raw, with the reason."""
    line: dict[str, object] = {"queue": queue, "position": position}
    if isinstance(data, CorruptBytes):
        line |= {"error": data.why, "raw": base64.b64encode(data).decode()}
    elif raw:
        line["raw"] = base64.b64encode(data).decode()
    else:
        try:
            line["notification"] = json.loads(body(decode(data)).decode(errors="surrogateescape"))
        except (CodecError, ValueError) as exc:
            line |= {"error": str(exc), "raw": base64.b64encode(data).decode()}
    return line


def _total(row: Row, stats: Sequence[ShardStats]) -> dict[str, Any]:
    ages = [each.oldest_age_s for each in stats if each.oldest_age_s is not None]
    return {
        "topic": row.label,
        "origin": str(row.origin),
        "shards": len(stats),
        "reservations": sum(each.reservations for each in stats),
        "reserved_bytes": sum(each.reserved_bytes for each in stats),
        "entries": sum(each.entries for each in stats),
        "entries_exact": all(each.entries_exact for each in stats),
        "spilled_entries": sum(each.spilled_entries for each in stats),
        "bytes": sum(each.used_bytes for each in stats),
        "capacity_bytes": sum(each.capacity_bytes for each in stats),
        "leaked_bytes": sum(each.leaked_bytes for each in stats),
        "room_bytes": min((each.room.room_bytes for each in stats), default=None),
        "oldest_age_seconds": max(ages, default=None),
    }


def _as_json(row: Row, settings: Settings) -> dict[str, object]:
    shown: dict[str, object] = {
        "topic": row.label,
        "origin": str(row.origin),
        "shards": row.open_shards,
        "queues": [shard.queue for shard in row.shards],
        "delivered_by": row.delivered_by(endpoint_kinds.schemes(settings)),
        "reason": row.reason(endpoint_kinds.schemes(settings)) or "",
    }
    if row.topic is None:
        return shown | {"attributes": "unknown: no readable metadata; each entry's own copy is used"}
    known = row.topic
    if known.origin is Origin.REMORA:
        shown |= {"id": known.id, "closed": known.closed, "arguments": shown_arguments(known)}
    return shown | {
        "attributes": str(known.source),
        "endpoint": known.target.redacted,
        "endpoint_topic": known.target.topic,
        "delivery": endpoint_kinds.delivery_mode(known.target, settings),
        "time_to_live": "default" if known.time_to_live_s is None else known.time_to_live_s,
        "max_retries": "default" if known.max_retries is None else known.max_retries,
        "retry_sleep_duration": "default" if known.retry_sleep_s is None else known.retry_sleep_s,
        "opaque_data": (known.opaque_data or b"").decode(errors="replace"),
        "capacity": "default" if known.capacity_bytes is None else known.capacity_bytes,
        "remarks": endpoint_kinds.remarks(known.target, settings),
    }
