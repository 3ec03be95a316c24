"""A topic between offsets that are fixed once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.kafka_source import COMMITTED, UNCOMMITTED, KafkaSource, Offsets, consumer

_LOOK_S = 0.5


@dataclass(frozen=True)
class FreezeWait:
    """How long to wait before the ends are frozen: for `enough` records at most `wait_s`, then until nothing has come
    for `settle_s`, which is again waited for at most `wait_s`."""

    enough: int
    settle_s: float
    wait_s: float


@dataclass(frozen=True)
class Frozen:
    """What is read. `is_quiet` says that nothing came while it was looked at. `undecided` is what lies behind it, from
    the first transaction on that is open: readers of committed records do not see it yet."""

    offsets: Offsets
    is_quiet: bool
    undecided: Offsets = field(default_factory=dict)


def freeze(source: KafkaSource, from_us: int | None, to_us: int | None, patience: FreezeWait) -> Frozen:
    """Fix what is read: from the first record of a time to the last of another, by default all there is.

    The end for readers of committed records is before the first transaction that is open. Raises ReplayError.
    """
    return asyncio.run(_freeze(source, from_us, to_us, patience))


def recall(source: KafkaSource, earlier: Frozen) -> Frozen:
    """The same offsets once more. Raises ReplayRefused when the topic no longer holds all of them."""
    return asyncio.run(_recall(source, earlier))


def around(source: KafkaSource, offsets: Offsets, *, behind: bool) -> list[Offsets]:
    """What else the topic holds before these offsets, and with `behind` after them. Raises ReplayError."""
    return asyncio.run(_around(source, offsets, behind=behind))


async def _freeze(source: KafkaSource, from_us: int | None, to_us: int | None, patience: FreezeWait) -> Frozen:
    async with consumer(source) as (client, places):
        first = await client.beginning_offsets(places)
        if from_us is not None:
            first |= await _at(client, places, from_us, await client.end_offsets(places))
        if to_us is not None:
            last, is_quiet = await _at(client, places, to_us, await client.end_offsets(places)), True
        else:
            last, is_quiet = await _settled(client, places, first, patience)
        offsets = {place.partition: (first[place], max(first[place], last[place])) for place in sorted(first)}
        if source.isolation != COMMITTED:
            return Frozen(offsets, is_quiet)
        undecided = await _undecided(source, client, places)
        # What a time bounds ends before the open transaction, unless it ends where that begins.
        reached = {number: span for number, span in undecided.items() if to_us is None or offsets[number][1] >= span[0]}
        return Frozen(offsets, is_quiet, {number: (offsets[number][1], end) for number, (_, end) in reached.items()})


async def _undecided(source: KafkaSource, client: AIOKafkaConsumer, places: list[Any]) -> Offsets:
    """What of each partition lies behind a transaction that is open.

    The end for readers of committed records, asked after the other one, is short of that only where one was open.
    """
    async with consumer(source, isolation=UNCOMMITTED) as (whole, _):
        most = await whole.end_offsets(places)
    stable = await client.end_offsets(places)
    return {place.partition: (stable[place], most[place]) for place in places if stable[place] < most[place]}


async def _at(client: AIOKafkaConsumer, places: list[Any], at_us: int, ends: Mapping[Any, int]) -> dict[Any, int]:
    """The first offset of a time in each partition, else its end."""
    found = await client.offsets_for_times({place: max(0, at_us // 1000) for place in places})
    return {place: each.offset if (each := found.get(place)) is not None else ends[place] for place in places}


async def _settled(
    client: AIOKafkaConsumer, places: list[Any], first: Mapping[Any, int], patience: FreezeWait
) -> tuple[dict[Any, int], bool]:
    ends: dict[Any, int] = await client.end_offsets(places)
    deadline = time.monotonic() + patience.wait_s
    while sum(ends.values()) - sum(first.values()) < patience.enough and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_S)
        ends = await client.end_offsets(places)
    deadline = time.monotonic() + patience.wait_s
    while True:
        await asyncio.sleep(patience.settle_s)
        before, ends = ends, await client.end_offsets(places)
        if before == ends or time.monotonic() >= deadline:
            return ends, before == ends


async def _recall(source: KafkaSource, earlier: Frozen) -> Frozen:
    async with consumer(source) as (client, places):
        first, last = await client.beginning_offsets(places), await client.end_offsets(places)
    there = {place.partition: (first[place], last[place]) for place in places}
    for number, (begin, end) in earlier.offsets.items():
        least, most = there.get(number, (0, 0))
        if begin < end and not least <= begin <= end <= most:
            now = f"has the offsets {least} to {most} now, and not {begin} to {end}"
            raise ReplayRefused(f"topic {source.topic}: partition {number} {now}")
    kept = {number: span for number, span in sorted(earlier.offsets.items()) if number in there}
    return Frozen(kept, True, earlier.undecided)


async def _around(source: KafkaSource, offsets: Offsets, *, behind: bool) -> list[Offsets]:
    async with consumer(source) as (client, places):
        first, last = await client.beginning_offsets(places), await client.end_offsets(places)
    known = {place: offsets[place.partition] for place in places if place.partition in offsets}
    found: list[Offsets] = [{place.partition: (min(first[place], begin), begin) for place, (begin, _) in known.items()}]
    if behind:
        found.append({place.partition: (end, max(last[place], end)) for place, (_, end) in known.items()})
    return [each for each in found if any(begin < end for begin, end in each.values())]
