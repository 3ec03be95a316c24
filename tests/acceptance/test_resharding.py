"""A topic that gets other numbers of shards while two daemons take events in and deliver them."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.chaos.reading import copy_of
from devkit.clusters.kafka import Kafka, create_topic
from devkit.processes.daemon import PATIENT, Daemon, merged, rados_section, running_daemon
from devkit.readers.consumer import raw_records
from devkit.verdicts.verdict import Arrived, Fate, Request, judge
from remora.model.exits import Exit
from support.ingest import Answer, record

SENDERS = 4

ON_RADOS = [pytest.mark.long("two daemons on a real cluster"), pytest.mark.full("the embedded store guards the engine")]


class Senders:
    """Senders of singles, batches and two phases, each with objects of its own; each notes what was acknowledged."""

    def __init__(self, doors: list[aiohttp.ClientSession], topic: str) -> None:
        """`doors` lead to the daemons, which a sender goes to in turn."""
        self._doors, self._topic = doors, topic
        self.ended = asyncio.Event()
        self.requests: list[Request] = []
        self.refused: list[Answer] = []

    async def run(self, number: int) -> None:
        """Send until told to end, one request after the other."""
        ways = [self._single, self._batch, self._two_phases]
        for turn in itertools.count():
            if self.ended.is_set():
                return
            count = 1 if turn % 3 == 0 else 12
            ids = [f"{number}-{turn * 100 + i:08}" for i in range(count)]
            body = {"Records": [record(f"{number}/{i % 5}", eventId=each) for i, each in enumerate(ids)]}
            answer = await ways[turn % 3](self._doors[(number + turn) % len(self._doors)], body)
            if answer.status == 200:
                self.requests.append(Request(tuple(ids), Fate.STORED))
            else:
                self.refused.append(answer)

    async def _single(self, door: aiohttp.ClientSession, body: dict[str, Any]) -> Answer:
        return await ask(door, "POST", f"/v1/topics/{self._topic}/events", body)

    async def _batch(self, door: aiohttp.ClientSession, body: dict[str, Any]) -> Answer:
        return await ask(door, "POST", f"/v1/topics/{self._topic}/events", body, {"Idempotency-Key": uuid.uuid4().hex})

    async def _two_phases(self, door: aiohttp.ClientSession, body: dict[str, Any]) -> Answer:
        room = [{"bucket": "b", "object": each["s3"]["object"]["key"]} for each in body["Records"]]
        reserved = await ask(door, "POST", f"/v1/topics/{self._topic}/reservations", {"events": room})
        if reserved.status != 201:
            return reserved
        return await ask(door, "PUT", reserved.headers["Location"], body)


async def ask(
    door: aiohttp.ClientSession, method: str, path: str, body: object, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request."""
    async with door.request(method, f"http://remora{path}", json=body, headers=headers) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


async def until_delivered(kafka: Kafka, topic: str, due: set[str], *, committed: bool) -> Arrived:
    """All that arrived, once that is everything which is due."""
    while True:
        arrived = Arrived()
        for each in await raw_records(kafka.address, topic, committed=committed):
            arrived.add(copy_of(each), is_exact=committed)
        if due <= arrived.firsts.keys():
            return arrived


@pytest.mark.guarantee("order-per-object")
@pytest.mark.parametrize(
    ("kind", "mode", "numbers"),
    [
        pytest.param("sqlite", "exactly-once", (11, 4), marks=pytest.mark.long("two daemons through two changes")),
        pytest.param("sqlite", "at-least-once", (11, 64, 4, 7, 13, 1), marks=pytest.mark.full("more changes")),
        pytest.param("rados", "at-least-once", (4, 11, 3), marks=[pytest.mark.ceph, *ON_RADOS]),
        pytest.param("rados", "exactly-once", (11, 4), marks=[pytest.mark.ceph, *ON_RADOS]),
    ],
)
async def test_shards_are_changed_under_load(
    request: pytest.FixtureRequest, kafka: Kafka, folder: Path, kind: str, mode: str, numbers: tuple[int, ...]
) -> None:
    """Senders notice nothing of changes that two daemons carry on with: no request is refused, each event arrives
    once and each key in order over all generations, and every shard's chain leads to where it ended."""
    topic = await create_topic(kafka.address, f"re-{uuid.uuid4().hex[:10]}")
    store: dict[str, dict[str, object]] = {"store": {"kind": kind}}
    if kind == "sqlite":
        store["sqlite"] = {"directory": str(folder / "queues"), "files": 1}
    else:
        store["rados"] = rados_section(request.getfixturevalue("settings"))
    places = [folder / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    async with AsyncExitStack() as stack:
        daemons = [
            await stack.enter_async_context(running_daemon(place, merged(PATIENT, store | {
                "ingest": {"listen": f"unix:{place}/ingest"}, "ownership": {"discovery_interval": "500ms"},
            })))
            for place in places
        ]  # fmt: skip
        made = await daemons[0].command(
            "topic", "create", topic, "--endpoint", f"kafka://{kafka.address}", "--shards", "1", "--delivery", mode
        )
        assert made.code == Exit.OK, made.err
        doors = [
            await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(each.ingest.removeprefix("unix:")))
            )
            for each in daemons
        ]
        senders = Senders(doors, topic)
        async with asyncio.TaskGroup() as tasks:
            for number in range(SENDERS):
                tasks.create_task(senders.run(number))
            for number in numbers:
                done = await daemons[0].command(
                    "topic", "set", topic, "--shards", str(number), "--wait", "--timeout", "10m"
                )
                assert done.code == Exit.OK, done.err
            senders.ended.set()
        due = {each for request in senders.requests for each in request.ids}
        arrived = await until_delivered(kafka, topic, due, committed=mode == "exactly-once")
        await until_forgotten(daemons[0], topic)
        ledger = (await daemons[0].command("ledger", topic, "--json")).json
        shown = (await daemons[0].command("topic", "show", topic, "--json")).json

    assert senders.refused == []
    assert judge(senders.requests, arrived, []) == []
    assert shown["layouts"] == [{"generation": len(numbers), "shards": numbers[-1], "state": "open", "entries": 0}]
    assert ledger[0]["unaccounted"] == 0
    assert sum(each["delivered"] for each in ledger[0]["shards"]) == len(due)
    assert len({copy.place.generation for copy in arrived.firsts.values()}) > 1


async def until_forgotten(daemon: Daemon, topic: str) -> None:
    """Wait until no former layout is left: any worker removes it."""

    async def is_so() -> bool:
        return len((await daemon.command("topic", "show", topic, "--json")).json["layouts"]) == 1

    await daemon.until(is_so, "the end of the former layout")
