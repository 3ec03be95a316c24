"""What both senders say to brokers: who produces, which number each record has, and the batches themselves.

It speaks Kafka's produce protocol over aiokafka's connections and requests. aiokafka's own producer was weighed: it
repeats a batch for ever, also after its caller gave up, and a copy that arrives behind newer records of its key is out
of order; it holds a broker back while it waits before a repeat of one partition's batch; its batches cannot be shared
or taken back; and it repeats EndTxn, which can end a later transaction (KAFKA-17754).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import aiokafka.errors as kafka
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.structs import TopicPartition

from remora.endpoints.kafka.batches import RecordBatch
from remora.endpoints.kafka.client import KafkaClient, writing
from remora.endpoints.kafka.errors import error_of

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.05
"""Between repeats of what a coordinator cannot answer yet: right after a commit its markers are still being written."""

MOVING = (kafka.GroupCoordinatorNotAvailableError, kafka.NotCoordinatorForGroupError)
BUSY = (kafka.GroupLoadInProgressError, kafka.ConcurrentTransactions)

SEQUENCES = 2**31
"""Sequence numbers begin anew after the largest that Kafka's int32 holds."""


class Numbering:
    """A producer's id and epoch, and the sequence number of the next record of each partition.

    The broker takes each number of a partition once, and in order. So a batch that is repeated keeps its numbers, and
    once a numbered batch was given up its partition takes nothing more from this producer.
    """

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._next: defaultdict[TopicPartition, int] = defaultdict(int)

    def number(self, place: TopicPartition, batch: RecordBatch) -> None:
        """Give the batch the next numbers of its partition."""
        first = self._next[place]
        self._next[place] = (first + len(batch)) % SEQUENCES
        batch.number(self.producer_id, self.epoch, first)


async def init_producer(
    ask: Callable[[InitProducerIdRequest], Awaitable[Any]],
    transactional_id: str | None = None,
    transaction_timeout_s: float = 0.0,
) -> Numbering:
    """A producer id. With a transactional id it fences every earlier producer of that id, and ends what they had open.

    `ask` sends the request to the broker that answers it. Waits while the broker is busy. Raises what aiokafka raises.
    """
    request = InitProducerIdRequest(transactional_id, int(transaction_timeout_s * 1000))
    found: list[Numbering] = []

    async def once() -> int:
        answer = await ask(request)
        found[:] = [Numbering(answer.producer_id, answer.producer_epoch)]
        return int(answer.error_code)

    await until_answered(once, (*MOVING, *BUSY))
    return found[0]


async def until_answered(
    once: Callable[[], Awaitable[int]],
    passing: Iterable[type[Exception]],
    *codes: int,
    is_given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Ask until the answer's code is none of those that pass by themselves; raise it where it is an error."""
    later = {int(each.errno) for each in passing} | set(codes)  # type: ignore[attr-defined]  # aiokafka's have one
    pause_s = FIRST_PAUSE_S
    while (code := await once()) in later and not is_given_up():
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    if code:
        raise kafka.for_code(code)


async def produce(
    client: KafkaClient,
    node: int,
    batches: Mapping[TopicPartition, RecordBatch],
    timeout_s: float,
    transactional_id: str | None = None,
) -> dict[TopicPartition, kafka.KafkaError]:
    """Send numbered batches to their leader in one request, and return why it refused those that it did.

    The request is written at the first step where the connection is open. The leader answers when all replicas in sync
    have the batches, or after `timeout_s`. Raises what aiokafka raises when there is no answer; batches may have been
    taken nevertheless.
    """
    topics: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for place, batch in batches.items():
        topics[place.topic].append((place.partition, batch.encoded()))
    request = ProduceRequest(
        transactional_id=transactional_id,
        required_acks=-1,
        timeout=int(timeout_s * 1000),
        topics=list(topics.items()),
    )
    with writing():
        answer = await client.send(node, request)
    codes = {
        TopicPartition(topic, partition): code
        for topic, partitions in answer.topics
        for partition, code, *_ in partitions
    }
    errors = {place: error_of(codes.get(place, kafka.UnknownError.errno)) for place in batches}
    return {place: error() for place, error in errors.items() if error is not kafka.NoError}
