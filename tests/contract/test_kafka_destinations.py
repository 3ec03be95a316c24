"""Brokers that the operator lets no topic connect to, beside a real cluster."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from devkit.clusters.kafka import Kafka, create_topic, read_topic
from devkit.waits import PATIENT_S
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointDenied
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.policy.delivery.destinations import DEFAULT_DENY, DestinationRules, read_rules
from support.kafka_sender import INCARNATION, PATIENT, make_records, push_all

pytestmark = pytest.mark.kafka

SHARD = Shard("shard")


async def refusals(uri: str, rules: DestinationRules) -> set[str]:
    """Why a target is denied, to deliver to it in either mode; none of its brokers counts as up then."""
    target, whys = Target(uri, "", "events"), set()
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(PATIENT, rules=rules) as endpoint:
        for way in (endpoint.route, endpoint.exact):
            with pytest.raises(EndpointDenied) as caught:
                async with way(SHARD, INCARNATION, target):
                    pass
            whys.add(str(caught.value))
        assert await endpoint.up(target) == frozenset()
    return whys


async def test_denied_brokers(kafka: Kafka) -> None:
    """What the operator denies, and the daemon's own listeners, are connected to in neither mode of delivery."""
    host, _, port = kafka.address.rpartition(":")
    loopback = read_rules(["127.0.0.0/8", "::1/128"], (), ())
    own = read_rules((), (), [("127.0.0.1", int(port))])

    assert await refusals(f"kafka://{kafka.address}", loopback) == {
        f"{host}:{port}: the endpoint is denied by destinations.deny (127.0.0.0/8)"
    }
    assert await refusals(f"kafka://{kafka.address}", own) == {f"{host}:{port}: the endpoint is this daemon itself"}


async def test_default_rules_leave_brokers_to_the_operator(kafka: Kafka) -> None:
    """A broker on loopback, where only HTTP and AMQP topics of S3 users may not lie by default, is delivered to."""
    topic, rules = await create_topic(kafka.address), read_rules(DEFAULT_DENY, (), [("127.0.0.1", 9750)])

    async with (
        KafkaEndpoint(PATIENT, rules=rules) as endpoint,
        endpoint.route(SHARD, INCARNATION, Target(f"kafka://{kafka.address}", "", topic)) as route,
    ):
        await push_all(route, make_records(0, 10))

    assert len(await read_topic(kafka.address, topic)) == 10


async def test_brokers_that_a_cluster_names(kafka: Kafka) -> None:
    """A cluster that lies where it may, and names brokers that do not, is not delivered to; the reason names one."""
    _, _, port = kafka.address.rpartition(":")
    rules = read_rules((), ["localhost"], ())

    whys = await refusals(f"kafka://localhost:{port}", rules)

    assert {why.partition(":")[0] for why in whys} == {"127.0.0.1"}
    assert {why.partition(": ")[2] for why in whys} == {"the endpoint is not among destinations.allow"}


async def test_a_name_that_changes_its_address(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name whose address is allowed while it is checked, and is another one when it is connected to, is denied."""
    _, _, port = kafka.address.rpartition(":")
    answers: list[str] = []
    real = socket.getaddrinfo

    def turncoat(host: Any, *args: Any, **options: Any) -> Any:
        if host != "turncoat.test":
            return real(host, *args, **options)
        answers.append("127.0.0.2" if len(answers) < 2 else "127.0.0.1")
        return real(answers[-1], *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", turncoat)
    async with KafkaEndpoint(PATIENT, rules=read_rules(["127.0.0.1/32"], (), ())) as endpoint:
        with pytest.raises(EndpointDenied, match=r"turncoat.test:[0-9]+: .* destinations.deny"):
            async with endpoint.route(SHARD, INCARNATION, Target(f"kafka://turncoat.test:{port}", "", "events")):
                pass

    assert answers == ["127.0.0.2", "127.0.0.2", "127.0.0.1"]
