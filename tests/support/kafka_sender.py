"""What the engine does with a route, in small: lanes in order, retries from the failed record on."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from devkit.clusters.kafka import Kafka
from devkit.waits import until
from remora.config import KafkaSettings
from remora.endpoints.kafka import ExactKafkaRoute, KafkaEndpoint
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.model.record import Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import Batch, Endpoint, Route

INCARNATION = "inc"

PATIENT = KafkaSettings(delivery_timeout_s=60, connect_timeout_s=30, transaction_timeout_s=90)
"""Where nothing is to time out, however busy the machine is."""

ANYWHERE = replace(PATIENT, ca_directories="/", client_files="/")
"""A test's files lie in temporary directories."""

OWN_SHARD = Shard(f"shard-{os.getpid()}")
"""Its transactions are this process's: others may share the broker."""


class Watcher:
    """Remembers what an endpoint told."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.retired: list[str] = []
        self.partitions: list[tuple[str, int, int]] = []
        self.assumed: list[tuple[str, int]] = []
        self.exact_open = 0
        self.most_exact_open = 0
        self.outcomes: list[str] = []
        self.defects: list[str] = []

    async def wait_for_retirement(self, before: int) -> None:
        """Return when more than this many producers were retired."""
        await until(lambda: len(self.retired) > before, "a producer is retired")

    def producer_opened(self, cluster: str) -> None:
        self.opened += 1

    def producer_retired(self, cluster: str, reason: str) -> None:
        self.retired.append(reason)

    def producer_closed(self, cluster: str) -> None:
        self.closed += 1

    def exact_opened(self, cluster: str) -> None:
        self.exact_open += 1
        self.most_exact_open = max(self.most_exact_open, self.exact_open)

    def exact_closed(self, cluster: str) -> None:
        self.exact_open -= 1

    def transaction_ended(self, cluster: str, outcome: str, seconds: float) -> None:
        self.outcomes.append(outcome)

    def partitions_changed(self, cluster: str, topic: str, before: int, after: int) -> None:
        self.partitions.append((topic, before, after))

    def crashed(self, what: str) -> None:
        self.defects.append(what)

    def limit_assumed(self, cluster: str, topic: str, limit_bytes: int) -> None:
        self.assumed.append((topic, limit_bytes))


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
async def endpoint(watcher: Watcher) -> AsyncIterator[KafkaEndpoint]:
    """A running endpoint that reports to the watcher."""
    async with KafkaEndpoint(PATIENT, watcher) as running:
        yield running


def target(kafka: Kafka, topic: str, args: str = "") -> Target:
    """A topic of this broker, as remora's own topics name it."""
    return Target(f"kafka://{kafka.address}", args, topic)


def make_records(shard: int, count: int, *, start: int = 0, keys: int = 20, size: int = 100) -> list[Record]:
    """Records of a shard whose bodies tell their place among those of their key; keys belong to one shard."""
    return [
        Record(
            key=b"bucket/%d-%d" % (shard, number % keys),
            body=b"%d" % number + b"," + b"x" * size,
            event_id=b"%d.%d" % (shard, number),
            created_ns=0,
            position=b"0/%d" % number,
            next_position=b"0/%d" % (number + 1),
            ordinal=number - start,
        )
        for number in range(start, start + count)
    ]


async def push_all(route: Route, records: Sequence[Record]) -> list[tuple[Record, str]]:
    """Pack and push at once, every lane beside the others; returns what was refused."""
    batches, refused = route.pack(records)
    await push_lanes(route, batches)
    return refused


async def push_in_both_modes(endpoint: KafkaEndpoint, shard: Shard, meant: Target, records: Sequence[Record]) -> None:
    """Push the first half at least once, and commit the other one in a transaction."""
    middle = len(records) // 2
    async with endpoint.route(shard, INCARNATION, meant) as route:
        await push_all(route, records[:middle])
    async with endpoint.exact(shard, INCARNATION, meant) as exact:
        batches, refused = exact.pack(records[middle:])
        assert refused == []
        await exact.commit(batches, records[-1].next_position)


async def push_lanes(route: Route, batches: Sequence[Batch]) -> None:
    """Push batches, those of a lane one after the other. Raises the first failure when all have come back."""
    lanes: defaultdict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        lanes[batch.lane].append(batch)

    async def run(lane: list[Batch]) -> None:
        for batch in lane:
            await route.push(batch)

    outcomes = await asyncio.gather(*map(run, lanes.values()), return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


class ShardSender:
    """Delivers one shard's records with up to two listings under way, for as long as it takes."""

    def __init__(self, endpoint: Endpoint, name: str, target: Target) -> None:
        self.endpoint = endpoint
        self.shard = Shard(name)
        self.target = target
        self.arrived: set[bytes] = set()
        self.failures: list[EndpointUnavailable] = []

    async def wait_for(self, count: int) -> None:
        """Return when this many have arrived."""
        await until(lambda: len(self.arrived) >= count, f"{count} have arrived")

    async def send(self, records: Sequence[Record], page: int = 200) -> None:
        """Return when everything has arrived."""
        while left := [each for each in records if each.position not in self.arrived]:
            try:
                async with self.endpoint.route(self.shard, INCARNATION, self.target) as route:
                    await self._session(route, left, page)
            except EndpointUnavailable as exc:
                self.failures.append(exc)
                await asyncio.sleep(0.05)

    async def _session(self, route: Route, records: Sequence[Record], page: int) -> None:
        lanes = _Lanes(route, self.arrived)
        for at in range(0, len(records), page):
            if lanes.failed or route.stale:
                break
            batches, refused = route.pack(records[at : at + page])
            assert refused == []
            await lanes.add(batches)
        await lanes.finish()


class _Lanes:
    """The batches of a session: one of each lane is under way at a time, and none begins after a failure."""

    def __init__(self, route: Route, arrived: set[bytes]) -> None:
        """Adds the positions that arrive to `arrived`."""
        self._route, self._arrived = route, arrived
        self._waiting: defaultdict[int, deque[Batch]] = defaultdict(deque)
        self._running: dict[int, asyncio.Task[None]] = {}
        self.failed: list[BaseException] = []

    async def add(self, batches: Sequence[Batch]) -> None:
        """Return when there is room for the next page."""
        for batch in batches:
            self._waiting[batch.lane].append(batch)
        for lane in self._waiting:
            if lane not in self._running or self._running[lane].done():
                self._running[lane] = asyncio.create_task(self._run(lane))
        while sum(map(len, self._waiting.values())) > 2 * len(self._waiting) and not self.failed:
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED, timeout=0.01)

    async def finish(self) -> None:
        """Return when everything has arrived. Raises the first failure, when nothing is under way any more."""
        await asyncio.gather(*self._running.values())
        for lane, left in self._waiting.items():
            if left and not self.failed:
                await self._run(lane)
        if self.failed:
            raise self.failed[0]

    async def _run(self, lane: int) -> None:
        while self._waiting[lane] and not self.failed:
            batch = self._waiting[lane].popleft()
            try:
                await self._route.push(batch)
            except EndpointError as exc:
                self.failed.append(exc)
                self._arrived.update(each.position for each in batch.records[: exc.arrived])
            except Exception as exc:
                self.failed.append(exc)
            else:
                self._arrived.update(each.position for each in batch.records)


class ExactSender:
    """What the engine does with a route in transactions, in small: from where the position says, until all is sent."""

    def __init__(self, endpoint: KafkaEndpoint, name: str, target: Target) -> None:
        self.endpoint = endpoint
        self.shard = Shard(name)
        self.target = target
        self.at = 0
        self.failures: list[EndpointError] = []

    async def send(self, records: Sequence[Record], size: int = 50) -> None:
        """Return when everything is committed."""
        while self.at < len(records):
            try:
                async with self.endpoint.exact(self.shard, INCARNATION, self.target) as route:
                    self.at = int((route.reached or b"0/0").partition(b"/")[2])
                    await self._session(route, records, size)
            except EndpointError as exc:  # a broker that begins may not know the topic or the transaction yet
                self.failures.append(exc)
                await asyncio.sleep(0.05)

    async def _session(self, route: ExactKafkaRoute, records: Sequence[Record], size: int) -> None:
        while self.at < len(records):
            part = records[self.at : self.at + size]
            batches, _ = route.pack(part)
            await route.commit(batches, part[-1].next_position)
            self.at += len(part)


def verdict(read: Sequence[Any], sent: Sequence[Record]) -> tuple[set[bytes], int, list[bytes]]:
    """Of a topic's contents: event ids lost, copies too many, keys whose first copies are out of order."""
    seen: set[bytes] = set()
    last: dict[bytes, int] = {}
    doubled, moved = 0, []
    for record in read:
        event_id = dict(record.headers)["remora-event-id"]
        if event_id in seen:
            doubled += 1
            continue
        seen.add(event_id)
        number = int(record.value.partition(b",")[0])
        if number <= last.get(record.key, -1):
            moved.append(record.key)
        last[record.key] = number
    return {each.event_id for each in sent} - seen, doubled, moved
