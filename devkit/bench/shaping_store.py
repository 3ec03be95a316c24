"""Commits beside a backlog that is listed from the same OSDs: the case `store` of `scripts/bench shaping`.

One daemon on RADOS takes single events in at a steady pace. Each one is a commit. Its clients' times are
compared: without anything else to do; beside a backlog that is delivered as fast as it goes; and beside one whose
listings a scope of the store limits. The ratio is the median of those of the rounds: OSDs, broker, daemon and this
program share this host's processors. Credit comes once a second, so that listings are few and large: for an OSD, and
for who waits for it, an operation costs more than its bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from devkit.bench import programs
from devkit.bench.backlog import PARTITIONS, store_backlog
from devkit.bench.clusters import BenchError, Clusters
from devkit.bench.delivered import kafka_topics
from devkit.bench.embedded import NOBODY, Embedded, own_topic
from remora.client import IngestClient

PAYLOAD = 1000
SETTLING_S = 3.0
LIVE_SHARDS = 4
KINDS = ("alone", "unlimited", "limited")

STORE_TICK_S = 1
_PRINCIPAL = f"""
[shaping]
tick = "{STORE_TICK_S}s"
[[shaping.principal]]
name = "slow"
match = ["slow-*"]
max_class = "backlog"
"""


async def commits(clusters: Clusters, options: argparse.Namespace, folder: Path, scope: str) -> dict[str, Any]:
    """The p50 and p99 of commits, alone and beside a backlog that is listed; `scope` limits the store's traffic."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        for kind in KINDS:
            place = folder / f"{kind}-{number}"
            place.mkdir()
            turn = await _turn(clusters, options, place, kind, scope if kind == "limited" else "")
            found[kind].append(turn)
            said = ", ".join(f"{name} {value:,.1f}" for name, value in turn.items())
            print(f"store  {kind:9} {said}", flush=True)
    ratios = {
        kind: statistics.median(
            ours["p99_ms"] / alone["p99_ms"] for ours, alone in zip(found[kind], found["alone"], strict=True)
        )
        for kind in KINDS[1:]
    }
    print(f"store  p99 of commits beside / alone: unlimited {ratios['unlimited']:.2f}, limited {ratios['limited']:.2f}")
    return {"turns": found, "p99_ratio": ratios}


async def _turn(
    clusters: Clusters, options: argparse.Namespace, folder: Path, kind: str, scope: str
) -> dict[str, float]:
    rados = clusters.place_of_its_own(f"store-{uuid.uuid4().hex[:8]}")
    embedded = Embedded(folder, more=f"\n[supervisor]\nworkers = 1\n{_PRINCIPAL}{scope}", rados=rados)
    address, name = clusters.kafka["bootstrap"], f"slow-{uuid.uuid4().hex[:8]}"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(kafka_topics(address, [name], PARTITIONS))
        store = await stack.enter_async_context(embedded.store())
        shapes = (own_topic(f"live-{name}", NOBODY, LIVE_SHARDS), own_topic(name, f"kafka://{address}", PARTITIONS))
        live, backlog = [await store.own_topics.create(each) for each in shapes]
        for each in (live, backlog):  # a cluster that is kept keeps topics for the next turn's daemon, too
            stack.push_async_callback(store.own_topics.remove, each, discard=True)
        if kind != "alone":
            await store_backlog(store, backlog, options.backlog, PAYLOAD, 0)
        process = stack.enter_context(programs.remora_on(embedded))
        await programs.listening(process, embedded)
        took = await _publish(embedded.ingest, live.name, options)
        delivered = await embedded.metric("remora_delivered_entries_total", topic=name)
        charged = await embedded.metric("remora_shaping_granted_bytes_total", scope="bench", priority="max")
    if kind == "limited" and (delivered >= options.backlog or not charged):
        raise BenchError(f"{delivered:,.0f} of {options.backlog:,} entries went, commits took {charged:,.0f} bytes")
    cuts = statistics.quantiles(took, n=100)
    seconds = SETTLING_S + options.seconds
    return {"p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3, "backlog_per_s": delivered / seconds}


async def _publish(address: str, topic: str, options: argparse.Namespace) -> list[float]:
    """How long each request took, from when it was due; those of the first seconds do not count."""
    took: list[float] = []
    began, warm = time.monotonic(), int(SETTLING_S * options.commits)

    async def one(client: IngestClient, number: int, due: float) -> None:
        await client.publish(topic, [_record(number)])
        if number >= warm:
            took.append(time.monotonic() - due)

    async with IngestClient(address, connections=64) as client, asyncio.TaskGroup() as tasks:
        for number in range(warm + int(options.seconds * options.commits)):
            due = began + number / options.commits
            await asyncio.sleep(due - time.monotonic())
            tasks.create_task(one(client, number, due), name=f"commit {number}")
    return took


def _record(number: int) -> dict[str, Any]:
    return {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "eventTime": "2026-11-21T17:00:00.000000Z",
        "eventName": "ObjectCreated:Put",
        "eventId": f"id-{number}",
        "s3": {"bucket": {"name": "b"}, "object": {"key": f"k{number}", "size": 1}},
    }
