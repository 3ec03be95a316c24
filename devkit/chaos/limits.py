"""What the Kafka topics of a run are like, and how large a message they take: that changes while events come in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from devkit.chaos import leaders
from devkit.chaos.clusters import ChaosError

LARGEST, SMALLER = 1 << 16, 1 << 13
"""What a topic takes, and what it takes for a while: less than the larger ones of the good entries."""

KAFKA_TOPIC = {
    "min.insync.replicas": "2",
    "message.timestamp.type": "LogAppendTime",  # the brokers' clock is never stepped
    "max.message.bytes": str(LARGEST),
}

PATIENCE_S = 90.0
"""For so long a change is tried again, while brokers are hurt."""


async def limit(bootstrap: str, topics: Sequence[str], nbytes: int) -> None:
    """Have these topics take messages of at most this many bytes."""
    deadline = time.monotonic() + PATIENCE_S
    configs = KAFKA_TOPIC | {"max.message.bytes": str(nbytes)}  # which replaces all that was set
    resources = [ConfigResource(ConfigResourceType.TOPIC, each, configs) for each in topics]
    while why := await _altered(bootstrap, resources):
        if time.monotonic() > deadline:
            raise ChaosError(f"max.message.bytes cannot be set: {why}")
        await asyncio.sleep(0.5)


async def _altered(bootstrap: str, resources: Sequence[ConfigResource]) -> str:
    """Change topics; what stands against that, "" for nothing."""
    try:
        async with leaders.admin(bootstrap) as client:
            answers = await client.alter_configs(list(resources))
    except (KafkaError, OSError, TimeoutError) as error:
        return repr(error)
    return str(answers) if any(code for answer in answers for code, *_ in answer.resources) else ""
