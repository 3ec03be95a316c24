"""A topic that gets other numbers of shards while two daemons take events in and deliver them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.chaos.reading import copy_of
from devkit.clusters.kafka import Kafka, create_topic, running_kafka
from devkit.processes.daemon import PATIENT, Daemon, Options, merged, rados_section, remora, running_daemon
from devkit.readers.consumer import raw_records
from devkit.receivers.http_sink import http_sink
from devkit.verdicts.verdict import Arrived, Fate, Request, judge
from devkit.waits import until
from remora.model.exits import Exit
from support.ingest import Answer, record
from support.older import older, older_commits, older_daemon

LOG = logging.getLogger(__name__)
ON_RADOS = [pytest.mark.long("two daemons on a real cluster"), pytest.mark.full("the embedded store guards the engine")]


@dataclass(frozen=True)
class Load:
    """So many senders with so many objects each send so many events a second together, or as many as they can; so many
    events come before each change."""

    senders: int = 4
    objects: int = 5
    per_second: float = math.inf
    before_each: int = 0


class Senders:
    """Senders of singles, batches and two phases, each with objects of its own; each notes what was acknowledged."""

    def __init__(self, doors: list[aiohttp.ClientSession], topic: str, load: Load) -> None:
        """`doors` lead to the daemons, which a sender goes to in turn."""
        self._doors, self._topic, self._load = doors, topic, load
        self._ended, self._tasks, self._began = asyncio.Event(), list[asyncio.Task[None]](), 0.0
        self.requests: list[Request] = []
        self.refused: list[Answer] = []

    @property
    def ids(self) -> list[str]:
        """The events that were acknowledged."""
        return [each for request in self.requests for each in request.ids]

    async def until_more(self, count: int) -> None:
        """Wait until so many events more were acknowledged."""
        wanted = len(self.ids) + count

        async def is_so() -> bool:
            return len(self.ids) >= wanted

        await until(is_so, f"{count} events more")

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Send, until told to end."""
        self._began = asyncio.get_running_loop().time()
        self._tasks = [tasks.create_task(self._run(number)) for number in range(self._load.senders)]

    async def end(self) -> None:
        """Wait for all answers, stop the senders, and log the rate that they reached."""
        self._ended.set()
        await asyncio.gather(*self._tasks)
        seconds = asyncio.get_running_loop().time() - self._began
        rate = len(self.ids) / seconds
        LOG.info("%d events in %.0f s, %.0f/s of %.0f", len(self.ids), seconds, rate, self._load.per_second)

    async def _run(self, number: int) -> None:
        """Send one request after the other, no faster than the load asks for."""
        ways = [self._single, self._batch, self._two_phases]
        now, load = asyncio.get_running_loop().time, self._load
        due = now()
        for turn in itertools.count():
            if self._ended.is_set():
                return
            count = 1 if turn % 3 == 0 else 12
            await asyncio.sleep(max(0.0, due - now()))
            due += count * load.senders / load.per_second
            ids = [f"{number}-{turn * 100 + i:08}" for i in range(count)]
            body = {
                "Records": [record(f"{number}/{(turn + i) % load.objects}", eventId=each) for i, each in enumerate(ids)]
            }
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


@pytest.fixture
def three_brokers() -> Iterator[Kafka]:
    """Three brokers, replication factor 3, of which two must be in sync."""
    with running_kafka("reshard", "--brokers", "3") as running:
        yield running


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

    async with changed_under_load(_store(request, folder, kind), folder, kafka, topic, mode, Load()) as (
        daemon,
        senders,
    ):
        for number in numbers:
            await change(daemon, topic, number)
        await senders.end()
        arrived = await until_delivered(kafka, topic, set(senders.ids), committed=mode == "exactly-once")
        ledger, shown = await until_forgotten(daemon, topic)

    assert senders.refused == []
    assert judge(senders.requests, arrived, []) == []
    assert shown["layouts"] == [{"generation": len(numbers), "shards": numbers[-1], "state": "open", "entries": 0}]
    assert ledger["unaccounted"] == 0
    assert sum(each["delivered"] for each in ledger["shards"]) == len(senders.ids)
    assert len({copy.place.generation for copy in arrived.firsts.values()}) > 1


@pytest.mark.guarantee("order-per-object")
@pytest.mark.spark
@pytest.mark.full("three brokers, eight senders, and a verdict by Spark; the gate has smaller changes")
@pytest.mark.timeout(1800)  # beside other work it takes several times its two minutes
async def test_shards_are_changed_while_a_broker_is_killed(
    request: pytest.FixtureRequest, three_brokers: Kafka, folder: Path
) -> None:
    """Eight senders of 2,000 events a second, as far as this machine carries them, notice neither changes to 11, 64 and
    4 shards nor a broker that is killed for good within them, and `remora replay verify` finds nothing wrong."""
    kafka, load = three_brokers, Load(senders=8, objects=40, per_second=2000, before_each=10_000)
    topic = await create_topic(kafka.address, f"re-{uuid.uuid4().hex[:10]}", replicas=3, min_insync_replicas=2)
    store = _store(request, folder, "sqlite")
    async with changed_under_load(store, folder, kafka, topic, "exactly-once", load) as (daemon, senders):
        for number in (11, 64, 4):
            await senders.until_more(load.before_each)
            if number == 64:
                await asyncio.to_thread(kafka.stop, "broker.2")
            await change(daemon, topic, number)
        await senders.until_more(load.before_each)
        await senders.end()
        arrived = await until_delivered(kafka, topic, set(senders.ids), committed=True)
        ledger, shown = await until_forgotten(daemon, topic)
        verdict = await remora(
            "replay", "verify", "--topic", topic, "--bootstrap", kafka.address, "--isolation", "read_committed",
            "--out", folder / "verdict", "--json",
        )  # fmt: skip

    assert senders.refused == []
    assert judge(senders.requests, arrived, []) == []
    assert (ledger["unaccounted"], sum(each["delivered"] for each in ledger["shards"])) == (0, len(senders.ids))
    assert [each["generation"] for each in shown["layouts"]] == [3]
    assert verdict.code == Exit.OK, verdict.err
    assert (verdict.json["verdict"], verdict.json["counts"]["distinct"]) == ("PASS", len(senders.ids))


@asynccontextmanager
async def changed_under_load(
    store: Options, folder: Path, kafka: Kafka, topic: str, mode: str, load: Load
) -> AsyncIterator[tuple[Daemon, Senders]]:
    """Two daemons on one store with a topic of one shard, and senders that are at work until they are told to end."""
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
        senders = Senders([await stack.enter_async_context(door_of(each)) for each in daemons], topic, load)
        async with asyncio.TaskGroup() as tasks:
            senders.begin(tasks)
            yield daemons[0], senders


async def change(daemon: Daemon, topic: str, shards: int) -> None:
    """Give the topic other shards, when those before are delivered."""
    done = await daemon.command("topic", "set", topic, "--shards", str(shards), "--wait", "--timeout", "10m")
    assert done.code == Exit.OK, done.err


FIRST = "c90864a"
OLDER = older_commits(FIRST, "eabeb60e")
"""Commits whose remoras know one layout: the first release, 0.1.0, and the last one before re-sharding."""


@pytest.mark.full("runs the code of older commits; the gate has the refusals: of files, and of topics")
@pytest.mark.parametrize(
    ("kind", "commit", "runs_before"),
    [
        # 0.1.0 does not notice that files that it has open were brought to a newer version, and on RADOS older ones
        # go on with queues that they hold: docs/resharding.md says so.
        *[("sqlite", commit, commit != FIRST) for commit in OLDER],
        *[pytest.param("rados", commit, False, marks=pytest.mark.ceph) for commit in OLDER],
    ],
)
async def test_older_hosts_touch_nothing_of_a_topic_with_other_shards(
    request: pytest.FixtureRequest, folder: Path, kind: str, commit: str, runs_before: bool
) -> None:
    """An older daemon that ran before, and one that is started later, take in and deliver nothing of a topic whose
    shards were changed, also when no newer one runs, and say why; a newer one then delivers all of it in order."""
    topic, keys, count = f"re-{uuid.uuid4().hex[:10]}", 5, 60
    plain = merged(_store(request, folder, kind), {"destinations": {"deny": []}, "ownership": {"schemes": ["http"]}})
    new = folder / "new"
    new.mkdir()
    async with http_sink() as sink, AsyncExitStack() as stack:
        olds = []
        if runs_before:
            olds.append(await stack.enter_async_context(older_daemon(folder / "before", plain, commit)))
        async with running_daemon(new, plain) as daemon:
            made = await daemon.command("topic", "create", topic, "--endpoint", sink.url, "--shards", "2")
            assert made.code == Exit.OK, made.err
            async with door_of(daemon) as door:
                await fill(door, topic, range(count // 2), keys)
                changed = await daemon.command("topic", "set", topic, "--shards", "4")
                assert changed.code == Exit.OK, changed.err
                await fill(door, topic, range(count // 2, count), keys)
            for old in olds:
                await until(partial(_leaves_alone, old, kind, topic), "why an older daemon leaves the topic alone")
            await daemon.kill_all()
        await sink.open()
        olds.append(older(folder / "later", plain, commit))
        stack.push_async_callback(olds[-1].close)
        if kind == "rados":
            await olds[-1].start()
        else:
            with pytest.raises(AssertionError, match="newer remora"):
                await olds[-1].start()
        await until(partial(_leaves_alone, olds[-1], kind, topic), "why one that starts later does")
        assert all([await _refuses(old, topic) for old in olds if old.is_running])
        assert sink.bodies == []
        async with running_daemon(new, plain) as daemon:
            await sink.until(count)
            ledger = (await daemon.command("ledger", topic, "--json")).json

    events = [json.loads(body)["Records"][0] for body in dict.fromkeys(sink.bodies)]
    for key in range(keys):
        ids = [int(each["eventId"]) for each in events if each["s3"]["object"]["key"] == str(key)]
        assert ids == sorted(ids)
    assert sorted(int(each["eventId"]) for each in events) == list(range(count))
    assert ledger[0]["unaccounted"] == 0


def _store(request: pytest.FixtureRequest, folder: Path, kind: str) -> Options:
    if kind == "rados":
        return {"store": {"kind": kind}, "rados": rados_section(request.getfixturevalue("settings"))}
    return {"store": {"kind": kind}, "sqlite": {"directory": str(folder / "queues"), "files": 1}}


@asynccontextmanager
async def door_of(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(daemon.ingest.removeprefix("unix:"))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def fill(door: aiohttp.ClientSession, topic: str, numbers: Iterable[int], keys: int) -> None:
    """Store events, of each key in the order of their numbers."""
    body = {"Records": [record(str(number % keys), eventId=str(number)) for number in numbers]}
    answer = await ask(door, "POST", f"/v1/topics/{topic}/events", body)
    assert answer.status == 200, answer.body


async def _leaves_alone(older: Daemon, kind: str, topic: str) -> bool:
    """Whether it has said why it leaves the topic alone, and holds none of its shards any longer."""
    words = ("newer remora",) if kind == "sqlite" else (f"topic {topic} in", "cannot be read")
    if not any(all(word in line for word in words) for line in older.logged().splitlines()):
        return False
    if kind == "sqlite":
        return True  # it uses no file any longer, whatever it holds
    return topic not in {each["queue"].partition(".")[0] for each in (await older.status())["shards"]}


async def _refuses(older: Daemon, topic: str) -> bool:
    """Whether it takes nothing in for the topic."""
    async with door_of(older) as door:
        answer = await ask(door, "POST", f"/v1/topics/{topic}/events", {"Records": [record("1", eventId="1")]})
    return answer.status >= 400


async def until_forgotten(daemon: Daemon, topic: str) -> tuple[Any, Any]:
    """The ledger and what `topic show` has, once no former layout is left: any worker removes it."""

    async def is_so() -> bool:
        return len((await daemon.command("topic", "show", topic, "--json")).json["layouts"]) == 1

    await daemon.until(is_so, "the end of the former layout")
    [ledger] = (await daemon.command("ledger", topic, "--json")).json
    return ledger, (await daemon.command("topic", "show", topic, "--json")).json
