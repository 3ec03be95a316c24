"""Endpoints that hang in every way that there is, beside one that works: they hold up nobody but themselves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from devkit.clusters.kafka import Kafka, create_topic, read_topic
from devkit.receivers.bad_endpoints import hanging_endpoint
from devkit.waits import PATIENT_S, until
from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.endpoints.threads import MOST_OPEN
from remora.model.errors import EndpointUnavailable
from remora.model.shard import Shard
from remora.model.topic import Target
from support.kafka_sender import INCARNATION, ShardSender, make_records, verdict

pytestmark = pytest.mark.kafka

PATIENT = KafkaSettings(connect_timeout_s=2 * PATIENT_S, delivery_timeout_s=2 * PATIENT_S, ca_directories="/")
"""Nobody who hangs gives up while a test runs."""

SHARDS = 50


@asynccontextmanager
async def stuck(endpoint: KafkaEndpoint, targets: list[Target]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Fifty shards, spread over these targets, that wait for their way to open; in the end they give up."""

    async def enter(number: int) -> None:
        async with endpoint.route(Shard(f"bad.{number}"), INCARNATION, targets[number % len(targets)]):
            raise AssertionError("a way to nowhere is open")

    tasks = [asyncio.create_task(enter(number)) for number in range(SHARDS)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def assert_others_deliver(endpoint: KafkaEndpoint, uri: str, topic: str, address: str) -> None:
    """A shard of a healthy topic connects anew and delivers, and the threads that everybody shares are free."""
    records = make_records(0, 2000)
    async with asyncio.timeout(PATIENT_S):
        await ShardSender(endpoint, "healthy", Target(uri, "", topic)).send(records)
        assert await asyncio.to_thread(lambda: "free") == "free"
    assert verdict(await read_topic(address, topic), records) == (set(), 0, [])


@pytest.fixture
def mute_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Names under `.mute`, whose resolver does not answer until the test is over; and how often each was asked for."""
    asked: Counter[str] = Counter()
    over, ask = Event(), socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if str(host).endswith(".mute"):
            asked[host] += 1
            over.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution")
        return ask(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield asked
    over.set()


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_a_resolver_that_hangs(kafka: Kafka, mute_names: Counter[str]) -> None:
    """While the names of twenty endpoints are not answered, another name's brokers are found and delivered to."""
    topic = await create_topic(kafka.address)
    port = kafka.address.rpartition(":")[2]
    targets = [Target(f"kafka://broker{number}.mute:9092", "", "t") for number in range(20)]
    async with KafkaEndpoint(PATIENT) as endpoint, stuck(endpoint, targets) as shards:
        await until(lambda: len(mute_names) == len(targets), "all names are asked for")

        await assert_others_deliver(endpoint, f"kafka://localhost:{port}", topic, kafka.address)

        assert not any(each.done() for each in shards)
        assert set(mute_names.values()) == {1}


async def test_a_name_without_an_answer_is_asked_for_once(mute_names: Counter[str]) -> None:
    """Shards give up on a name in time and try again, but no second look-up starts before the first has ended."""
    target = Target("kafka://broker.mute:9092", "", "t")
    async with KafkaEndpoint(KafkaSettings(connect_timeout_s=0.05)) as endpoint:
        for _ in range(5):
            with pytest.raises(
                EndpointUnavailable, match=r"broker\.mute:9092: no answer in time|its address: no answer"
            ):
                async with endpoint.route(Shard("bad"), INCARNATION, target):
                    pass

    assert mute_names == {"broker.mute": 1}


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_names_without_answers_are_bounded(mute_names: Counter[str]) -> None:
    """However many names hang, only this many threads wait for them; a further one fails at once and says why."""

    async def refused(number: int) -> str:
        try:
            async with endpoint.route(Shard("bad"), INCARNATION, Target(f"kafka://bound{number}.mute:9092", "", "t")):
                return ""
        except EndpointUnavailable as exc:
            return str(exc)

    async with KafkaEndpoint(PATIENT) as endpoint:
        waiting = [asyncio.create_task(refused(number)) for number in range(2 * MOST_OPEN)]
        await until(lambda: sum(each.done() for each in waiting) >= MOST_OPEN, "all that are too many are refused")
        why = [each.result() for each in waiting if each.done()]
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)

    assert all("do not answer already" in each for each in why)
    assert sum(mute_names.values()) <= MOST_OPEN


@pytest.fixture
def mute_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files `*.mute`, whose server does not answer until the test is over."""
    over, resolve = Event(), os.path.realpath

    def realpath(path: Any, **options: Any) -> Any:
        if str(path).endswith(".mute"):
            over.wait()
        return resolve(path, **options)

    monkeypatch.setattr(os.path, "realpath", realpath)
    yield
    over.set()


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.usefixtures("mute_files")
async def test_authorities_on_a_file_system_that_hangs(kafka: Kafka, tmp_path: Path) -> None:
    """While the ca-location of twenty targets cannot be read, other topics are delivered."""
    topic = await create_topic(kafka.address)
    files = [tmp_path / f"ca{number}.mute" for number in range(20)]
    targets = [Target(f"kafka://{kafka.address}", f"use-ssl=true&ca-location={each}", "t") for each in files]
    async with KafkaEndpoint(PATIENT) as endpoint, stuck(endpoint, targets) as shards:
        await assert_others_deliver(endpoint, f"kafka://{kafka.address}", topic, kafka.address)

        assert not any(each.done() for each in shards)


@pytest.mark.usefixtures("mute_files")
async def test_unreadable_authorities_are_given_up_in_time(tmp_path: Path) -> None:
    """A ca-location that cannot be read in the time to connect fails its topic, which names the file."""
    file = tmp_path / "ca.mute"
    target = Target("kafka://127.0.0.1:1", f"use-ssl=true&ca-location={file}", "t")
    settings = KafkaSettings(connect_timeout_s=0.05, ca_directories="/")
    async with KafkaEndpoint(settings) as endpoint, asyncio.timeout(PATIENT_S):
        with pytest.raises(EndpointUnavailable, match=f"{file}: no answer within"):
            async with endpoint.route(Shard("bad"), INCARNATION, target):
                pass


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.parametrize("args", ["", "use-ssl=true&verify-ssl=false"], ids=["plain", "tls"])
async def test_brokers_that_never_answer(kafka: Kafka, args: str) -> None:
    """Fifty shards wait at an endpoint that accepts and never answers, over one connection; others deliver."""
    topic = await create_topic(kafka.address)
    async with hanging_endpoint() as mute, KafkaEndpoint(PATIENT) as endpoint:
        targets = [Target(f"kafka://{mute.address}", args, f"t{number}") for number in range(SHARDS)]
        async with stuck(endpoint, targets) as shards:
            await asyncio.wait_for(mute.came.wait(), PATIENT_S)

            await assert_others_deliver(endpoint, f"kafka://{kafka.address}", topic, kafka.address)

            assert not any(each.done() for each in shards)
            assert mute.most == 1


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_connections_to_a_mute_broker_do_not_pile_up(kafka: Kafka) -> None:
    """Attempts that gave up leave no connection behind, so that there is never more than one."""
    async with hanging_endpoint() as mute, KafkaEndpoint(KafkaSettings(connect_timeout_s=0.05)) as endpoint:
        for _ in range(10):
            with pytest.raises(EndpointUnavailable):
                async with endpoint.route(Shard("bad"), INCARNATION, Target(f"kafka://{mute.address}", "", "t")):
                    pass

        await until(lambda: mute.accepted > 0 and mute.open == 0, "all connections are gone")
        assert mute.most <= 2  # the end of one may be seen after the beginning of the next
