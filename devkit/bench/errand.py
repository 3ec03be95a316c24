"""A file that another program sends to Kafka for `against`: what is asked, what it costs, and what arrives."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench.backlog import PARTITIONS, PATIENCE_S
from devkit.bench.clusters import BenchError
from devkit.bench.delivered import committed
from devkit.processes.processes import cpu_s, memory_bytes

LOOK_S = 0.02

_EVENT = re.compile(rb'"key":"[^"]*img-(\d{10})\.jpg".*"eventId":"(\d{10})\.', re.DOTALL)


@dataclass
class Arrivals:
    """Events as they stand in a topic, by object and number: how many, copies too many, and those out of order.

    `inversions` is None where nobody promises an order: records without a key lie in any partition.
    """

    events: int = 0
    copies: int = 0
    inversions: int | None = 0
    _seen: set[int] = field(default_factory=set)
    _latest: dict[bytes, int] = field(default_factory=dict)

    def add(self, bodies: Iterable[bytes]) -> None:
        """The next records of a partition, in its order."""
        for body in bodies:
            found = _EVENT.search(body)
            if found is None:
                raise BenchError(f"a record of nobody's: {body[:200]!r}")
            name, number = found[1], int(found[2])
            if number in self._seen:
                self.copies += 1
                continue
            self._seen.add(number)
            self.events += 1
            if self.inversions is not None:
                self.inversions += number < self._latest.get(name, -1)
            self._latest[name] = max(number, self._latest.get(name, -1))


@dataclass(frozen=True)
class Sent:
    """One turn; `cpu_us` for an event, of the sender and of what it sends to."""

    rate: float
    cpu_us: dict[str, float]
    peak_rss_bytes: int


def medians(turns: Sequence[Sent]) -> Sent:
    """The median of each figure of some turns."""
    return Sent(
        statistics.median(turn.rate for turn in turns),
        {of: statistics.median(turn.cpu_us[of] for turn in turns) for of in turns[0].cpu_us},
        round(statistics.median(turn.peak_rss_bytes for turn in turns)),
    )


@dataclass(frozen=True)
class Errand:
    """What one turn sends: a file of so many records, into an empty topic of a broker with this process id.

    `keyed` says whether a line is a key, a tab and a body, or a body alone.
    """

    topic: str
    file: Path
    entries: int
    address: str
    broker: int
    keyed: bool = True

    async def arrivals(self) -> Arrivals:
        """Everything that is committed in the topic."""
        found = Arrivals(inversions=0 if self.keyed else None)
        async for part in committed(self.address, [self.topic], PARTITIONS):
            found.add([record.value for record in part])
        return found

    async def half_arrived(self) -> None:
        """Return when half of the records are in the topic, committed or not."""
        async with self._looking("read_uncommitted") as look:
            while await look() < self.entries / 2:
                pass  # each look asks the broker

    async def unfinished(self) -> None:
        """Refuse a turn whose sender had sent everything before it was killed."""
        async with self._looking("read_uncommitted") as look:
            if await look() >= self.entries:
                raise BenchError("everything had been sent before the SIGKILL: take more --entries")

    async def watched(self, pid: int) -> Sent:
        """A sender that lasts, from the first look that finds some records committed until all are."""
        pids = {"sender": pid, "broker": self.broker}
        began, first = time.monotonic(), 0
        used: dict[str, float] = {}
        async with self._looking("read_committed") as look:
            while True:
                there, now = await look(), time.monotonic()
                if not there:
                    began = now
                elif not used:
                    began, first = (now, there) if there < self.entries else (began, 0)
                    used = {name: cpu_s(of) for name, of in pids.items()}
                if there >= self.entries:
                    break
                await asyncio.sleep(LOOK_S)
        sent = self.entries - first
        cpu_us = {name: (cpu_s(of) - used[name]) * 1e6 / sent for name, of in pids.items()}
        return Sent(sent / (now - began), cpu_us, memory_bytes(pid)[1])

    async def all_arrived(self) -> None:
        """Return when each event is in the topic; some may be there twice."""
        deadline = time.monotonic() + PATIENCE_S
        while (there := (await self.arrivals()).events) < self.entries:
            if time.monotonic() > deadline:
                raise BenchError(f"{there:,} of {self.entries:,} events are in the topic after {PATIENCE_S:.0f} s")
            await asyncio.sleep(LOOK_S)

    @asynccontextmanager
    async def _looking(self, isolation_level: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        """What tells how many records are in the topic now."""
        places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        deadline = time.monotonic() + PATIENCE_S
        async with AIOKafkaConsumer(
            bootstrap_servers=self.address, enable_auto_commit=False, isolation_level=isolation_level
        ) as consumer:

            async def look() -> int:
                there: int = sum((await consumer.end_offsets(places)).values())
                if time.monotonic() > deadline:
                    raise BenchError(f"{there:,} of {self.entries:,} records are sent after {PATIENCE_S:.0f} s")
                return there

            yield look
