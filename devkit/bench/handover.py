"""How long a shard is not delivered when it changes hands, as the broker's own time stamps show.

Two daemons, which stand for two hosts, deliver one topic of one store under a steady load. Then: one of them
is told to end, and hands its shards over; it comes back; a worker of the one that holds most is killed with SIGKILL;
and the whole of such a one is frozen with SIGSTOP for longer than the lease, as a host that falls silent. The lease is
short here. The gap of a shard is the longest time between two of its records in the broker around that moment; the
first row is what the load itself gives, when nothing happens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import aiohttp
from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench import programs
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import kafka_topics
from devkit.bench.embedded import Embedded
from devkit.bench.load import Load
from devkit.processes.processes import family, freeze, thaw
from remora.config import RadosSettings
from remora.model.ingest import RoutedEvent
from remora.model.topic import Topic
from remora.ports.producer import IngestStore

T = TypeVar("T")

TITLE = "handover: how long a shard is not delivered when it changes hands"

SHARDS = 11
LEASE_S = 6.0
_TIMES = """
[ownership]
host_id = "{host}"
lease = "6s"
renew_interval = "1500ms"
trust_margin = "1s"

[supervisor]
workers = 2
watchdog = "3s"
run_directory = "{folder}/run"
"""

PATIENCE_S = 180.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench handover` understands."""
    parser.add_argument("--store", choices=("sqlite", "rados"), default="sqlite", help="default: sqlite")
    parser.add_argument("--pace", type=float, default=20.0, help="events a second in each shard (default: 20)")
    parser.add_argument("--quiet", type=float, default=4.0, help="seconds of nothing before each turn (default: 4)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each kind (default: 1)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    kinds = ["kafka", "ceph"] if options.store == "rados" else ["kafka"]
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, kinds) as clusters,
    ):
        return asyncio.run(_run(clusters, options, Path(folder)))


async def _run(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    name, address = f"bench-{uuid.uuid4().hex[:8]}", clusters.kafka["bootstrap"]
    rados = clusters.place_of_its_own(name) if options.store == "rados" else None
    hosts = [_Host(folder, number, rados) for number in (1, 2)]
    windows: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        stamped = {"message.timestamp.type": "LogAppendTime"}
        await stack.enter_async_context(kafka_topics(address, [name], SHARDS, stamped))
        (topic,) = await hosts[0].embedded.make_topics([name], f"kafka://{address}", SHARDS)
        for host in hosts:
            stack.callback(host.close)
            await host.start()
        store = await stack.enter_async_context(hosts[0].embedded.store())
        async with _steady(store, topic, options.pace) as stored:
            for _ in range(options.rounds):
                for kind, turn in _TURNS.items():
                    await asyncio.sleep(options.quiet)
                    began = time.time()
                    await turn(hosts)
                    windows[kind].append((began, time.time()))
        times = await _delivered(address, name, stored)
    figures = {kind: [_gaps(times, *window) for window in each] for kind, each in windows.items()}
    for kind, each in figures.items():
        _print_gaps(kind, each)
    return {"store": options.store, "lease_s": LEASE_S, "pace": options.pace, "gaps_s": figures}


# ----------------------------------------------------------------------------------------------- hosts


class _Host:
    """A daemon on the common store, started and hurt."""

    def __init__(self, folder: Path, number: int, rados: RadosSettings | None) -> None:
        place = folder / f"host{number}"
        place.mkdir()
        times = _TIMES.format(host=place.name, folder=place)
        self.embedded = Embedded(place, directory=folder / "store", more=times, rados=rados)
        self._life = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it; returns when it serves."""
        self._process = self._life.enter_context(programs.remora_on(self.embedded))
        await programs.listening(self._process, self.embedded)

    @property
    def is_running(self) -> bool:
        """Whether there is a daemon."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Tell it to end, and wait for its drain."""
        self.thaw()
        self._life.close()

    async def held(self) -> int:
        """How many shards it holds; 0 when it cannot be asked."""
        return sum([shards for _, shards in await self._workers()])

    async def kill_worker(self) -> None:
        """SIGKILL the worker that holds most."""
        workers = await _until(self._workers, "no workers are told of")
        os.kill(max(workers, key=lambda each: each[1])[0], signal.SIGKILL)

    async def _workers(self) -> list[tuple[int, int]]:
        """Process id and number of shards of each worker; none when it cannot be asked."""
        try:
            async with asyncio.timeout(30):
                status = await self.embedded.status()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return []
        return [(each["pid"], each["shards"]) for each in status["workers"]]

    async def freeze(self) -> None:
        """Stop all its processes."""
        await freeze(self._all())

    def thaw(self) -> None:
        """Let all its processes go on."""
        thaw(self._all())

    def _all(self) -> list[int]:
        if self._process is None or not self.is_running:
            return []
        return family(self._process.pid)


async def _busiest(hosts: Sequence[_Host]) -> _Host:
    held = [(await host.held(), -number) for number, host in enumerate(hosts)]
    return hosts[-max(held)[1]]


async def _until_held(hosts: Sequence[_Host]) -> None:
    """Return when these hosts hold all shards."""

    async def are_held() -> bool:
        return sum([await host.held() for host in hosts]) >= SHARDS

    await _until(are_held, "not all shards are held")
    await asyncio.sleep(2)


async def _until(condition: Callable[[], Awaitable[T]], otherwise: str) -> T:
    """The condition's first true answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := await condition()):
        if time.monotonic() > deadline:
            raise BenchError(f"{otherwise} after {PATIENCE_S:.0f} s")
        await asyncio.sleep(0.1)
    return answer


# ----------------------------------------------------------------------------------------------- turns


async def _nothing(hosts: Sequence[_Host]) -> None:
    await asyncio.sleep(3)


async def _left(hosts: Sequence[_Host]) -> None:
    """A daemon is told to end; it comes back in the next turn."""
    leaving = await _busiest(hosts)
    await asyncio.to_thread(leaving.close)
    await _until_held([host for host in hosts if host is not leaving])


async def _joined(hosts: Sequence[_Host]) -> None:
    for host in hosts:
        if not host.is_running:
            await host.start()
    await asyncio.sleep(6)
    await _until_held(hosts)


async def _killed(hosts: Sequence[_Host]) -> None:
    await (await _busiest(hosts)).kill_worker()
    await asyncio.sleep(3)  # a replacement starts, and takes its share
    await _until_held(hosts)


async def _silent(hosts: Sequence[_Host]) -> None:
    frozen = await _busiest(hosts)
    await frozen.freeze()
    try:
        await asyncio.sleep(LEASE_S)  # what the others say they hold may be from before a move that was under way
        await _until_held([host for host in hosts if host is not frozen])
    finally:
        frozen.thaw()
    await asyncio.sleep(3)


_TURNS: Mapping[str, Callable[[Sequence[_Host]], Any]] = {
    "nothing": _nothing,
    "daemon told to end": _left,
    "daemon joined": _joined,
    "worker killed": _killed,
    "host silent": _silent,
}


# ------------------------------------------------------------------------------------------------ load


@asynccontextmanager
async def _steady(store: IngestStore, topic: Topic, pace: float) -> AsyncIterator[list[int]]:
    """Events for every shard at this pace while the block runs; yields a list that then holds how many."""
    stored: list[int] = []
    over = asyncio.Event()

    async def publish() -> None:
        load, first = Load(0, topic.target, 1000), 0
        while not over.is_set():
            payloads = load.entries(first, SHARDS)
            placed = [RoutedEvent(n % SHARDS, b"bench:%d" % n, payload) for n, payload in enumerate(payloads, first)]
            await store.ingest.publish(topic, placed)
            first += SHARDS
            with suppress(TimeoutError):
                async with asyncio.timeout(1 / pace):
                    await over.wait()
        stored.append(first)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        yield stored
        over.set()


async def _delivered(address: str, name: str, stored: Sequence[int]) -> Mapping[bytes, list[float]]:
    """When the broker got each record, by shard, when all events are there."""
    times: defaultdict[bytes, list[float]] = defaultdict(list)
    seen: set[bytes] = set()
    places = [TopicPartition(name, number) for number in range(SHARDS)]
    deadline = time.monotonic() + PATIENCE_S
    async with AIOKafkaConsumer(
        bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(places)
        while len(seen) < stored[0]:
            if time.monotonic() > deadline:
                raise BenchError(f"{len(seen)} of {stored[0]} events were delivered")
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    headers = dict(record.headers)
                    seen.add(headers["remora-event-id"])
                    times[headers["remora-shard"]].append(record.timestamp / 1000)
    return {shard: sorted(each) for shard, each in times.items()}


def _gaps(times: Mapping[bytes, Sequence[float]], began: float, ended: float) -> list[float]:
    """The longest gap of each shard in this time, the longest first."""
    return sorted(
        [max(b - a for a, b in pairwise(each) if b > began and a < ended) for each in times.values()], reverse=True
    )


def _print_gaps(kind: str, gaps: Sequence[Sequence[float]]) -> None:
    worst = [each[0] for each in gaps]
    middle = median(median(each) for each in gaps)
    print(f"{kind:20} longest gap of any shard {max(worst):6.2f} s   of the median shard {middle:6.2f} s")
