"""What radosgw's side of a persistent notification costs: a reservation and a commit for each event.

That is all that radosgw asks of the cluster before it answers the client whose request caused the event, and so the
yardstick for taking events in. One event each, as radosgw does, from threads of one client, on queues of their own
that no radosgw looks at. The programs share this host's processors.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.writers import new_queues, writing
from devkit.processes.processes import preferred, spent

TITLE = "enqueue-radosgw: events reserved and committed one by one, as radosgw does"


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
        ioctx = stack.enter_context(clusters.queue_objects())
        made = stack.enter_context(new_queues(ioctx, queues, payload))
        done = [0] * threads

        def store(number: int) -> bool:
            queue = (number + done[number]) % queues
            made.reserve(queue)
            made.commit(queue)
            done[number] += 1
            return True

        writers = stack.enter_context(writing(threads, store))
        writers.watch(1)
        began, before, cpu = time.monotonic(), sum(done), spent(osds)
        writers.watch(seconds)
        took_s, events, now = time.monotonic() - began, sum(done) - before, spent(osds)
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
