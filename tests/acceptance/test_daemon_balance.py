"""Queues that move between real workers for their load, and by command."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from remora.codec.shard_hash import shard
from remora.model.exits import Exit
from support.consumer import check, read_until
from support.daemon import Daemon, running_daemon
from support.ingest import record
from support.kafka import Kafka, create_topic

SHARDS = 6
KEYS = 3
"""Keys of each busy queue."""


def sections(folder: Path) -> Mapping[str, Mapping[str, object]]:
    """Two workers whose load is what they deliver, of which any difference is worth a move.

    What a processor does on a machine that runs other tests, too, would be chance.
    """
    others = dict.fromkeys(("cpu", "host_cpu", "memory", "held", "network_in"), 0.0)
    return {
        "supervisor": {"workers": 2},
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "balance": {
            "interval": "1s", "threshold": 0, "difference": 0, "history": 0, "min_throughput": "0B",
            "network_bytes": "1GiB", "weights": {**others, "network_out": 1.0},
        },
    }  # fmt: skip


class Stream:
    """Events that all go into some of a topic's queues, each with another number."""

    def __init__(self, daemon: Daemon, topic: str, numbers: Sequence[int]) -> None:
        self._daemon = daemon
        self._topic = topic
        names = (f"key-{number}" for number in itertools.count())
        of = [list(itertools.islice(self._in(number, names), KEYS)) for number in numbers]
        self._keys = [key for keys in of for key in keys]
        self.sent: list[str] = []

    @staticmethod
    def _in(number: int, names: Iterator[str]) -> Iterator[str]:
        return (name for name in names if shard(f"b:{name}".encode(), SHARDS) == number)

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
    async with running_daemon(folder, sections(folder)) as daemon:
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

        await daemon.until(moved, "a queue that moves for its load", 90)
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
        assert giver.encode() in command.out
        again = await daemon.command("shard", "move", queue, "--to", giver)
        assert again.code == Exit.FAILURE
        assert "already" in again.err

        await stream.send()
        found = await read_until(kafka.address, topic, len(stream.sent))
        verdict = check(found, stream.sent, lambda each: each.event_id)
        assert verdict.is_clean, verdict
