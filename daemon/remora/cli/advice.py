"""`remora topic stats --advice`: how many shards a topic would take, by what comes into its queues meanwhile."""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from remora import app
from remora.cli.ledger import balances
from remora.cli.output import print_json, print_table, run_async, size
from remora.cli.rows import Row, complain, look_at, row_named, rows_of
from remora.codec.event_entry import decode
from remora.config import Settings
from remora.model.errors import CodecError, ShardGone
from remora.model.record import CorruptBytes
from remora.model.shard import Origin, Shard
from remora.model.words import duration
from remora.policy.advice import Committed, Observed, Peak, advise, is_off_peak, key_that_makes_it
from remora.ports.store import ShardStore
from remora.replay.steps import told

MOST = Peak(events=30_000, bytes=100_000_000)
"""What one shard should have at most, in a second."""

WINDOW_S = 60.0
"""Rates are means over so long."""

KEYS_LOOKED_AT = 1000


def show_advice(settings: Settings, name: str | None, origin: Origin | None, watch_s: float, *, as_json: bool) -> None:
    """Watch, and print what the busiest minute would take."""

    async def watched() -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        async with app.store_of(settings) as store:
            rows = [await row_named(store, name, origin)] if name else await rows_of(store)
            chosen = [row for row in rows if origin in (None, row.origin)]
            clock = asyncio.get_running_loop().time
            return await advice(store, chosen, watch_s, asyncio.sleep, clock), store.damaged

    with told() as tell:
        tell(f"watching what comes in, for {duration(watch_s)}")
        found, damaged = run_async(watched())
    if as_json:
        print_json(found)
    else:
        _print(found)
    complain(damaged)


async def advice(
    store: ShardStore,
    rows: Iterable[Row],
    watch_s: float,
    pause: Callable[[float], Awaitable[None]],
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
    """What each topic would take, by the busiest of the minutes that `pause` lets go by."""
    rows = list(rows)
    observed = {row.label: Observed() for row in rows}
    windows = max(1, math.ceil(watch_s / WINDOW_S))
    before, before_at = await _committed(store, rows), clock()
    for _ in range(windows):
        await pause(watch_s / windows)
        after, after_at = await _committed(store, rows), clock()
        for label, each in observed.items():
            each.add(before[label], after[label], max(1e-3, after_at - before_at))
        before, before_at = after, after_at
    return [await _advised(store, row, observed[row.label]) for row in rows]


async def _committed(store: ShardStore, rows: Iterable[Row]) -> dict[str, dict[str, Committed]]:
    """What was ever committed to each queue of each topic, with the mean bytes of the entries that wait in it."""
    shards = [shard for row in rows for shard in row.shards]
    ledger, stats = await balances(store, shards), await look_at(store, shards)

    def mean_bytes(shard: Shard) -> float:
        each = stats.get(shard)
        return each.used_bytes / each.entries if each and each.entries else 0.0

    return {
        row.label: {
            shard.queue: Committed(ledger[shard].committed, mean_bytes(shard))
            for shard in row.shards
            if shard in ledger
        }
        for row in rows
    }


async def _advised(store: ShardStore, row: Row, observed: Observed) -> dict[str, Any]:
    found = advise(row.open_shards, list(observed.peaks.values()), MOST)
    hottest = max(
        row.shards,
        key=lambda shard: _ratio(observed.peaks.get(shard.queue, Peak(0, 0))),
        default=None,
    )
    peak = observed.peaks.get(hottest.queue, Peak(0, 0)) if hottest else Peak(0, 0)
    key = await _hot_key(store, hottest) if hottest and found.because else None
    helps = found.because and key is None and row.origin is Origin.REMORA and store.kind == "sqlite"
    return {
        "topic": row.label,
        "origin": str(row.origin),
        "shards": row.open_shards,
        "advised_shards": found.shards,
        "because": found.because,
        "busiest_queue": hottest.queue if hottest else None,
        "peak_events_per_second": peak.events,
        "peak_bytes_per_second": peak.bytes,
        "one_key": key,
        "command": f"remora topic set {shlex.quote(row.label)} --shards {found.shards}" if helps else None,
        "off_peak": is_off_peak(observed.now, observed.peak),
    }


async def _hot_key(store: ShardStore, shard: Shard) -> str | None:
    """The key of most of the oldest entries that wait in a queue, if there is one."""
    keys: list[str] = []
    try:
        async for _, data in store.inspection.dump(shard):
            if isinstance(data, CorruptBytes):
                continue
            try:
                event = decode(data).event
            except CodecError:
                continue
            keys.append((event.bucket_name + b"/" + event.object_key).decode(errors="backslashreplace"))
            if len(keys) >= KEYS_LOOKED_AT:
                break
    except ShardGone:
        return None
    return key_that_makes_it(keys)


def _ratio(peak: Peak) -> float:
    return max(peak.events / MOST.events, peak.bytes / MOST.bytes)


def _print(found: Iterable[dict[str, Any]]) -> None:
    print_table(
        ("TOPIC", "SHARDS", "ADVISED", "BUSIEST QUEUE", "EVENTS/S", "BYTES/S", "WHY"),
        [
            (
                each["topic"],
                each["shards"],
                each["advised_shards"],
                each["busiest_queue"] or "-",
                each["peak_events_per_second"],
                size(each["peak_bytes_per_second"]),
                _why(each),
            )
            for each in found
        ],
        "there is no topic",
    )


def _why(each: Mapping[str, Any]) -> str:
    if not each["because"]:
        return "no queue is too busy"
    if each["one_key"]:
        return f"no number of shards divides the key {each['one_key']}, which most of the entries have"
    when = "now is a good time" if each["off_peak"] else "not now: it is near its peak"
    return f"too many {each['because']} for one queue; {when}" + (f": {each['command']}" if each["command"] else "")
