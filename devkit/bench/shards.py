"""Why topics are sharded: events stored by many writers into topics of one queue and of several, on both stores.

RADOS: each writer is a thread of one client that reserves and commits one event at a time with radosgw's own calls, on
queues that no radosgw looks at; one commit below is both calls. Embedded: each writer is a task that publishes one
event at a time through the store's own group commit, without HTTP; one commit is one publish, with its sync. An event
has a random key, whose hash chooses the queue. Writers, OSDs and disk share this host's processors.

`met` is the share of commits that began while another writer's was under way on the same queue. Whether
one then waits for the other, inside of the OSD or of the file's writer, cannot be seen from outside: it is the most
that can have waited.
`slower` is the median of a commit beside that of a lone writer into one queue of the same store.

With --commit-latency the OSDs' syncs wait, so that waiting is the limit and not this host's processors; see
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from devkit.bench import commit_latency, disk
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.embedded import NOBODY, own_topic
from devkit.bench.writers import new_queues, random_key, writing
from devkit.processes.processes import spent
from remora.codec.shard_hash import shard
from remora.config import SqliteSettings, parse_duration
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore

TITLE = "shards: events stored by many writers into one queue and into several, on both stores"

WARM_UP_S = 0.3
WRITERS, QUEUES = [1, 8, 32, 128], [1, 2, 4, 11, 64]
"""What is measured unless the options say otherwise."""


@dataclass
class Account:
    """What the writers of one turn have done; any number of threads may enter commits."""

    under_way: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    took_s: list[float] = field(default_factory=list)
    met: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, queue: int) -> bool:
        """A writer begins to store in this queue; whether another one does so already."""
        with self._lock:
            others = self.under_way[queue]
            self.under_way[queue] = others + 1
        return others > 0

    def end(self, queue: int, took_s: float, met: bool) -> None:
        """It is stored."""
        with self._lock:
            self.under_way[queue] -= 1
            self.took_s.append(took_s)
            self.met += met

    def take(self) -> tuple[list[float], int]:
        """The times of all commits since the last call, and how many of them met another."""
        with self._lock:
            taken = self.took_s, self.met
            self.took_s, self.met = [], 0
        return taken


@dataclass(frozen=True)
class Turn:
    """One measurement. `processors` says how many were busy, by whom."""

    store: str
    writers: int
    queues: int
    rate: float
    p50_s: float
    p99_s: float
    met: float
    processors: dict[str, float]


@dataclass(frozen=True)
class Row:
    """The medians of a combination's turns. `ratio` is to one queue with as many writers.

    `cpu_us` is the processor time of writers and OSDs for an event.
    """

    store: str
    writers: int
    queues: int
    rate: float
    ratio: float
    p50_s: float
    p99_s: float
    met: float
    slower: float
    cpu_us: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench shards` understands."""
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each is counted (default: 3)")
    parser.add_argument("--rounds", type=int, default=1, help="times that all is measured (default: 1)")
    parser.add_argument("--writers", type=_numbers, help="default: 1,8,32,128; with --commit-latency: 64")
    parser.add_argument("--queues", type=_numbers, help="default: 1,2,4,11,64; with --commit-latency: 1,2,4,11,32,64")
    parser.add_argument("--payload", type=int, default=630, help="bytes of an entry (default: 630)")
    parser.add_argument("--store", choices=["sqlite", "rados", "both"], default="both", help="default: both")
    parser.add_argument("--directory", type=Path, help="where the embedded store lies (default: a temporary one)")
    parser.add_argument(
        "--commit-latency",
        type=_durations,
        metavar="TIMES",
        help="such as 1ms,2ms,5ms: on OSDs whose commits take so long, beside requests to a radosgw",
    )
    parser.add_argument(
        "--nice", type=int, default=0, help="with --commit-latency, of all measured processes; -20 on a shared host"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    if options.commit_latency:
        return commit_latency.run(options)
    turns: list[Turn] = []
    figures: dict[str, Any] = {}
    if options.store != "rados":
        folder = Path(tempfile.mkdtemp(prefix="remora-bench-", dir=options.directory))
        try:
            figures["disk_syncs_per_s"] = disk.syncs_per_s(folder)
            print(f"the disk syncs {figures['disk_syncs_per_s']:,.0f} times a second, one after the other", flush=True)
            turns += _all_turns(options, lambda *what: asyncio.run(_embedded(options, folder, *what)))
        finally:
            shutil.rmtree(folder)
    if options.store != "sqlite":
        with running_clusters(options.name, options.keep, ["ceph"]) as clusters:
            turns += _all_turns(options, lambda *what: _rados(options, clusters, *what))
    rows = table(turns)
    print_table(rows)
    return {**figures, "turns": [asdict(each) for each in turns], "rows": [asdict(each) for each in rows]}


def table(turns: Sequence[Turn]) -> list[Row]:
    """A row for each combination, of the medians of its turns, in the order in which they were first measured.

    Where one queue, or a lone writer, was not measured, what would be compared with it is nan.
    """
    by_what: dict[tuple[str, int, int], list[Turn]] = {}
    for turn in turns:
        by_what.setdefault((turn.store, turn.writers, turn.queues), []).append(turn)

    def median(what: tuple[str, int, int], figure: Callable[[Turn], float]) -> float:
        return statistics.median(map(figure, by_what[what])) if what in by_what else float("nan")

    rows = []
    for what in by_what:
        store, writers, queues = what
        rate, p50_s = median(what, lambda turn: turn.rate), median(what, lambda turn: turn.p50_s)
        rows.append(
            Row(
                store,
                writers,
                queues,
                rate,
                rate / median((store, writers, 1), lambda turn: turn.rate),
                p50_s,
                median(what, lambda turn: turn.p99_s),
                median(what, lambda turn: turn.met),
                p50_s / median((store, 1, 1), lambda turn: turn.p50_s),
                median(what, _cpu_us),
            )
        )
    return rows


def _cpu_us(turn: Turn) -> float:
    return 1e6 * sum(count for who, count in turn.processors.items() if who != "others") / turn.rate


def print_table(rows: Sequence[Row]) -> None:
    """All rows, as a table of Markdown."""
    print("| store | writers | queues | events/s | ratio to 1 queue | p50, ms | p99, ms | met | slower | CPU, µs |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.store} | {row.writers} | {row.queues} | {row.rate:,.0f} | {row.ratio:.2f} | "
            f"{row.p50_s * 1e3:.2f} | {row.p99_s * 1e3:.2f} | {row.met:.0%} | {row.slower:.1f} | {row.cpu_us:,.0f} |"
        )


def _numbers(text: str) -> list[int]:
    numbers = [int(each) for each in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: each is to be 1 or more")
    return numbers


def _durations(text: str) -> list[float]:
    try:
        return [parse_duration(each) for each in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def _all_turns(options: argparse.Namespace, measure: Callable[[int, int], Turn]) -> Iterator[Turn]:
    """All combinations, those of the same writers side by side."""
    for _, writers, queues in itertools.product(
        range(options.rounds), options.writers or WRITERS, options.queues or QUEUES
    ):
        turn = measure(writers, queues)
        busy = "  ".join(f"{who} {count:.2f}" for who, count in turn.processors.items())
        print(
            f"{turn.store:6}  {writers:4} writers  {queues:3} queues  {turn.rate:9,.0f} events/s   "
            f"p50 {turn.p50_s * 1e3:.2f} ms, p99 {turn.p99_s * 1e3:.2f} ms   met {turn.met:.0%}   processors: {busy}",
            flush=True,
        )
        yield turn


class _Window:
    """A time in which commits count, and who used the processors meanwhile."""

    def __init__(self, account: Account, pids: dict[str, int]) -> None:
        self._account, self._pids = account, pids
        account.take()
        self._cpu, self._began = spent(pids), time.monotonic()

    def close(self, store: str, writers: int, queues: int) -> Turn:
        seconds = time.monotonic() - self._began
        (took_s, met), now = self._account.take(), spent(self._pids)
        if len(took_s) < 2:
            raise BenchError(f"{store}, {writers} writers, {queues} queues: nothing was stored")
        used = {who: (now[who] - self._cpu[who]) / seconds for who in now}
        machine, writing = used.pop("machine"), used.pop("bench")
        osds = sum(used.values())
        processors = {"writers": writing, "osds": osds, "others": max(0.0, machine - writing - osds)}
        cuts = statistics.quantiles(took_s, n=100)
        rate, share = len(took_s) / seconds, met / len(took_s)
        return Turn(store, writers, queues, rate, cuts[49], cuts[98], share, processors)


# ---------------------------------------------------------------------------------------- embedded


async def _embedded(options: argparse.Namespace, folder: Path, writers: int, queues: int) -> Turn:
    directory, account = folder / uuid.uuid4().hex, Account()
    payload = os.urandom(options.payload)
    async with SqliteStore(SqliteSettings(directory=str(directory), queue_bytes=1 << 30)) as store:
        topic = await store.own_topics.create(own_topic("bench", NOBODY, queues))

        async def write() -> None:
            while True:
                key = random_key()
                queue = shard(key, queues)
                met, began = account.begin(queue), time.monotonic()
                await store.ingest.publish(topic, [RoutedEvent(queue, key, payload)])
                account.end(queue, time.monotonic() - began, met)

        tasks = [asyncio.create_task(write(), name=f"writer {number}") for number in range(writers)]
        try:
            await asyncio.sleep(WARM_UP_S)
            window = _Window(account, {})
            await asyncio.sleep(options.seconds)
            turn = window.close("sqlite", writers, queues)
        finally:
            for task in tasks:
                task.cancel()
            failed = [each for each in await asyncio.gather(*tasks, return_exceptions=True) if _is_failure(each)]
    shutil.rmtree(directory)
    if failed:
        raise BenchError(f"storing failed: {failed[0]}")
    return turn


def _is_failure(outcome: object) -> bool:
    return isinstance(outcome, Exception)


# ------------------------------------------------------------------------------------------- RADOS


def _rados(options: argparse.Namespace, clusters: Clusters, writers: int, queues: int) -> Turn:
    osds = {name: pid for name, pid in clusters.ceph["pids"].items() if name.startswith("osd.")}
    account = Account()
    with clusters.queue_objects() as ioctx, new_queues(ioctx, queues, options.payload) as made:

        def store(_: int) -> bool:
            queue = shard(random_key(), queues)
            met, began = account.begin(queue), time.monotonic()
            made.reserve(queue)
            made.commit(queue)
            account.end(queue, time.monotonic() - began, met)
            return True

        with writing(writers, store) as threads:
            threads.watch(WARM_UP_S)
            window = _Window(account, osds)
            threads.watch(options.seconds)
            return window.close("rados", writers, queues)
