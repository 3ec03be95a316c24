"""Entries that one owner moves out of a ring beside what eight writers store there, and drains from runs and ring.

All turns are on one queue each, of the same entries, one after the other on the same cluster; nothing is delivered, so
that a drain is what reading and removing pages takes. Writers, owner and OSDs share this host's processors: read the
ratios. Memory is this process's, at the first move and at the last.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import rados

from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.processes.processes import memory_bytes
from remora.codec.queue_ops import encode_init
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.storage.rados import RadosStore

TITLE = "spill: entries moved beside a queue, and drained from there, beside its ring"

RING_BYTES = 128_000_000
COMMIT_ENTRIES = 500
PAGE = 1024
WRITERS = 8


@dataclass(frozen=True)
class SpillRates:
    """Entries a second of one round, and the bytes by which the mover's memory grew."""

    written: float
    moved: float
    from_runs: float
    from_ring: float
    grown_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench spill` understands."""
    parser.add_argument("--entries", type=int, default=60_000, help="in the queue (default: 60,000)")
    parser.add_argument("--payload", type=int, default=630, help="bytes of an entry (default: 630)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long writers are counted (default: 3)")
    parser.add_argument("--rounds", type=int, default=1, help="times that all is measured (default: 1)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    if options.entries * (options.payload + 10) > 0.9 * RING_BYTES:
        raise BenchError(f"a queue has {RING_BYTES / 1e6:.0f} MB")
    with running_clusters(options.name, options.keep, ["ceph"]) as clusters:
        rounds = [asyncio.run(_round(clusters, options)) for _ in range(options.rounds)]
    median = {name: statistics.median(getattr(each, name) for each in rounds) for name in asdict(rounds[0])}
    moved, drained = median["moved"] / median["written"], median["from_runs"] / median["from_ring"]
    print(f"moved beside written by {WRITERS}: {moved:.1f}   drained from runs beside the ring: {drained:.2f}")
    return {"rounds": [asdict(each) for each in rounds], "moved_ratio": moved, "drained_ratio": drained}


async def _round(clusters: Clusters, options: argparse.Namespace) -> SpillRates:
    with clusters.queue_objects() as ioctx:
        async with RadosStore(clusters.administrator, guard_s=0.0) as store:
            async with _queue(store, ioctx) as token:
                written = await _write(store, token, options.payload, options.seconds)
            async with _queue(store, ioctx) as token:
                await _fill(store, token, options.payload, options.entries)
                from_ring = await _drain(store, token, options.entries)
                await _fill(store, token, options.payload, options.entries)
                moved, grown = await _move(store, token, options.entries)
                from_runs = await _drain(store, token, options.entries)
    rates = SpillRates(written, moved, from_runs, from_ring, grown)
    print(
        f"written by {WRITERS} {written:,.0f}/s   moved by one {moved:,.0f}/s, {grown / 1e6:+.1f} MB   "
        f"drained from the ring {from_ring:,.0f}/s, from runs {from_runs:,.0f}/s",
        flush=True,
    )
    return rates


@asynccontextmanager
async def _queue(store: RadosStore, ioctx: rados.Ioctx) -> AsyncIterator[LockToken]:
    """A queue that no radosgw looks at, held."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with rados.WriteOpCtx() as op:
        op.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
        ioctx.operate_write_op(op, name)
    ioctx.execute(name, "2pc_queue", "2pc_queue_init", encode_init(RING_BYTES))
    try:
        token = await store.locks.acquire(Shard(name), "bench", 600)
        if not isinstance(token, LockToken):
            raise BenchError(f"{name} is locked by {token.entity}")
        yield token
    finally:
        with suppress(rados.ObjectNotFound):
            ioctx.remove_object(name)


async def _write(store: RadosStore, token: LockToken, payload: int, seconds: float) -> float:
    """Events a second that writers reserve and commit, one at a time each."""
    began, count = time.monotonic(), 0

    async def write() -> None:
        nonlocal count
        while time.monotonic() < began + seconds:
            entries = _entries(1, payload)
            reservation = await store.two_phase.reserve(token.shard, 1, len(entries[0]))
            await store.two_phase.commit(token.shard, reservation, entries)
            count += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(WRITERS):
            tasks.create_task(write(), name=f"writer {number}")
    return count / (time.monotonic() - began)


def _entries(count: int, payload: int) -> list[bytes]:
    """Entries of this size in bytes, no two alike; each can be stored in half of its size, as events can."""
    return [os.urandom(payload // 2).hex().encode() for _ in range(count)]


async def _fill(store: RadosStore, token: LockToken, payload: int, entries: int) -> None:
    for first in range(0, entries, COMMIT_ENTRIES):
        part = _entries(min(COMMIT_ENTRIES, entries - first), payload)
        reservation = await store.two_phase.reserve(token.shard, len(part), sum(map(len, part)))
        await store.two_phase.commit(token.shard, reservation, part)


async def _move(store: RadosStore, token: LockToken, entries: int) -> tuple[float, int]:
    """Entries a second that the owner moves, and how much its memory grew after the first page."""
    began, moved, at_first = time.monotonic(), 0, 0
    while count := await store.spill.move(token):
        moved += count
        at_first = at_first or memory_bytes(os.getpid())[0]
    rate = moved / (time.monotonic() - began)
    if moved != entries:
        raise BenchError(f"{moved:,} of {entries:,} entries were moved")
    return rate, memory_bytes(os.getpid())[0] - at_first


async def _drain(store: RadosStore, token: LockToken, entries: int) -> float:
    """Entries a second that are read and removed, page by page, with the next page read meanwhile."""
    began, start, left = time.monotonic(), b"", entries
    reading = asyncio.ensure_future(store.queue.read(token, start, PAGE))
    while left:
        page = await reading
        count, end = len(page.entries), page.positions[-1]
        left -= count
        if left:
            reading = asyncio.ensure_future(store.queue.read(token, end, PAGE))
        await store.queue.remove(token, end, count, Tally(delivered=count))
    return entries / (time.monotonic() - began)
