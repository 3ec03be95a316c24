"""Queues that move between real workers for their load, and by command."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.processes.daemon import PATIENT, Daemon, merged, running_daemon
from devkit.readers.consumer import check, read_until
from remora.codec.shard_hash import shard
from remora.model.exits import Exit
from remora.policy.ownership.shedding import RESOURCES
from support.ingest import record

SHARDS = 6
KEYS = 3
"""Keys of each busy queue."""


def sections(folder: Path, what: str = "network_out") -> Mapping[str, Mapping[str, object]]:
    """Two workers whose load is `what` alone, by default what they deliver; any difference is worth a move.

    What a processor does on a machine that runs other tests, too, would be chance.
    """
    others = dict.fromkeys(RESOURCES, 0.0)
    return {
        "supervisor": {"workers": 2},
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "balance": {
            "interval": "1s", "threshold": 0, "difference": 0, "history": 0, "min_throughput": "0B",
            "network_bytes": "1GiB", "weights": {**others, what: 1.0},
        },
    }  # fmt: skip


def a_host(folder: Path, name: str) -> Mapping[str, Mapping[str, object]]:
    """Two workers of a host by this name, which move queues where one is clearly busier than all are on average."""
    chosen = sections(folder, "cpu")
    balance = {**chosen["balance"], "threshold": 10, "difference": 10, "history": 50}
    return {**chosen, "balance": balance, "ownership": {"host_id": name}}


class Stream:
    """Events that all go into some of a topic's queues, each with another number."""

    def __init__(self, daemon: Daemon, topic: str, numbers: Iterable[int], shards: int = SHARDS) -> None:
        self._daemon = daemon
        self._topic = topic
        self._shards = shards
        names = (f"key-{number}" for number in itertools.count())
        of = [list(itertools.islice(self._in(number, names), KEYS)) for number in numbers]
        self._keys = [key for keys in of for key in keys]
        self.sent: list[str] = []

    def _in(self, number: int, names: Iterator[str]) -> Iterator[str]:
        return (name for name in names if shard(f"b:{name}".encode(), self._shards) == number)

    async def send(self) -> None:
        """Have a request with some events of each key stored."""
        ids = [f"e-{len(self.sent) + place}" for place in range(10 * len(self._keys))]
        keys = itertools.cycle(self._keys)
        document: dict[str, Any] = {"Records": [record(next(keys), eventId=each) for each in ids]}
        connector = aiohttp.UnixConnector(self._daemon.ingest.removeprefix("unix:"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"http://remora/v1/topics/{self._topic}/events", json=document) as answer,
        ):
            assert answer.status == 200, await answer.text()
        self.sent += ids


async def held(daemon: Daemon) -> dict[str, int]:
    """The number of the worker that holds each queue."""
    return {each["queue"]: each["worker"] for each in (await daemon.status())["shards"]}


async def arrived(daemon: Daemon) -> list[dict[str, Any]]:
    """What `balance show` says of the workers while nothing is on its way between them; else an empty list."""
    shown: list[dict[str, Any]] = (await daemon.command("balance", "show", "--json")).json["workers"]
    return shown if sum(each["skew"] for each in shown) == 0 else []


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.kafka
async def test_queues_move_away_from_a_busy_worker_and_nothing_is_sent_twice(kafka: Kafka, folder: Path) -> None:
    """Of a worker that has all load a queue goes to the other, one more by command, and every event comes once."""
    topic = await create_topic(kafka.address, f"load-{uuid.uuid4().hex[:10]}")
    async with running_daemon(folder, merged(PATIENT, sections(folder))) as daemon:
        done = await daemon.command(
            "topic", "create", topic, "--endpoint", f"kafka://{kafka.address}", "--shards", str(SHARDS)
        )
        assert done.code == Exit.OK, done.err

        async def shared() -> bool:
            owners = list((await held(daemon)).values())
            return sorted(map(owners.count, set(owners))) == [SHARDS // 2, SHARDS // 2]

        await daemon.until(shared, "an even share of the queues")
        owners, planned = await held(daemon), await daemon.metric("remora_shard_moves_total", kind="planned")
        queues = [topic if number == 0 else f"{topic}.{number}" for number in range(SHARDS)]
        busy = [number for number, queue in enumerate(queues) if owners[queue] == owners[topic]]
        stream = Stream(daemon, topic, busy)

        async def moved() -> bool:
            await stream.send()
            return await daemon.metric("remora_shard_moves_total", kind="load") >= 1

        await daemon.until(moved, "a queue that moves for its load")
        after = await held(daemon)
        assert [queue for number, queue in enumerate(queues) if number in busy and after.get(queue) != owners[queue]]
        assert await daemon.metric("remora_shard_moves_total", kind="planned") == planned

        shown = await daemon.until(lambda: arrived(daemon), "the figures after the move")
        assert max(each["skew"] for each in shown) >= 1
        assert all(set(each["resources"]) >= {"cpu", "memory", "network_out"} for each in shown)

        await stream.send()
        giver = next(each for each in shown if each["skew"] < 0)["worker"]
        numbers = {each["number"]: each["cookie"].rpartition("/")[2] for each in (await daemon.status())["workers"]}
        queue = next(queue for queue, number in (await held(daemon)).items() if numbers[number] != giver)
        command = await daemon.command("shard", "move", queue, "--to", giver)
        assert command.code == Exit.OK, command.err
        assert giver[:8].encode() in command.out
        again = await daemon.command("shard", "move", queue, "--to", giver)
        assert again.code == Exit.FAILURE
        assert "already" in again.err

        await stream.send()
        found = await read_until(kafka.address, topic, len(stream.sent))
        verdict = check(found, stream.sent, lambda each: each.event_id)
        assert verdict.is_clean, verdict


PART, PERIOD_S = 0.25, 0.1
"""A throttled worker runs for this part of each period, as with a control group's quota."""


@asynccontextmanager
async def throttled(pids: Iterable[int]) -> AsyncIterator[None]:
    """Let these processes run for a part of each period only, while the block runs."""

    def send(number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def throttle() -> None:
        while True:
            send(signal.SIGSTOP)
            await asyncio.sleep(PERIOD_S * (1 - PART))
            send(signal.SIGCONT)
            await asyncio.sleep(PERIOD_S * PART)

    task = asyncio.create_task(throttle())
    try:
        yield
    finally:
        task.cancel()
        send(signal.SIGCONT)


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.kafka
async def test_queues_move_away_from_a_throttled_host_and_nothing_is_sent_twice(kafka: Kafka, folder: Path) -> None:
    """Two hosts share a store and a steady load. When the workers of one run for a quarter of the time only, queues of
    it go to the other host, and every event comes once."""
    topic, shards = await create_topic(kafka.address, f"host-{uuid.uuid4().hex[:10]}"), 8
    slow, other = (merged(PATIENT, a_host(folder, name)) for name in ("slow", "other"))
    async with running_daemon(folder, slow) as throttled_host, running_daemon(folder, other) as host:
        endpoint = ("--endpoint", f"kafka://{kafka.address}")
        done = await host.command("topic", "create", topic, *endpoint, "--shards", str(shards))
        assert done.code == Exit.OK, done.err
        stream = Stream(host, topic, range(shards), shards)

        async def shared() -> bool:
            return [len(await held(each)) for each in (throttled_host, host)] == [shards // 2, shards // 2]

        async def moved() -> bool:
            await stream.send()
            return len(await held(host)) > shards // 2

        await host.until(shared, "an even share of the queues")
        async with throttled((await throttled_host.workers()).values()):
            await host.until(moved, "a queue that leaves the throttled host", 180)
        moves = [await each.metric("remora_shard_moves_total", kind="load") for each in (throttled_host, host)]
        assert sum(moves) >= 1

        await stream.send()
        found = await read_until(kafka.address, topic, len(stream.sent))
        verdict = check(found, stream.sent, lambda each: each.event_id)
        assert verdict.is_clean, verdict
