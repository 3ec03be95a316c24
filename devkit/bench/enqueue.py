"""What radosgw's side of a persistent notification costs: a reservation and a commit for each event.

That is all that radosgw asks of the cluster before it answers the client whose request caused the event, and so the
yardstick for taking events in. One event each, as radosgw does, from threads of one client, on queues of their own
that no radosgw looks at. The programs share this host's processors.
"""

from __future__ import annotations

import argparse
import itertools
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import rados

from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.processes.processes import preferred, spent
from remora.codec.queue_ops import encode_commit, encode_init, encode_reserve

TITLE = "enqueue-radosgw: events reserved and committed one by one, as radosgw does"

RING_BYTES = 128_000_000
CONTENTS = 64
"""Different payloads that are used in turn."""


@dataclass(frozen=True)
class Enqueued:
    """Events that were reserved and committed; `cpu_s_per_1000` of the OSDs, and of the threads that asked them."""

    events: int
    seconds: float
    rate: float
    cpu_s_per_1000: dict[str, float]
    others: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench enqueue-radosgw` understands."""
    parser.add_argument("--seconds", type=float, default=10.0, help="how long is counted (default: 10)")
    parser.add_argument("--queues", type=int, default=11, help="queues, used in turn (default: 11)")
    parser.add_argument("--threads", type=int, default=32, help="events under way at a time (default: 32)")
    parser.add_argument("--payload", type=int, default=630, help="bytes of an entry (default: 630)")
    parser.add_argument("--nice", type=int, default=0, help="of all measured processes; -20 on a host that is shared")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with running_clusters(options.name, options.keep, ["ceph"]) as clusters:
        found = measure(clusters, options.seconds, options.queues, options.threads, options.payload, options.nice)
    print_enqueued(found)
    return {"enqueued": asdict(found)}


def measure(
    clusters: Clusters, seconds: float, queues: int = 11, threads: int = 32, payload: int = 630, niceness: int = 0
) -> Enqueued:
    """Reserve and commit for so long, after a second that does not count."""
    osds = {name: pid for name, pid in clusters.ceph["pids"].items() if name.startswith("osd.")}
    with ExitStack() as stack:
        stack.enter_context(preferred([*osds.values(), os.getpid()], niceness))
        producers = stack.enter_context(_producers(clusters, queues, threads, payload))
        time.sleep(1)
        began, before, cpu = time.monotonic(), producers.committed(), spent(osds)
        time.sleep(seconds)
        took_s, events, now = time.monotonic() - began, producers.committed() - before, spent(osds)
    if not events:
        raise BenchError("nothing was committed")
    used = {name: now[name] - cpu[name] for name in now}
    machine, asking = used.pop("machine"), used.pop("bench")
    osd = sum(used.values())
    return Enqueued(
        events=events,
        seconds=took_s,
        rate=events / took_s,
        cpu_s_per_1000={"osds": osd * 1000 / events, "client": asking * 1000 / events},
        others=max(0.0, machine - osd - asking) / took_s,
    )


def print_enqueued(found: Enqueued) -> None:
    """One line."""
    cpu = found.cpu_s_per_1000
    print(
        f"radosgw's reserve and commit  {found.rate:9,.0f} events/s   CPU ms per 1,000: OSDs {cpu['osds'] * 1e3:.0f} + "
        f"client {cpu['client'] * 1e3:.0f}   others {found.others:.2f} processors",
        flush=True,
    )


class _Producers:
    """Threads that reserve and commit until they are told to end."""

    def __init__(self, ioctx: rados.Ioctx, queues: Sequence[str], threads: int, payload: int) -> None:
        self._ioctx = ioctx
        self._queues = queues
        # Librados' C interface keeps to itself which id a reservation got. The queue counts them from 1, and all
        # reservations are alike: a client that has made one commits the lowest that nobody has taken.
        self._ids = [itertools.count(1) for _ in queues]
        self._request = encode_reserve(payload, 1)
        self._payloads = [os.urandom(payload) for _ in range(CONTENTS)]
        self._done = [0] * threads
        self._ended = threading.Event()
        self._problem: Exception | None = None
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def committed(self) -> int:
        """Events so far. Raises BenchError when a thread has failed."""
        if self._problem:
            raise BenchError(f"reserving or committing failed: {self._problem}")
        return sum(self._done)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        try:
            for turn in itertools.count(number):
                if self._ended.is_set():
                    return
                place = turn % len(self._queues)
                queue = self._queues[place]
                self._ioctx.execute(queue, "2pc_queue", "2pc_queue_reserve", self._request)
                commit = encode_commit(next(self._ids[place]), [self._payloads[turn % CONTENTS]])
                self._ioctx.execute(queue, "2pc_queue", "2pc_queue_commit", commit)
                self._done[number] += 1
        except rados.Error as error:
            self._problem = error
            self._ended.set()


@contextmanager
def _producers(clusters: Clusters, queues: int, threads: int, payload: int) -> Iterator[_Producers]:
    names = [f"bench-{uuid.uuid4().hex[:8]}-{place}" for place in range(queues)]
    with clusters.queue_objects() as ioctx:
        ioctx.set_namespace("bench")
        try:
            for name in names:
                ioctx.execute(name, "2pc_queue", "2pc_queue_init", encode_init(RING_BYTES))
            producers = _Producers(ioctx, names, threads, payload)
            producers.start()
            try:
                yield producers
            finally:
                producers.end()
        finally:
            for name in names:
                with suppress(rados.Error):  # a clean-up that fails must not hide why
                    ioctx.remove_object(name)
