"""`remora topic stats --advice`: how many shards a topic would take, by what comes into its queues meanwhile and by the
peaks of its last days.
"""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from remora import app
from remora.cli.output import print_json, print_table, run_async, size
from remora.cli.rows import Row, balances, complain, look_at, row_named, rows_of
from remora.cli.steps import told
from remora.codec.event_entry import decode
from remora.config import Settings
from remora.model.errors import CodecError, ShardGone
from remora.model.peaks import KEPT_HOURS
from remora.model.record import CorruptBytes
from remora.model.shard import Origin, Shard
from remora.model.words import duration, several
from remora.policy.queues.advice import (
    WEEK_DAYS,
    WINDOW_S,
    Committed,
    History,
    Observed,
    Peak,
    ShardBounds,
    advise,
    is_off_peak,
    key_that_makes_it,
)
from remora.ports.store import ShardStore

KEYS_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class ArrivalWatch:
    """For how many seconds to watch, and by which clocks; `hour` is that of now, counted from 1970."""

    seconds: float
    hour: int
    pause: Callable[[float], Awaitable[None]]
    clock: Callable[[], float]


def show_advice(settings: Settings, name: str | None, origin: Origin | None, watch_s: float, *, as_json: bool) -> None:
    """ArrivalWatch, and print what the busiest minute would take, of now and of the last days."""

    async def watched() -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        async with app.store_of(settings) as store:
            rows = [await row_named(store, name, origin)] if name else await rows_of(store)
            chosen = [row for row in rows if origin in (None, row.origin)]
            clock = asyncio.get_running_loop().time
            watch = ArrivalWatch(watch_s, int(time.time() // 3600), asyncio.sleep, clock)
            return await advice(store, chosen, settings, watch), store.damaged

    with told() as tell:
        tell(f"watching what comes in, for {duration(watch_s)}")
        found, damaged = run_async(watched())
    if as_json:
        print_json(found)
    else:
        _print(found)
    complain(damaged.values())


async def advice(
    store: ShardStore, rows: Iterable[Row], settings: Settings, watch: ArrivalWatch
) -> list[dict[str, Any]]:
    """What each topic would take, by the busiest of the minutes that `watch` lets go by, and of those that are kept."""
    rows, asked = list(rows), settings.advice
    commit_s = asked.commit_latency_s if store.kind == "rados" else 0.0  # elsewhere no shard commits for itself
    bounds = ShardBounds(Peak(asked.events, asked.bytes), settings.topics.default_shards, commit_s)
    observed = {row.label: Observed() for row in rows}
    windows = max(1, math.ceil(watch.seconds / WINDOW_S))
    before, before_at = await _committed(store, rows), watch.clock()
    for _ in range(windows):
        await watch.pause(watch.seconds / windows)
        after, after_at = await _committed(store, rows), watch.clock()
        for label, each in observed.items():
            each.add(before[label], after[label], max(1e-3, after_at - before_at))
        before, before_at = after, after_at
    return [await _advised(store, row, observed[row.label], bounds, watch.hour) for row in rows]


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


async def _advised(store: ShardStore, row: Row, observed: Observed, bounds: ShardBounds, hour: int) -> dict[str, Any]:
    shards = row.open_shards
    history = History(hour, await store.peaks.kept(row.topic, hour - KEPT_HOURS + 1) if row.topic is not None else ())
    found = advise(shards, list(observed.peaks.values()), bounds, history)
    hottest = max(
        row.shards,
        key=lambda shard: observed.peaks.get(shard.queue, Peak(0, 0)).ratio(bounds.most),
        default=None,
    )
    peak = observed.peaks.get(hottest.queue, Peak(0, 0)) if hottest else Peak(0, 0)
    is_short = found.because in ("events", "bytes")
    key = await _hot_key(store, hottest) if hottest and is_short else None
    helps = found.shards != shards and key is None and row.origin is Origin.REMORA
    known, above = history.week(shards, bounds.most)
    day = [observed.peak, *(float(each.events) for each in history.days(shards).get(0, ()))]
    busiest = history.busiest(bounds.most, WEEK_DAYS if is_short else KEPT_HOURS // 24)
    return {
        "topic": row.label,
        "origin": str(row.origin),
        "shards": shards,
        "advised_shards": found.shards,
        "because": found.because,
        "busiest_queue": hottest.queue if hottest else None,
        "peak_events_per_second": peak.events,
        "peak_bytes_per_second": peak.bytes,
        "one_key": key,
        "command": f"remora topic set {shlex.quote(row.label)} --shards {found.shards}" if helps else None,
        "off_peak": is_off_peak(observed.now, max(day)),
        "days_known": known,
        "days_above": above,
        "busiest_hour": datetime.fromtimestamp(busiest.hour * 3600, UTC).isoformat() if busiest else None,
        "busiest_hour_shards": busiest.shards if busiest else None,
        "busiest_hour_events_per_second": busiest.events if busiest else None,
        "busiest_hour_bytes_per_second": busiest.bytes if busiest else None,
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
    """Why the number is advised, on how many days it would have helped, and what to type."""
    because, known, command = each["because"], each["days_known"], each["command"]
    if because in ("", "quiet"):
        if because:
            return f"fewer would do, by {WEEK_DAYS} days and more ({_busiest(each)}): {command}"
        kept = "" if known == WEEK_DAYS else f"; {several(known, 'day', 'days')} of history"
        return f"no queue is too busy{kept}"
    if each["one_key"]:
        return f"no number of shards divides the key {each['one_key']}, which most of the entries have"
    when = "now is a good time" if each["off_peak"] else "not now: it is near its peak"
    return f"too many {because} for one queue{_how_often(each)}; {when}" + (f": {command}" if command else "")


def _how_often(each: Mapping[str, Any]) -> str:
    """On how many days it was too many; empty where only the minutes that were watched had too many."""
    above, known = each["days_above"], each["days_known"]
    if not above:
        return "" if known == WEEK_DAYS else f" ({several(known, 'day', 'days')} of history)"
    kept = several(known, "day that is kept", "days that are kept")
    days = f"the last {WEEK_DAYS} days" if known == WEEK_DAYS else kept
    return f" on {above} of {days} ({_busiest(each)})"


def _busiest(each: Mapping[str, Any]) -> str:
    """The busiest hour that is kept, as `peak 9,000 events/s a shard on 2026-11-26 at 14:00 UTC`."""
    hour = datetime.fromisoformat(each["busiest_hour"])
    events, nbytes = each["busiest_hour_events_per_second"], size(each["busiest_hour_bytes_per_second"])
    rate = f"{nbytes}/s" if each["because"] == "bytes" else f"{events:,} events/s"
    return f"peak {rate} a shard on {hour:%Y-%m-%d} at {hour:%H:%M} UTC"
