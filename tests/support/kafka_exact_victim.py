"""A process that freezes itself in the middle of a transaction.

Run as a program with brokers, topic and queue it enters the queue's route, sends fifty records in a transaction, and
stops itself just before it would commit. Continued, it goes on, and prints what came of that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointError
from remora.model.shard import Shard
from remora.model.topic import Target
from support.kafka_sender import INCARNATION, make_records

PATIENT = KafkaSettings(delivery_timeout_s=300, transaction_timeout_s=600)
"""However long it is frozen, only a producer that enters after it ends its transaction."""


async def main(address: str, topic: str, queue: str) -> None:
    """Send, freeze, commit."""
    target = Target(f"kafka://{address}", "", topic)
    async with (
        KafkaEndpoint(PATIENT) as endpoint,
        endpoint.exact(Shard(queue), INCARNATION, target) as route,
    ):
        producer = route._opened.producer
        end = producer._end

        async def freeze() -> None:
            os.kill(os.getpid(), signal.SIGSTOP)
            await end()

        producer._end = freeze  # type: ignore[method-assign]  # there, all is sent and nothing committed
        batches, _ = route.pack(make_records(0, 50))
        try:
            await route.commit(batches, b"0/50")
            sys.stdout.write("committed\n")
        except EndpointError as exc:
            sys.stdout.write(f"{type(exc).__name__}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
