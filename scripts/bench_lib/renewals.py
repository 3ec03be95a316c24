"""What it costs that many workers keep their locks and know of each other.

So many stores on one directory, each as a worker has one, hold the locks of so many shards together. Counted is the
processor time of rounds of renewals, each of which a worker makes every `ownership.renew_interval`, and of looks at the
other workers with an announcement each, made every second at most. Shares are of one processor, of all workers
together. The embedded store only: on RADOS a renewal costs the same here, and the OSD the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_lib.clusters import BenchError
from bench_lib.embedded import NOBODY, Embedded
from remora.config import OwnershipSettings
from remora.engine.spread import LOOK_S, TTL_S
from remora.model.member import Member
from remora.model.shard import Hold, Shard
from remora.storage.sqlite import SqliteStore

TITLE = "renewals: what keeping locks costs, with many workers and shards"


@dataclass(frozen=True)
class Renewals:
    """Shares of one processor of all workers together, and the seconds of it that one round of all costs."""

    workers: int
    shards: int
    renewal_s: float
    renewals: float
    look_s: float
    looks: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench renewals` understands."""
    parser.add_argument("--workers", type=int, default=8, help="workers (default: 8)")
    parser.add_argument("--shards", type=int, default=200, help="shards of all of them (default: 200)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds that are counted (default: 100)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        found = asyncio.run(_run(options, Path(folder)))
    print(
        f"{found.workers} workers with {found.shards} shards: renewals {found.renewals:.2%} of one processor "
        f"({found.renewal_s * 1e3:.1f} ms for a round of all), looks at each other {found.looks:.2%} "
        f"({found.look_s * 1e3:.1f} ms for a round of all)"
    )
    return asdict(found)


async def _run(options: argparse.Namespace, folder: Path) -> Renewals:
    embedded, ownership = Embedded(folder), OwnershipSettings()
    (topic,) = await embedded.make_topics(["bench"], NOBODY, options.shards)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(embedded.store()) for _ in range(options.workers)]
        shares = [topic.all_shards()[number :: options.workers] for number in range(options.workers)]
        holds = [await _hold(store, number, shares[number]) for number, store in enumerate(stores)]

        async def renew() -> None:
            answers = await asyncio.gather(
                *(store.renew_all(of, ownership.lease_s) for store, of in zip(stores, holds, strict=True))
            )
            if any(answer is not None for each in answers for answer in each):
                raise BenchError("a lock was lost")

        async def look() -> None:
            for number, store in enumerate(stores):
                await store.announce(Member(_cookie(number), "bench", len(holds[number])), TTL_S)
                await store.members()

        renewal_s = await _cost_s(renew, options.rounds)
        look_s = await _cost_s(look, options.rounds)
    return Renewals(
        options.workers,
        options.shards,
        renewal_s,
        renewal_s / ownership.renew_interval_s,
        look_s,
        look_s / LOOK_S,
    )


async def _hold(store: SqliteStore, number: int, shards: Sequence[Shard]) -> list[Hold]:
    answers = [await store.acquire(shard, _cookie(number), OwnershipSettings().lease_s) for shard in shards]
    holds = [answer for answer in answers if isinstance(answer, Hold)]
    if len(holds) != len(shards):
        raise BenchError("a new queue was held by somebody")
    return holds


def _cookie(number: int) -> str:
    return f"remora/bench/boot/{number}"


async def _cost_s(work: Callable[[], Awaitable[None]], rounds: int) -> float:
    """Processor seconds of one round, the threads that write included."""
    await work()
    began = time.process_time()
    for _ in range(rounds):
        await work()
    return (time.process_time() - began) / rounds
