"""A real Kafka for tests: clusters that can be hurt, topics, and what a consumer then reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiokafka.errors as errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from devkit.clusters.kerberos import has_kdc
from devkit.clusters.topics import make_topics
from devkit.paths import SCRIPTS
from devkit.readers.consumer import raw_records
from devkit.waits import PATIENT_S

_DEV_KAFKA = SCRIPTS / "dev-kafka"


@dataclass(frozen=True)
class Kafka:
    """A running cluster, as `scripts/dev-kafka` made it."""

    name: str
    env: dict[str, Any]

    @property
    def address(self) -> str:
        """Brokers without TLS and without log-in."""
        return str(self.env["bootstrap"])

    def stop(self, daemon: str = "broker.1", how: signal.Signals = signal.SIGKILL) -> None:
        """Hurt a broker: SIGKILL, SIGSTOP, SIGCONT ..."""
        _dev_kafka("stop", "--name", self.name, daemon, "--signal", how.name.removeprefix("SIG"))

    async def mend(self) -> None:
        """Bring back whatever was hurt."""
        for daemon in self.env["daemons"]:
            with contextlib.suppress(AssertionError):
                self.stop(daemon, signal.SIGCONT)
        await asyncio.to_thread(_dev_kafka, "up", "--name", self.name)

    async def tool(self, name: str, *args: str) -> None:
        """Run one of Kafka's own tools."""
        await asyncio.to_thread(_dev_kafka, "tool", "--name", self.name, name, "--", *args)

    async def start(self, daemon: str = "broker.1") -> None:
        """Bring a broker back; returns when it takes requests, and does not hold the loop up meanwhile."""
        await asyncio.to_thread(_dev_kafka, "start", "--name", self.name, daemon)


def _need_java() -> None:
    if not (shutil.which("java") and shutil.which("mvn")):
        if os.environ.get("CI"):
            pytest.fail("Kafka needs java and mvn: run scripts/setup")
        pytest.skip("Kafka needs java and mvn: run scripts/setup")


@contextlib.contextmanager
def running_kafka(purpose: str, *options: str) -> Iterator[Kafka]:
    """A cluster of one's own, removed afterwards."""
    _need_java()
    name = f"test-{purpose}-{os.getpid()}"
    _dev_kafka("down", "--name", name)  # what a killed process of this number has left
    try:
        env = Path(_dev_kafka("up", "--name", name, *options).strip().splitlines()[-1])
        yield Kafka(name, json.loads(env.read_text()))
    finally:
        _dev_kafka("down", "--name", name)


def _dev_kafka(*args: str) -> str:
    done = subprocess.run([_DEV_KAFKA, *args], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"dev-kafka {' '.join(args)}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def kafka() -> Kafka:
    """One broker with every kind of listener, which no test hurts; topics keep tests apart.

    All processes of a run share it, and it is left running for the next run; `scripts/test --down` removes it. Its name
    says what it listens to and in which month its certificates were made. The listeners with Kerberos are missing where
    Debian's krb5-kdc is; see `devkit.clusters.kerberos`.
    """
    _need_java()
    options = ["--sasl-ssl", "--oauth", *(["--kerberos"] if has_kdc() else [])]
    name = f"tests{''.join(options)}-{datetime.now(UTC):%Y-%m}"
    env = Path(_dev_kafka("up", "--name", name, *options).strip().splitlines()[-1])
    return Kafka(name, json.loads(env.read_text()))


@pytest.fixture(scope="module")
def fragile_kafka() -> Iterator[Kafka]:
    """One broker that tests may hurt, as long as they mend it."""
    with running_kafka("fragile") as running:
        yield running


# ------------------------------------------------------------------------------------ topics, contents


@contextlib.asynccontextmanager
async def admin(address: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client for as long as it is needed."""
    client = AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create_topic(address: str, name: str = "", partitions: int = 3, replicas: int = 1, **configs: object) -> str:
    """Create a topic, by default of a name of its own; `_` in a config's name stands for a dot."""
    name = name or f"t-{uuid.uuid4().hex[:12]}"
    settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
    async with admin(address) as client:
        await make_topics(client, [NewTopic(name, partitions, replicas, topic_configs=settings)])
        deadline = time.monotonic() + PATIENT_S
        # The answer comes from the controller; the brokers hear of the topic a moment later.
        while (await client.describe_topics([name]))[0]["error_code"]:
            assert time.monotonic() < deadline, f"{name} is not known"
            await asyncio.sleep(0.01)
    await _wait_for_leaders(address, [TopicPartition(name, each) for each in range(partitions)])
    return name


async def _wait_for_leaders(address: str, partitions: list[TopicPartition]) -> None:
    """Return when each partition's leader answers: a broker lists a new topic before it leads it."""
    client = AIOKafkaConsumer(bootstrap_servers=address, request_timeout_ms=round(PATIENT_S * 1000))
    await client.start()
    try:
        await client.end_offsets(partitions)
    finally:
        await client.stop()


async def delete_topic(address: str, name: str) -> None:
    async with admin(address) as client:
        await client.delete_topics([name])


async def grow_topic(address: str, name: str, partitions: int) -> None:
    async with admin(address) as client:
        await client.create_partitions({name: NewPartitions(partitions)})


async def configure_topic(address: str, name: str, **configs: object) -> None:
    settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
    async with admin(address) as client:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, settings)])


async def limit_topic(address: str, name: str, max_message_bytes: int) -> None:
    """Set the size limit, and return when the broker goes by it; the probes that show it bear no headers."""
    await configure_topic(address, name, max_message_bytes=max_message_bytes)
    probe = AIOKafkaProducer(bootstrap_servers=address)
    await probe.start()
    try:
        deadline = time.monotonic() + PATIENT_S
        while time.monotonic() < deadline:
            await probe.send_and_wait(name, b"x" * (max_message_bytes + 1), partition=0)
        raise AssertionError("the limit does not take effect")
    except errors.MessageSizeTooLargeError:
        pass
    finally:
        await probe.stop()


async def widen_topic(address: str, name: str, max_message_bytes: int) -> None:
    """Raise the size limit, and return when the broker goes by it, which is after it tells of it; the probes that show
    it bear no headers."""
    await configure_topic(address, name, max_message_bytes=max_message_bytes)
    probe = AIOKafkaProducer(bootstrap_servers=address)
    await probe.start()
    try:
        deadline = time.monotonic() + PATIENT_S
        while True:
            try:
                await probe.send_and_wait(name, b"x" * (max_message_bytes - 1000), partition=0)
                return
            except errors.MessageSizeTooLargeError:
                assert time.monotonic() < deadline, "the limit does not take effect"
    finally:
        await probe.stop()


async def read_topic(address: str, name: str, *, committed: bool = False) -> list[Any]:
    """Everything with headers in a topic, partition by partition, each in its order."""
    return [record for record in await raw_records(address, name, committed=committed) if record.headers]


async def read_committed(address: str, name: str) -> list[Any]:
    """What a reader of committed records finds in a topic, when no transaction is open there any more."""
    assert await settled(address, name), f"{name}: a transaction stays open"
    return await read_topic(address, name, committed=True)


async def settled(address: str, name: str, timeout_s: float = PATIENT_S) -> bool:
    """Whether every transaction in a topic ends in time.

    Kafka answers a commit before it has marked the end in each partition; until then nobody is shown the records.
    """
    deadline = time.monotonic() + timeout_s
    async with (
        AIOKafkaConsumer(name, bootstrap_servers=address, isolation_level="read_committed") as stable,
        AIOKafkaConsumer(name, bootstrap_servers=address) as whole,
    ):
        places = [TopicPartition(name, number) for number in stable.partitions_for_topic(name) or ()]
        while await stable.end_offsets(places) != await whole.end_offsets(places):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
    return True
