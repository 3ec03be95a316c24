"""What packing must know about a Kafka topic: its partitions and its size limit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import aiokafka.errors as kafka
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from remora.endpoints.kafka.errors import translate
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable

BROKER_DEFAULT_BYTES = 1_048_588
"""Kafka's own default of max.message.bytes, assumed where the user may not read the topic's configuration."""

LIMIT = "max.message.bytes"

UNREACHABLE = (kafka.NodeNotReadyError, kafka.KafkaConnectionError, kafka.RequestTimedOutError)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """`limit_bytes` bounds a whole batch as sent; `limit_known` is False where it is Kafka's default, assumed."""

    partitions: int
    limit_bytes: int
    limit_known: bool


async def look_up(client: Any, topic: str, what: str) -> TopicFacts:
    """Ask the cluster about a topic. Raises EndpointMisconfigured when there is none, never creates it."""
    try:
        partitions = await _count_partitions(client, topic, what)
        limit = await _read_limit(client, topic)
    except kafka.KafkaError as exc:
        raise translate(exc, what) from exc
    return TopicFacts(partitions, limit or BROKER_DEFAULT_BYTES, limit is not None)


async def _count_partitions(client: Any, topic: str, what: str) -> int:
    answer = await _ask(client, MetadataRequest([topic], allow_auto_topic_creation=False))
    for code, name, *_, partitions in answer.topics:
        if name != topic:
            continue
        error = kafka.for_code(code)
        if error is kafka.UnknownTopicOrPartitionError:
            raise EndpointMisconfigured(f"{what}: there is no such topic in Kafka")
        if error is not kafka.NoError:
            raise error
        if partitions:
            return len(partitions)
    raise EndpointUnavailable(f"{what}: the broker tells nothing about this topic")


async def _read_limit(client: Any, topic: str) -> int | None:
    """The topic's max.message.bytes; None where the user may not read it."""
    request = DescribeConfigsRequest([(ConfigResourceType.TOPIC, topic, [LIMIT])])
    try:
        answer = await _ask(client, request)
    except kafka.IncompatibleBrokerVersion:
        return None
    for code, _, _, _, entries in answer.resources:
        if kafka.for_code(code) is kafka.NoError:
            for name, value, *_ in entries:
                if name == LIMIT:
                    return int(value)
    return None


async def _ask(client: Any, request: Any) -> Any:
    """The answer of any broker that can be reached."""
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    failure: kafka.KafkaError = kafka.NodeNotReadyError()
    for node in nodes:
        try:
            return await client.send(node, request)
        except UNREACHABLE as exc:
            failure = exc
    raise failure
