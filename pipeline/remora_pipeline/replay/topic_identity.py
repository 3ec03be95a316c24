"""Which topic a name stands for at this moment: Kafka gives each topic an id, and one made again another one."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.properties import client_options

_METADATA = 3
_UNKNOWN_TOPIC = 3


class TopicIdentity(NamedTuple):
    """A topic, and the cluster that it is in; None where the brokers are too old to tell (before Kafka 2.8)."""

    topic_id: str | None
    cluster: str | None


class _Metadata12(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = _METADATA
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("id_high", Int64),
                ("id_low", Int64),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MetadataRequest12(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's own goes up to version 5, which has no ids."""

    API_KEY = _METADATA
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Metadata12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("id_high", Int64),
                ("id_low", Int64),
                ("name", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _AskTopic(Request[_MetadataRequest12]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY: ClassVar[int] = _METADATA

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_MetadataRequest12]) -> _MetadataRequest12:
        return request_struct_class([(0, 0, self._topic, {})], False, False, {})


async def identify(source: KafkaSource) -> TopicIdentity:
    """Which topic has the name of this one by now.

    Raises ReplayRefused for a topic that there is not, and ReplayError when no broker answers.
    """
    client = AIOKafkaClient(bootstrap_servers=source.bootstrap, **client_options(source.security))
    try:
        await client.bootstrap()
        answer: Any = await client.send(client.get_random_node(), _AskTopic(source.topic))
    except NotImplementedError:
        return TopicIdentity(None, None)
    except (KafkaError, OSError) as exc:
        raise ReplayError(f"{source.bootstrap}: no Kafka broker answers ({exc})") from exc
    finally:
        await client.close()
    for code, _, high, low, *_ in answer.topics:
        if code == _UNKNOWN_TOPIC:
            raise ReplayRefused(f"topic {source.topic}: there is none at {source.bootstrap}")
        if code == 0:
            return TopicIdentity(
                str(uuid.UUID(bytes=high.to_bytes(8, signed=True) + low.to_bytes(8, signed=True))), answer.cluster_id
            )
    return TopicIdentity(None, answer.cluster_id)
