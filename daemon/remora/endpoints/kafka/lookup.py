"""What packing must know about a Kafka topic: its partitions and its size limit."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass
from typing import Any

import aiokafka.errors as kafka
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from remora.endpoints.kafka.client import writing
from remora.endpoints.kafka.errors import translate
from remora.model.errors import EndpointMisconfigured

BROKER_DEFAULT_BYTES = 1_048_588
"""Kafka's own default of max.message.bytes, assumed where the user may not read the topic's configuration."""

DOUBT_S = 3.0
"""How long brokers may say that there is no such topic until they are believed: news of a topic that was just made,
or of any after a broker's start, take a moment to reach all of them, and longer where processor time is short. Half
the time that the look-up may take is the most."""

FIRST_PAUSE_S = 0.1
"""The pause before the topic is looked up anew; it doubles each time, so that a topic that does not exist costs few
questions."""

LIMIT = "max.message.bytes"

METADATA_PAUSE_S = 0.05

UNREACHABLE = (kafka.NodeNotReadyError, kafka.KafkaConnectionError, kafka.RequestTimedOutError)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """`limit_bytes` bounds a whole batch as sent; `limit_known` is False where it is Kafka's default, assumed."""

    partitions: int
    limit_bytes: int
    limit_known: bool


async def look_up(client: Any, topic: str, what: str, within_s: float) -> TopicFacts:
    """Ask the cluster about a topic. Raises EndpointMisconfigured when there is none, never creates it.

    `within_s` is how long the caller waits for it.
    """
    try:
        partitions = await _count_partitions(client, topic, what, min(DOUBT_S, within_s / 2))
        limit = await _read_limit(client, topic)
    except kafka.KafkaError as exc:
        raise translate(exc, what) from exc
    return TopicFacts(partitions, limit or BROKER_DEFAULT_BYTES, limit is not None)


async def look_up_and_follow(client: Any, topic: str, what: str, within_s: float) -> TopicFacts:
    """As `look_up`, and keep looking at the topic from now on; returns when the client sees it with as many partitions.

    While a topic gets more of them, or was made anew, brokers disagree about their number: then it is asked for anew.
    """
    facts = await look_up(client, topic, what, within_s)
    await client.add_topic(topic)
    while len(client.cluster.partitions_for_topic(topic) or ()) != facts.partitions:
        await asyncio.sleep(METADATA_PAUSE_S)
        await client.force_metadata_update()
        if len(client.cluster.partitions_for_topic(topic) or ()) > facts.partitions:
            facts = await look_up(client, topic, what, within_s)
    return facts


async def _count_partitions(client: Any, topic: str, what: str, doubt_s: float) -> int:
    now, pause_s = asyncio.get_running_loop().time, FIRST_PAUSE_S
    doubtful_until = now() + doubt_s
    while True:
        answer = await ask_anybody(client, MetadataRequest([topic], allow_auto_topic_creation=False))
        found = {name: (code, partitions) for code, name, *_, partitions in answer.topics}
        code, partitions = found.get(topic, (kafka.UnknownTopicOrPartitionError.errno, []))
        error = kafka.for_code(code)
        if error is kafka.NoError and partitions:
            return len(partitions)
        if error not in (kafka.NoError, kafka.UnknownTopicOrPartitionError):
            raise error
        left_s = doubtful_until - now()
        if left_s <= 0:
            raise EndpointMisconfigured(f"{what}: there is no such topic in Kafka")
        await asyncio.sleep(min(pause_s, left_s))  # so that the last look is at the very end
        pause_s *= 2


async def _read_limit(client: Any, topic: str) -> int | None:
    """The topic's max.message.bytes; None where the user may not read it, and where it is told as no size."""
    request = DescribeConfigsRequest([(ConfigResourceType.TOPIC, topic, [LIMIT])])
    try:
        answer = await ask_anybody(client, request)
    except kafka.IncompatibleBrokerVersion:
        return None
    for code, _, _, _, entries in answer.resources:
        if kafka.for_code(code) is kafka.NoError:
            for name, value, *_ in entries:
                if name == LIMIT:
                    return int(value) if re.fullmatch(r"[1-9][0-9]{0,17}", value or "") else None
    return None


async def ask_until_reached(client: Any, request: Any) -> Any:
    """The answer of any broker, as soon as one can be reached; the caller bounds the time."""
    while True:
        try:
            return await ask_anybody(client, request)
        except UNREACHABLE:
            await asyncio.sleep(METADATA_PAUSE_S)
            await client.force_metadata_update()


async def ask_anybody(client: Any, request: Any) -> Any:
    """The answer of any broker that can be reached."""
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    failure: kafka.KafkaError = kafka.NodeNotReadyError()
    for node in nodes:
        try:
            with writing():
                return await client.send(node, request)
        except UNREACHABLE as exc:
            failure = exc
    raise failure
