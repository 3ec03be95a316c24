"""`remora topic`: what is delivered, where to, and what waits."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from remora import app
from remora.cli.output import config_option, duration, json_option, print_json, print_table, run_async, size
from remora.codec.event_entry import decode
from remora.codec.record import body
from remora.config import Settings
from remora.engine.catalogue import topic_among
from remora.model.errors import CodecError, RemoraError, ShardGone
from remora.model.shard import Shard, ShardStats
from remora.model.topic import Topic
from remora.policy.eligible import reason_to_leave
from remora.ports import ShardStore


class UnknownTopic(RemoraError):
    """There is no queue of a topic of this name."""


@dataclass(frozen=True, slots=True)
class Row:
    """A topic with its queues; without metadata it is known by its queue's name alone."""

    label: str
    topic: Topic | None
    shards: tuple[Shard, ...]

    @property
    def reason(self) -> str | None:
        """Why it stays with radosgw; None when remora delivers it."""
        if self.topic is None:
            return None if self.shards else "no queue"
        return reason_to_leave(self.topic, app.SCHEMES)


@click.group()
def topic() -> None:
    """Show persistent topics, their attributes and what waits in their queues.

    radosgw's topics are shown, never altered: make and change them through radosgw's own API.
    """


@topic.command("list")
@config_option
@json_option
def list_command(settings: Settings, as_json: bool) -> None:
    """List topics, and who delivers each."""

    async def rows() -> list[Row]:
        async with app.store_of(settings) as store:
            return await _rows(store)

    found = run_async(rows())
    if as_json:
        print_json([_as_json(row) for row in found])
        return
    print_table(
        ("TOPIC", "QUEUE", "ENDPOINT", "DELIVERED BY"),
        [
            (
                row.label,
                ",".join(shard.queue for shard in row.shards),
                row.topic.target.redacted if row.topic else "-",
                f"radosgw: {row.reason}" if row.reason else "remora",
            )
            for row in found
        ],
    )


@topic.command("show")
@click.argument("name")
@config_option
@json_option
def show_command(settings: Settings, name: str, as_json: bool) -> None:
    """Show the attributes of topic NAME. Credentials are never printed."""

    async def row() -> Row:
        async with app.store_of(settings) as store:
            return _pick(await _rows(store), name)

    shown = _as_json(run_async(row()))
    if as_json:
        print_json(shown)
        return
    for key, value in shown.items():
        click.echo(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


@topic.command("stats")
@click.argument("name", required=False)
@click.option("--exact", is_flag=True, help="List and count entries where the OSDs keep no count.")
@config_option
@json_option
def stats_command(settings: Settings, name: str | None, exact: bool, as_json: bool) -> None:
    """Show reservations, entries, bytes and oldest age of topic NAME, or of all topics.

    Shards are added up. A count with a ~ is estimated from the bytes; --exact lists the queue and counts.
    """

    async def figures() -> list[tuple[Row, list[ShardStats]]]:
        async with app.store_of(settings) as store:
            rows = await _rows(store)
            chosen = [_pick(rows, name)] if name else rows
            return [(row, await _stats(store, row.shards, exact)) for row in chosen]

    totals = [_total(row, stats) for row, stats in run_async(figures())]
    if as_json:
        print_json(totals)
        return
    print_table(
        ("TOPIC", "SHARDS", "RESERVATIONS", "ENTRIES", "BYTES", "OLDEST"),
        [
            (
                each["topic"],
                each["shards"],
                each["reservations"],
                f"{'' if each['entries_exact'] else '~'}{each['entries']}",
                size(each["bytes"]),
                duration(each["oldest_age_seconds"]),
            )
            for each in totals
        ],
    )


@topic.command("dump")
@click.argument("name")
@click.option("--raw", is_flag=True, help="Print the raw entry in base64 instead of the notification.")
@config_option
def dump_command(settings: Settings, name: str, raw: bool) -> None:
    """Print the pending entries of topic NAME as JSON lines, oldest first in each shard, without removing any."""

    async def dump() -> None:
        async with app.store_of(settings) as store:
            for shard in _pick(await _rows(store), name).shards:
                async for position, data in store.dump(shard):
                    click.echo(dump_line(shard.queue, position, data, raw=raw))

    run_async(dump())


def dump_line(queue: str, position: str, data: bytes, *, raw: bool) -> str:
    """One pending entry as a JSON line; what cannot be decoded is given raw, with the reason."""
    line: dict[str, object] = {"queue": queue, "position": position}
    if raw:
        line["raw"] = base64.b64encode(data).decode()
    else:
        try:
            line["notification"] = json.loads(body(decode(data)).decode(errors="surrogateescape"))
        except (CodecError, ValueError) as exc:
            line |= {"error": str(exc), "raw": base64.b64encode(data).decode()}
    return json.dumps(line)


async def _rows(store: ShardStore) -> list[Row]:
    shards = await store.shards()
    topics = await store.topics()
    rows: list[Row] = []
    taken: set[Shard] = set()
    for known in topics.values():
        mine = tuple(shard for shard in shards if topic_among(topics, shard) is known)
        taken.update(mine)
        rows.append(Row(known.label, known, mine))
    rows += [Row(shard.queue, None, (shard,)) for shard in shards if shard not in taken]
    return sorted(rows, key=lambda row: row.label)


def _pick(rows: Sequence[Row], name: str) -> Row:
    for row in rows:
        if name in (row.label, row.topic.name if row.topic else None, *(shard.queue for shard in row.shards)):
            return row
    known = ", ".join(row.label for row in rows) or "none"
    raise UnknownTopic(f"there is no persistent topic {name!r}; known: {known}")


async def _stats(store: ShardStore, shards: Iterable[Shard], exact: bool) -> list[ShardStats]:
    found = []
    for shard in shards:
        try:
            found.append(await store.stats(shard, exact=exact))
        except ShardGone:
            continue
    return found


def _total(row: Row, stats: Sequence[ShardStats]) -> dict[str, Any]:
    ages = [each.oldest_age_s for each in stats if each.oldest_age_s is not None]
    return {
        "topic": row.label,
        "shards": len(stats),
        "reservations": sum(each.reservations for each in stats),
        "reserved_bytes": sum(each.reserved_bytes for each in stats),
        "entries": sum(each.entries for each in stats),
        "entries_exact": all(each.entries_exact for each in stats),
        "bytes": sum(each.used_bytes for each in stats),
        "capacity_bytes": sum(each.capacity_bytes for each in stats),
        "oldest_age_seconds": max(ages, default=None),
    }


def _as_json(row: Row) -> dict[str, object]:
    shown: dict[str, object] = {
        "topic": row.label,
        "queues": [shard.queue for shard in row.shards],
        "delivered_by": "radosgw" if row.reason else "remora",
        "reason": row.reason or "",
    }
    if row.topic is None:
        return shown | {"attributes": "unknown: no readable metadata; each entry's own copy is used"}
    known = row.topic
    return shown | {
        "attributes": str(known.source),
        "endpoint": known.target.redacted,
        "endpoint_topic": known.target.topic,
        "time_to_live": "default" if known.time_to_live_s is None else known.time_to_live_s,
        "max_retries": "default" if known.max_retries is None else known.max_retries,
        "retry_sleep_duration": "default" if known.retry_sleep_s is None else known.retry_sleep_s,
        "opaque_data": (known.opaque_data or b"").decode(errors="replace"),
        "remarks": app.remarks(known.target, settings=Settings()),
    }
