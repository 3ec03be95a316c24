"""Dead letters on their way to a Kafka topic of their own, at a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from devkit.clusters.kafka import Kafka, create_topic, read_topic
from devkit.entries.entries import raw_entry
from remora.codec.topic import DEAD_LETTER_TOPIC
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointMisconfigured
from remora.model.record import DeadLetter
from remora.model.shard import Shard
from remora.model.topic import Target
from support.kafka_sender import PATIENT

pytestmark = pytest.mark.kafka


@pytest.fixture
async def endpoint() -> AsyncIterator[KafkaEndpoint]:
    async with KafkaEndpoint(PATIENT) as running:
        yield running


def letter(number: int, raw: bytes) -> DeadLetter:
    return DeadLetter("t.1", "inc", f"0/{number}", f"0/{number + 1}", "expired", "too old", 2, 1.0, 2.0, raw)


async def test_letters_arrive(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """Letters arrive in their topic alone, whole and in the order of their key; without such a topic nowhere."""
    topic, letter_topic = await create_topic(kafka.address), await create_topic(kafka.address)
    letters = [letter(i, raw_entry(f"k{i % 3}", i)) for i in range(30)] + [letter(30, b"no entry")]
    target = Target(f"kafka://{kafka.address}", f"{DEAD_LETTER_TOPIC}={letter_topic}", topic)

    async with endpoint.route(Shard("t.1"), "inc", target) as route:
        await route.publish_letters(letters)
        await route.publish_letters([])
    async with endpoint.route(Shard("t.1"), "inc", Target(target.uri, "", topic)) as route:
        await route.publish_letters(letters)

    found = await read_topic(kafka.address, letter_topic)
    assert await read_topic(kafka.address, topic) == []
    assert sorted(each.value for each in found) == sorted(each.raw for each in letters)
    headers = [dict(each.headers) for each in found]
    assert {each["remora-cause"] for each in headers} == {b"expired"}
    for key in (b"bkt/k0", b"bkt/k1", b"bkt/k2"):
        of_key = [each.value for each in found if each.key == key]
        assert of_key == [each.raw for each in letters if each.raw in of_key]
        assert len(of_key) == 10


async def test_a_missing_topic(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A dead-letter topic that does not exist is said by its name, and the way for events stays open."""
    topic = await create_topic(kafka.address)
    target = Target(f"kafka://{kafka.address}", f"{DEAD_LETTER_TOPIC}=nobody-made-this", topic)

    async with endpoint.route(Shard("t.1"), "inc", target) as route:
        with pytest.raises(EndpointMisconfigured, match=r"dead-letter topic nobody-made-this"):
            await route.publish_letters([letter(1, b"no entry")])
        assert not route.stale
