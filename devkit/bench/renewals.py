"""What it costs that many workers keep their locks and know of each other.

Stores on one directory or one cluster, each as a worker has one, hold the locks of all shards together.
Counted is the processor time of rounds of renewals, each of which a worker makes every `ownership.renew_interval`, and
of looks at the other workers with an announcement each, made every second at most. Shares are of one processor, of all
workers together; on a cluster the OSDs' own time is added and told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.embedded import NOBODY, Embedded
from devkit.processes.processes import cpu_s
from remora.config import OwnershipSettings
from remora.engine.ownership.members import TTL_S
from remora.model.member import Member
from remora.model.shard import LockToken, Shard
from remora.policy.membership import POLL_S
from remora.ports.store import ShardStore

TITLE = "renewals: what keeping locks costs, with many workers and shards"


@dataclass(frozen=True)
class Renewals:
    """Shares of one processor of all workers together, and the seconds of it that one round of all costs.

    `of_osds` are the shares that are the OSDs'; they are counted in the others.
    """

    store: str
    workers: int
    shards: int
    renewal_s: float
    renewals: float
    renewals_of_osds: float
    look_s: float
    looks: float
    looks_of_osds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench renewals` understands."""
    parser.add_argument("--store", choices=("sqlite", "rados"), default="sqlite", help="default: sqlite")
    parser.add_argument("--workers", type=int, default=8, help="workers (default: 8)")
    parser.add_argument("--shards", type=int, default=200, help="shards of all of them (default: 200)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds that are counted (default: 100)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    kinds = ["ceph"] if options.store == "rados" else []
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, kinds) as clusters,
    ):
        found = asyncio.run(_run(options, clusters, Path(folder)))
    print(
        f"{found.workers} workers with {found.shards} shards on {found.store}: renewals {found.renewals:.2%} of one "
        f"processor ({found.renewal_s * 1e3:.1f} ms for a round of all), looks at each other {found.looks:.2%} "
        f"({found.look_s * 1e3:.1f} ms for a round of all)"
        + (f"; of these OSDs {found.renewals_of_osds:.2%} and {found.looks_of_osds:.2%}" if kinds else "")
    )
    return asdict(found)


async def _run(options: argparse.Namespace, clusters: Clusters, folder: Path) -> Renewals:
    rados, osds = None, []
    if options.store == "rados":
        rados = clusters.place_of_its_own(f"bench-{uuid.uuid4().hex[:8]}")
        osds = [pid for name, pid in clusters.ceph["pids"].items() if name.startswith("osd.")]
    embedded, ownership = Embedded(folder, rados=rados), OwnershipSettings()
    (topic,) = await embedded.make_topics(["bench"], NOBODY, options.shards)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(embedded.store()) for _ in range(options.workers)]
        shares = [topic.all_shards()[number :: options.workers] for number in range(options.workers)]
        tokens = [await _hold(store, number, shares[number]) for number, store in enumerate(stores)]

        async def renew() -> None:
            answers = await asyncio.gather(
                *(store.locks.renew_all(of, ownership.lease_s) for store, of in zip(stores, tokens, strict=True))
            )
            if any(answer is not None for each in answers for answer in each):
                raise BenchError("a lock was lost")

        async def look() -> None:
            for number, store in enumerate(stores):
                await store.members.announce(Member(_cookie(number), "bench", len(tokens[number])), TTL_S)
                await store.members.live()

        renewal_s, renewal_osds_s = await _cost_s(renew, options.rounds, osds)
        look_s, look_osds_s = await _cost_s(look, options.rounds, osds)
    return Renewals(
        options.store,
        options.workers,
        options.shards,
        renewal_s,
        renewal_s / ownership.renew_interval_s,
        renewal_osds_s / ownership.renew_interval_s,
        look_s,
        look_s / POLL_S,
        look_osds_s / POLL_S,
    )


async def _hold(store: ShardStore, number: int, shards: Sequence[Shard]) -> list[LockToken]:
    answers = [await store.locks.acquire(shard, _cookie(number), OwnershipSettings().lease_s) for shard in shards]
    tokens = [answer for answer in answers if isinstance(answer, LockToken)]
    if len(tokens) != len(shards):
        raise BenchError("a new queue was held by somebody")
    return tokens


def _cookie(number: int) -> str:
    return f"remora/bench/boot/{number}"


async def _cost_s(work: Callable[[], Awaitable[None]], rounds: int, osds: Sequence[int]) -> tuple[float, float]:
    """Processor seconds of one round, the threads that write and the OSDs included, and those of the OSDs alone."""
    await work()
    began, osds_began = time.process_time(), sum(map(cpu_s, osds))
    for _ in range(rounds):
        await work()
    of_osds = sum(map(cpu_s, osds)) - osds_began
    return (time.process_time() - began + of_osds) / rounds, of_osds / rounds
