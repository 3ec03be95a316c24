"""The way to an endpoint, step by step: what each kind finds out without an event, and what an event tells."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka, create_topic, read_topic
from devkit.clusters.nats import Nats
from devkit.clusters.rabbitmq import RabbitMQ
from devkit.receivers.receiver import receiving
from remora import endpoint_kinds
from remora.config import Settings
from remora.model.shard import Origin
from remora.model.topic import Target, Topic
from remora.ports.endpoint import ProbeStep

PATIENT = Settings()
PATIENT = replace(
    PATIENT, kafka=replace(PATIENT.kafka, connect_timeout_s=60), nats=replace(PATIENT.nats, connect_timeout_s=60)
)


async def probed(uri: str, args: str = "", there: str = "t", *, sends_test: bool = False) -> list[ProbeStep]:
    topic = Topic("t", "", "t", Target(uri, args, there), origin=Origin.REMORA)
    return [each async for each in endpoint_kinds.probe(topic, PATIENT, sends_test=sends_test)]


def outcomes(steps: list[ProbeStep]) -> list[tuple[str, bool | None]]:
    return [(each.name, each.ok) for each in steps]


async def test_a_port_where_nobody_listens_fails_at_the_connection() -> None:
    """The name is resolved, the connection is refused in words, and nothing behind it is tried."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

        for scheme, args in (("kafka", ""), ("http", ""), ("amqp", "amqp-exchange=e"), ("nats", "nats-stream=s")):
            steps = await probed(f"{scheme}://127.0.0.1:{port}", args)

            assert outcomes(steps) == [("resolve", True), ("connect", False)], scheme
            assert steps[-1].said == f"127.0.0.1:{port}: Connection refused"
            assert all(each.seconds >= 0 for each in steps)


async def test_an_endpoint_that_means_nothing_fails_before_any_step() -> None:
    """All that is wrong with it is said at once."""
    [step] = await probed("amqp://b:99999")

    assert (step.name, step.ok) == ("attributes", False)
    assert "amqp-exchange is missing" in step.said
    assert "the port is not a number from 1 to 65535" in step.said


async def test_files_that_no_topic_may_name_are_refused(tmp_path: Path) -> None:
    """A ca-location outside the allowed directories ends the way where TLS begins."""
    (tmp_path / "ca.pem").write_text("")
    async with receiving() as receiver:
        steps = await probed(f"https://127.0.0.1:{receiver.port}", f"ca-location={tmp_path}/ca.pem")

    assert outcomes(steps)[-1] == ("tls", False)
    assert "not below a directory of kafka.ca_directories" in steps[-1].said


async def test_a_receiver_of_http_gets_no_event_unless_asked() -> None:
    """It is asked by HEAD; with a test event it gets one s3:TestEvent, and its answer is the last step."""
    async with receiving() as receiver:
        without = await probed(f"http://127.0.0.1:{receiver.port}/in")
        before = len(receiver.bodies)
        with_event = await probed(f"http://127.0.0.1:{receiver.port}/in", sends_test=True)
        bodies = receiver.bodies[before:]

    assert outcomes(without)[-2:] == [("path", True), ("write", None)]
    assert b"s3:TestEvent" not in b"".join(receiver.bodies[:before])
    assert (outcomes(with_event)[-1], with_event[-1].said) == (("send", True), "an s3:TestEvent was acknowledged")
    assert b'"s3:TestEvent"' in b"".join(bodies)


@pytest.mark.kafka
async def test_a_kafka_topic_is_found_and_may_be_written_to(kafka: Kafka) -> None:
    """Each step succeeds and no record is written; one that is missing is named."""
    topic = await create_topic(kafka.address, partitions=3)

    there = await probed(f"kafka://{kafka.address}", there=topic)
    missing = await probed(f"kafka://{kafka.address}", there=f"{topic}-missing")

    names = ["resolve", "connect", "login", "topic", "write"]
    assert outcomes(there) == [(name, True) for name in names], there
    assert there[3].said == f"{topic} has 3 partitions"
    assert await read_topic(kafka.address, topic) == []
    assert outcomes(missing)[-1] == ("topic", False)
    assert missing[-1].said.endswith("there is no such topic in Kafka")


async def test_an_exchange_is_found(rabbitmq: RabbitMQ) -> None:
    """The log-in and the exchange are looked at; whether it may be written to needs a message."""
    there = await probed(f"amqp://{rabbitmq.address}", "amqp-exchange=amq.topic")
    missing = await probed(f"amqp://{rabbitmq.address}", "amqp-exchange=nosuch")

    assert outcomes(there)[-3:] == [("login", True), ("exchange", True), ("write", None)]
    assert outcomes(missing)[-1] == ("exchange", False)
    assert "there is no such exchange" in missing[-1].said


async def test_a_stream_is_found(nats_server: Nats) -> None:
    """The log-in, the stream and its window are looked at; a window that is shorter than the pauses is remarked on."""
    stream, short = await nats_server.stream(), await nats_server.stream(duplicate_window=5.0)
    there = await probed(f"nats://{nats_server.address}", f"nats-stream={stream}", there=stream)
    hasty = await probed(f"nats://{nats_server.address}", f"nats-stream={short}", there=short)
    missing = await probed(f"nats://{nats_server.address}", "nats-stream=nosuch")

    assert outcomes(there)[-4:] == [("login", True), ("stream", True), ("copies", True), ("write", None)]
    assert "spans the usual pauses" in there[-2].said
    assert "drops copies for 5 s" in hasty[-2].said
    assert "attempts may lie 40 s apart" in hasty[-2].said
    assert outcomes(missing)[-1] == ("stream", False)
    assert "there is no such stream" in missing[-1].said
    shown = Topic(
        "t", "", "t", Target(f"nats://{nats_server.address}", f"nats-stream={short}", short), origin=Origin.REMORA
    )
    assert await endpoint_kinds.standing(shown, PATIENT) == [hasty[-2].said]
    assert await endpoint_kinds.standing(replace(shown, retry_sleep_s=3600), PATIENT) == [
        hasty[-2].said.replace("40 s", "3610 s")
    ]
