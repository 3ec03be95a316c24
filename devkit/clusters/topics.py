"""Making Kafka topics, which remora never does itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import InvalidReplicationFactorError, for_code

PATIENCE_S = 120.0


class TopicNotMade(Exception):
    """Kafka refused to make a topic; the text names both topic and reason."""


async def make_topics(client: AIOKafkaAdminClient, topics: Sequence[NewTopic]) -> None:
    """Make them all. Raises TopicNotMade.

    A broker that stood still for some seconds is not taken for one until its next heartbeat: it is asked again.
    """
    deadline, left = time.monotonic() + PATIENCE_S, list(topics)
    while left:
        answer = await client.create_topics(left)
        failed = {name: for_code(code) for name, code, *_ in answer.topic_errors if code}
        for name, error in failed.items():
            if error is not InvalidReplicationFactorError or time.monotonic() > deadline:
                raise TopicNotMade(f"making the Kafka topic {name} failed: {error.__name__}")
        if left := [each for each in left if each.name in failed]:
            await asyncio.sleep(0.1)
