"""The events of a topic in the order of their commits, merged from all partitions of its Kafka topic.

    async with IngestClient("unix:/run/remora/ingest.sock") as client:
        reader = CommitOrderReader(client, "orders", consumer, "orders")
        async for number, record in reader:
            index(record.value, version=number)

`CommitOrder` is the merge itself, for consumers of other libraries: a heap by number, that lets go what follows.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from remora.client.errors import IngestError
from remora.client.ingest import IngestClient
from remora.client.progress import BadHeader, is_number, shown

HEADER = "remora-seq"
"""The header of a record with `<topic id>:<number>`."""

R = TypeVar("R")
P = TypeVar("P")


class SequenceEnded(IngestError):
    """The topic was removed, and made anew or not: what has its number now is another event."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a consumer goes on: behind the event of this number, reading each partition from an offset on.

    Both belong together: to be kept in one transaction with what was made of the events.
    """

    after: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)


class _Held(NamedTuple, Generic[R]):
    """A record that waits for its turn. No two have the same partition and offset, so records are not compared."""

    number: int
    partition: int
    offset: int
    record: R


class _Partition:
    """How far a partition was read, and which of its records wait: told in O(1), however many do."""

    __slots__ = ("_gone", "_waiting", "end")

    def __init__(self, end: int) -> None:
        self.end = end
        self._waiting: deque[int] = deque()
        self._gone: set[int] = set()

    @property
    def resume_at(self) -> int:
        """The least offset of a record that waits, or else the one behind the last that was read."""
        return self._waiting[0] if self._waiting else self.end

    def hold(self, offset: int) -> None:
        """A record waits. The offsets of a partition increase."""
        self._waiting.append(offset)

    def let_go(self, offset: int) -> None:
        """Notes that a record no longer waits."""
        self._gone.add(offset)
        while self._waiting and self._waiting[0] in self._gone:
            self._gone.discard(self._waiting.popleft())


class CommitOrder(Generic[R]):
    """Merges the records of all partitions by number. Belongs to one task.

    Numbers are dense, so the record behind the last one goes on at once, whatever else is still to come. A number that
    is missing holds up all later ones until `pass_to` says that it will never come: its event became a dead letter, or
    was given up. Copies of a record are passed over.
    """

    def __init__(self, topic_id: str, checkpoint: Checkpoint | None = None) -> None:
        """`topic_id` is as `IngestClient.sequence` has it; records of another topic are passed over."""
        start = checkpoint or Checkpoint()
        self._prefix = topic_id.encode() + b":"
        self._partitions = {partition: _Partition(offset) for partition, offset in start.offsets.items()}
        self._heap: list[_Held[R]] = []
        self.upto = start.after
        """Every event up to this number has been let go, or will never come."""

    @property
    def held(self) -> int:
        """How many records wait for one that is missing."""
        return len(self._heap)

    def add(self, partition: int, offset: int, header: bytes | None, record: R) -> None:
        """Take the next record of a partition, with its header `remora-seq` if it has one.

        Raises BadHeader for one of this topic that has no number; then it has not been taken.
        """
        number = 0  # of a record of another topic
        if header is not None and header.startswith(self._prefix):
            digits = header[len(self._prefix) :]
            if not is_number(digits):
                raise BadHeader(f"{HEADER} is {shown(header)!r}, not <topic id>:<number>")
            number = int(digits)
        if (place := self._partitions.get(partition)) is None:
            place = self._partitions[partition] = _Partition(offset)
        place.end = offset + 1
        if number > self.upto:
            place.hold(offset)
            heapq.heappush(self._heap, _Held(number, partition, offset, record))

    def follow(self) -> Iterator[tuple[int, R]]:
        """Number and record of each event that follows the last one without a hole, in order."""
        while self._heap and self._heap[0].number <= self.upto + 1:
            if each := self._pop():
                yield each

    def pass_to(self, delivered: int) -> Iterator[tuple[int, R]]:
        """As `follow`, and all others up to a number: those that are missing below it will never come.

        `delivered` is as `IngestClient.sequence` has it, where each partition has since been read up to the end that it
        had after that answer.
        """
        while self._heap and self._heap[0].number <= delivered:
            if each := self._pop():
                yield each
        self.upto = max(self.upto, delivered)
        yield from self.follow()

    def checkpoint(self) -> Checkpoint:
        """Where to go on behind the last event that was let go. Costs as little after each event as now and then."""
        return Checkpoint(self.upto, {partition: each.resume_at for partition, each in self._partitions.items()})

    def _pop(self) -> tuple[int, R] | None:
        """The record of the least number; None for a copy."""
        number, partition, offset, record = heapq.heappop(self._heap)
        self._partitions[partition].let_go(offset)
        if number <= self.upto:
            return None
        self.upto = number
        return number, record


class Consumer(Protocol):
    """What is used of a Kafka consumer; aiokafka's is one."""

    def assign(self, partitions: Any, /) -> None: ...
    def assignment(self) -> Any: ...
    def seek(self, partition: Any, offset: int, /) -> None: ...
    async def getmany(self, *partitions: Any, timeout_ms: int) -> Mapping[Any, Sequence[Any]]: ...
    async def position(self, partition: Any, /) -> int: ...
    async def end_offsets(self, partitions: Any, /) -> Mapping[Any, int]: ...


class CommitOrderReader:
    """Reads a Kafka topic with a consumer to which all its partitions are assigned, and none of another topic.

    A `checkpoint` of an earlier reader moves the consumer to where that one was. `ends` is asked where partitions end.
    It is needed where `consumer` reads committed records only, and is then a consumer that reads all: what is committed
    may lie behind the end that the first one sees. Where events are missing, and while none come, the server is asked
    how far the topic has come, at most every `ask_s`.

    Records wait in memory for those that are missing: those of a shard whose delivery is held up. `order.held` says how
    many do. Partitions that are added later are not read: begin again from the checkpoint with all of them.
    """

    def __init__(
        self,
        client: IngestClient,
        topic: str,
        consumer: Consumer,
        *,
        checkpoint: Checkpoint | None = None,
        ends: Consumer | None = None,
        ask_s: float = 1.0,
    ) -> None:
        self._client, self._topic = client, topic
        self._consumer, self._ends = consumer, ends or consumer
        self._start, self._ask_s = checkpoint or Checkpoint(), ask_s
        self._id = ""
        self._goal: tuple[int, Mapping[Any, int]] | None = None
        self._ask_at = 0.0
        self.order: CommitOrder[Any]

    async def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        """Number and record of each event, for ever. Raises SequenceEnded, and what the consumer and client raise."""
        self._id = (await self._client.sequence(self._topic)).id
        self.order = CommitOrder(self._id, self._start)
        for partition in self._consumer.assignment():
            if partition.partition in self._start.offsets:
                self._consumer.seek(partition, self._start.offsets[partition.partition])
        while True:
            found = await self._consumer.getmany(timeout_ms=int(self._ask_s * 1000))
            for partition, records in found.items():
                for record in records:
                    header = next((value for name, value in record.headers if name == HEADER), None)
                    self.order.add(partition.partition, record.offset, header, record)
            for each in self.order.follow():
                yield each
            for each in await self._pass_holes(is_idle=not found):
                yield each

    async def _pass_holes(self, *, is_idle: bool) -> Iterator[tuple[int, Any]]:
        """What may go on since everything before it has left, or nothing."""
        if self._goal is None and (self.order.held or is_idle):
            self._goal = await self._asked()
        if self._goal is None:
            return iter(())
        delivered, ends = self._goal
        for partition, end in ends.items():
            if await self._consumer.position(partition) < end:
                return iter(())
        self._goal = None
        return self.order.pass_to(delivered)

    async def _asked(self) -> tuple[int, Mapping[Any, int]] | None:
        """How far the topic has come, and where the partitions end since then; None where nothing is gained by it."""
        now = asyncio.get_running_loop().time()
        if now < self._ask_at:
            return None
        self._ask_at = now + self._ask_s
        reached = await self._client.sequence(self._topic)
        if reached.id != self._id:
            raise SequenceEnded(f"topic {self._topic} was made anew")
        if reached.delivered <= self.order.upto:
            return None
        return reached.delivered, await self._ends.end_offsets(list(self._consumer.assignment()))
