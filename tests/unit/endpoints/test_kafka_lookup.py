"""What brokers are believed about a topic."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiokafka.errors as kafka
import pytest
from aiokafka.protocol.metadata import MetadataRequest

from devkit.clock import in_virtual_time
from remora.endpoints.kafka.lookup import BROKER_DEFAULT_BYTES, look_up, look_up_and_follow
from remora.model.errors import EndpointMisconfigured


class Client:
    """Two brokers, which know the topic from a moment on; who asks may not read its configuration, unless it is given.

    `limit` is what they tell as its max.message.bytes.
    """

    def __init__(self, knows_from: float, *limit: str | None) -> None:
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1), SimpleNamespace(nodeId=2)])
        self.asked = 0
        self._knows_from = knows_from
        self._told: list[Any] = [(0, "", 2, "t", [("max.message.bytes", each, False, 5, False, [])]) for each in limit]

    async def send(self, _node: int, request: Any) -> Any:
        await asyncio.sleep(0.001)
        if not isinstance(request, MetadataRequest):
            return SimpleNamespace(resources=self._told)
        self.asked += 1
        if asyncio.get_running_loop().time() < self._knows_from:
            return SimpleNamespace(topics=[(kafka.UnknownTopicOrPartitionError.errno, "t", False, [])])
        return SimpleNamespace(topics=[(0, "t", False, [object()] * 3)])


@pytest.mark.parametrize("knows_from", [0.0, 0.5, 1.5, 2.9])
@in_virtual_time
async def test_a_topic_that_brokers_hear_of_late_is_found(knows_from: float) -> None:
    """A topic is looked up anew for 3 s before anybody says that there is none: it may have just been made."""
    found = await look_up(Client(knows_from), "t", "topic t", within_s=6)

    assert (found.partitions, found.limit_bytes, found.limit_known) == (3, BROKER_DEFAULT_BYTES, False)


@pytest.mark.parametrize(
    ("told", "limit_bytes"), [("5000", 5000), *((each, None) for each in (None, "", "0", "-1", "unlimited"))]
)
@in_virtual_time
async def test_what_is_told_as_the_limit(told: str | None, limit_bytes: int | None) -> None:
    """A limit that is no number from 1 on counts as one that nobody may read: it keeps nothing from being sent."""
    found = await look_up(Client(0.0, told), "t", "topic t", within_s=6)

    assert (found.limit_bytes, found.limit_known) == (limit_bytes or BROKER_DEFAULT_BYTES, limit_bytes is not None)


@pytest.mark.parametrize(("within_s", "doubt_s"), [(60, 3), (5, 2.5), (1, 0.5)])
@in_virtual_time
async def test_a_topic_that_does_not_exist_costs_few_questions(within_s: float, doubt_s: float) -> None:
    """What no broker hears of is believed in half the time that there is, after a handful of looks."""
    client = Client(float("inf"))

    with pytest.raises(EndpointMisconfigured, match="topic t: there is no such topic in Kafka"):
        await look_up(client, "t", "topic t", within_s)

    assert asyncio.get_running_loop().time() == pytest.approx(doubt_s, abs=0.1)
    assert client.asked <= 7


class Resized:
    """A cluster that counts a topic's partitions as `counts` say in turn, while its metadata has as many as it has."""

    def __init__(self, counts: list[int], seen: int) -> None:
        self.cluster = SimpleNamespace(
            brokers=lambda: [SimpleNamespace(nodeId=1)], partitions_for_topic=lambda _: set(range(seen))
        )
        self._counts = counts

    async def add_topic(self, _topic: str) -> None:
        """Metadata has it."""

    async def force_metadata_update(self) -> None:
        """It stays as it is."""

    async def send(self, _node: int, request: Any) -> Any:
        if not isinstance(request, MetadataRequest):
            return SimpleNamespace(resources=[])
        count = self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]
        return SimpleNamespace(topics=[(0, "t", False, [object()] * count)])


@in_virtual_time
async def test_a_topic_that_gets_more_partitions_meanwhile() -> None:
    """Where a broker that has not heard of new partitions counts too few, they are counted anew until all agree."""
    async with asyncio.timeout(60):
        found = await look_up_and_follow(Resized([3, 3, 6], seen=6), "t", "topic t", within_s=60)

    assert found.partitions == 6
