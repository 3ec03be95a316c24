"""A consumer of the demo's topic that reads all its partitions in the order of the commits, while things go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from remora.client import Checkpoint, CommitOrderReader, IngestClient, IngestError


@dataclass
class Merging:
    """What the consumer got: the numbers in its order, and the partitions that they came from."""

    bootstrap: str
    ingest: str
    topic: str
    partitions: int
    numbers: list[int] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)
    begun: int = 0
    _checkpoint: Checkpoint = field(default_factory=Checkpoint)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Merging]:
        """Read in the background for as long as the block lasts."""
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # that the broker is away is part of the story
        task = asyncio.create_task(self._run(), name="merging")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until(self, number: int, timeout_s: float) -> None:
        """Return when the event of this number was read, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._checkpoint.after < number:  # noqa: ASYNC110 - it is read in another task
                    await asyncio.sleep(0.1)

    def problems(self, tail: int) -> list[str]:
        """What is wrong when the last number is this: each number is to be there once, in order."""
        if self.numbers == list(range(1, tail + 1)):
            return []
        return [f"{len(self.numbers)} events up to number {self._checkpoint.after}, where {tail} were committed"]

    async def _run(self) -> None:
        """Read, and begin again from the checkpoint where the broker or the daemon was away for too long."""
        while True:
            self.begun += 1
            with contextlib.suppress(KafkaError, IngestError):
                await self._read()
            await asyncio.sleep(1)

    async def _read(self) -> None:
        async with (
            self._consumer("read_committed") as consumer,
            self._consumer("read_uncommitted") as ends,
            IngestClient(self.ingest) as client,
        ):
            reader = CommitOrderReader(client, self.topic, consumer, checkpoint=self._checkpoint, ends=ends)
            async with aclosing(reader.__aiter__()) as records:  # type: ignore[type-var]  # a generator
                async for number, record in records:
                    self.numbers.append(number)
                    self.sources.add(record.partition)
                    self._checkpoint = reader.order.checkpoint()

    @asynccontextmanager
    async def _consumer(self, isolation: str) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level=isolation,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            consumer.assign([TopicPartition(self.topic, number) for number in range(self.partitions)])
            yield consumer
        finally:
            await consumer.stop()
