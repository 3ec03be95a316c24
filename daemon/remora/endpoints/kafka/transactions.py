"""One transactional producer: a shard's records and the position that they reach, visible together or not at all.

It speaks Kafka's transaction protocol itself; `produce.py` says why aiokafka's producer is not used. Beyond that:

* EndTxn is sent once. A repeated one, on the same epoch, can end a later transaction (KAFKA-17754). Without a clear
  answer the outcome is unknown and the producer is not used again.
* Every answer is awaited before EndTxn, no batch is repeated, and after any failure nothing more is sent.
* aiokafka's OffsetFetch ends at version 3. That knows no `require_stable`: while the markers of a committed transaction
  are still being written, it answers with the position from before. Version 7 tells that the answer would be unstable.
* The position travels beside the records, where aiokafka does one step of a transaction after the other, with pauses of
  20 to 100 ms.
* All requests to a broker go over one connection: a broker takes one request of a connection at a time, and at two it
  would ask the coordinator twice whether batches and position belong to the transaction, and then refuse one of them.

What is sent in a transaction that fails stays invisible. It is aborted at once only when all of it was answered: a
batch that is still on its way could arrive behind the abort's marker, and on brokers before Kafka 3.6 begin a
transaction that nothing ends. Otherwise the next initialisation of the shard's producer aborts it (with a new epoch,
which refuses such a batch), or the broker does when the transaction's time is over.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import aiokafka.errors as kafka
from aiokafka.client import CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
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
from aiokafka.structs import TopicPartition

from remora.endpoints.kafka.batches import RecordBatch
from remora.endpoints.kafka.client import KafkaClient, writing
from remora.endpoints.kafka.lookup import ask_anybody
from remora.endpoints.kafka.produce import BUSY, MOVING, Numbering, init_producer, produce, until_answered
from remora.endpoints.tasks import Tasks
from remora.model.errors import without_frames

ABORT_PATIENCE_S = 2.0

UNSTABLE_OFFSET_COMMIT = 88

FENCED = (kafka.InvalidProducerEpoch, kafka.ProducerFenced, kafka.InvalidTxnState)
"""Another producer of this transactional id was initialised, or the broker ended the transaction for its age."""


class OffsetFetchResponse_v7(Response):  # type: ignore[misc]  # noqa: N801  # as aiokafka names its own
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class StableOffsetFetch(Request[OffsetFetchRequest_v7]):  # type: ignore[misc]  # aiokafka is Any to mypy
    """A group's offset of one partition, as the last transaction left it; refused while one is being ended."""

    API_KEY = 9

    def __init__(self, group: str, place: TopicPartition) -> None:
        self._group = group
        self._place = place

    def build(self, request_struct_class: type[OffsetFetchRequest_v7]) -> OffsetFetchRequest_v7:
        topics: list[Any] = [(self._place.topic, [self._place.partition], {})]
        return request_struct_class(self._group, topics, True, {})


class BatchFailed(Exception):
    """A batch was refused by its broker; `cause` is aiokafka's."""

    def __init__(self, sending: Sending, cause: Exception) -> None:
        super().__init__()
        self.sending = sending
        self.cause = cause


class GivenUp(Exception):
    """The transaction was given up, so it is not committed."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A batch on its way to a partition."""

    place: TopicPartition
    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class Mark:
    """A position, as the offset of a partition carries it: `text` decides, `offset` only informs."""

    offset: int
    text: str


class TransactionalProducer:
    """See the module. `name` is both the transactional id and the consumer group whose offset is the position.

    One transaction at a time. After any exception, and after a cancellation, it must be closed.
    """

    def __init__(
        self,
        client: KafkaClient,
        name: str,
        place: TopicPartition,
        tasks: Tasks,
        *,
        request_timeout_s: float,
        transaction_timeout_s: float,
    ) -> None:
        """`place` is the partition whose offset carries the position; its topic exists."""
        self.outcome_unknown = False
        self._client = client
        self._name = name
        self._place = place
        self._tasks = tasks
        self._request_timeout_s = request_timeout_s
        self._transaction_timeout_s = transaction_timeout_s
        self._coordinator = self._group_coordinator = -1
        self._numbering = Numbering(-1, -1)
        self._is_open = False
        self._unanswered = 0
        self._given_up = False
        self._work: asyncio.Task[Exception | None] | None = None

    # --------------------------------------------------------------------------------------- beginning

    async def initialise(self) -> None:
        """Fence every earlier producer of this name, and see to it that their open transactions are ended.

        Waits for as long as that takes. Raises what aiokafka raises.
        """

        async def ask(request: Any) -> Any:
            self._coordinator = await self._find(CoordinationType.TRANSACTION)
            return await self._ask(self._coordinator, request)

        self._numbering = await init_producer(ask, self._name, self._transaction_timeout_s)

    async def read_mark(self) -> Mark | None:
        """The position as the last committed transaction left it; None where none ever did.

        Waits while a transaction is being ended. Raises what aiokafka raises.
        """
        found: list[Mark] = []

        async def once() -> int:
            self._group_coordinator = await self._find(CoordinationType.GROUP)
            request = StableOffsetFetch(self._name, self._place)
            answer = await self._ask(self._group_coordinator, request)
            codes = [int(answer.error_code)]
            for _, partitions, _ in answer.topics:
                for _, offset, _, text, code, _ in partitions:
                    codes.append(int(code))
                    if offset >= 0 and not code:
                        found[:] = [Mark(offset, text or "")]
            return max(codes, key=abs)

        await self._repeat(once, (*MOVING, *BUSY), UNSTABLE_OFFSET_COMMIT)
        return found[0] if found else None

    async def _find(self, kind: CoordinationType) -> int:
        """The broker that coordinates our transactions, or our group."""
        found = [-1]

        async def once() -> int:
            answer = await ask_anybody(self._client, FindCoordinatorRequest(self._name, kind))
            found[0] = int(answer.coordinator_id)
            return int(answer.error_code)

        await self._repeat(once, MOVING)
        return found[0]

    async def _repeat(
        self, once: Callable[[], Awaitable[int]], passing: Iterable[type[Exception]], *codes: int
    ) -> None:
        await until_answered(once, passing, *codes, is_given_up=lambda: self._given_up)

    # -------------------------------------------------------------------------------------- transaction

    async def transact(self, sendings: Sequence[Sending], mark: Mark, patience_s: float) -> None:
        """Return when all batches and the position are committed; batches of a partition in the order of the list.

        Raises BatchFailed, TimeoutError, and what aiokafka raises; then nothing was committed, unless
        `outcome_unknown`.
        """
        self._work = self._tasks.ask(self._transact(sendings, mark), name=f"transaction of {self._name}")
        try:
            # Does not cancel it with the caller: what is under way is seen to its end, so that it can be aborted.
            done, _ = await asyncio.wait([self._work], timeout=patience_s)
        except asyncio.CancelledError:
            self._given_up = True
            raise
        if not done:
            self._given_up = True
            raise TimeoutError
        failure = self._work.result()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure, done

    async def _transact(self, sendings: Sequence[Sending], mark: Mark) -> None:
        nodes = self._by_leader(sendings)
        self._is_open = True
        adding = [self._add_group()]
        if sendings:
            adding.append(self._add_partitions({sending.place for sending in sendings}))
        _raise_worst(await asyncio.gather(*adding, return_exceptions=True))
        await self._client.ready(self._group_coordinator)
        outcomes = await asyncio.gather(
            self._commit_mark(mark),
            *(self._produce(node, theirs) for node, theirs in nodes.items()),
            return_exceptions=True,
        )
        _raise_worst(outcomes)
        await self._end()

    def _by_leader(self, sendings: Sequence[Sending]) -> dict[int, list[Sending]]:
        nodes: defaultdict[int, list[Sending]] = defaultdict(list)
        for sending in sendings:
            leader = self._client.cluster.leader_for_partition(sending.place)
            if leader is None or leader < 0:
                raise kafka.LeaderNotAvailableError
            nodes[leader].append(sending)
        return nodes

    async def _add_partitions(self, places: Iterable[TopicPartition]) -> None:
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for place in sorted(places):
            topics[place.topic].append(place.partition)

        async def once() -> int:
            request = AddPartitionsToTxnRequest(self._name, *self._identity, list(topics.items()))
            answer = await self._ask(self._coordinator, request)
            codes = [int(code) for _, partitions in answer.errors for _, code in partitions if code]
            # Where one partition was refused, the others were not attempted.
            telling = [code for code in codes if code != kafka.OperationNotAttempted.errno]
            return (telling or codes or [0])[0]

        await self._repeat(once, BUSY)

    async def _add_group(self) -> None:
        async def once() -> int:
            request = AddOffsetsToTxnRequest(self._name, *self._identity, self._name)
            return int((await self._ask(self._coordinator, request)).error_code)

        await self._repeat(once, BUSY)

    async def _commit_mark(self, mark: Mark) -> None:
        async def once() -> int:
            offsets = [(self._place.topic, [(self._place.partition, mark.offset, mark.text)])]
            request = TxnOffsetCommitRequest(self._name, self._name, *self._identity, offsets)
            answer = await self._ask(self._group_coordinator, request)
            return max((int(code) for _, partitions in answer.errors for _, code in partitions), key=abs)

        await self._repeat(once, BUSY)

    async def _produce(self, node: int, sendings: Sequence[Sending]) -> None:
        """Send one broker's batches, without waiting in between: nothing is repeated, so nothing changes places."""
        if not await self._client.ready(node):
            raise kafka.NodeNotReadyError
        # Each is written when its task takes its first step, and tasks do so in the order in which they were made.
        rounds = [self._send(node, each) for each in _rounds(sendings)]
        _raise_worst(await asyncio.gather(*rounds, return_exceptions=True))

    async def _send(self, node: int, sendings: dict[TopicPartition, Sending]) -> None:
        batches = {place: sending.batch for place, sending in sendings.items()}
        for place, batch in batches.items():
            self._numbering.number(place, batch)
        self._unanswered += 1
        refused = await produce(self._client, node, batches, self._request_timeout_s, self._name)
        self._unanswered -= 1
        _raise_worst(BatchFailed(sendings[place], error) for place, error in refused.items())

    async def _end(self) -> None:
        """Commit, once. Only a clear refusal leaves no doubt."""
        if self._given_up:
            raise GivenUp
        self.outcome_unknown = True
        request = EndTxnRequest(self._name, *self._identity, True)
        answer = await self._ask(self._coordinator, request)
        error = kafka.for_code(answer.error_code)
        # A coordinator that moves away may have written the decision before it answers so.
        if error in FENCED or error is kafka.NoError:
            self.outcome_unknown = False
            self._is_open = False
        if error is not kafka.NoError:
            raise error

    @property
    def _identity(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._numbering.producer_id, self._numbering.epoch

    async def _ask(self, node: int, request: Any) -> Any:
        self._unanswered += 1
        with writing():
            answer = await self._client.send(node, request)
        self._unanswered -= 1
        return answer

    # ---------------------------------------------------------------------------------------------- end

    async def close(self) -> None:
        """Abort what is open, where that is safe, in bounded time; the connections are for others to end."""
        self._given_up = True
        try:
            async with asyncio.timeout(ABORT_PATIENCE_S):
                if self._work is not None:
                    await asyncio.wait([self._work])
                if self._is_open and not self.outcome_unknown and not self._unanswered:
                    request = EndTxnRequest(self._name, *self._identity, False)
                    await self._ask(self._coordinator, request)
        except (TimeoutError, OSError, kafka.KafkaError) as exc:
            without_frames(exc)  # the next producer's initialisation aborts it, or the broker does in time
        finally:
            if self._work is not None:
                self._work.cancel()


def _rounds(sendings: Sequence[Sending]) -> list[dict[TopicPartition, Sending]]:
    """Requests that hold at most one batch of each partition, which is all that a broker takes, in order."""
    rounds: list[dict[TopicPartition, Sending]] = []
    sent: defaultdict[TopicPartition, int] = defaultdict(int)
    for sending in sendings:
        number = sent[sending.place]
        sent[sending.place] += 1
        if number == len(rounds):
            rounds.append({})
        rounds[number][sending.place] = sending
    return rounds


def _raise_worst(outcomes: Iterable[object]) -> None:
    """Raise the failure that tells most: who is fenced need not know what else went wrong."""
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    for failure in failures:
        if isinstance(failure.cause if isinstance(failure, BatchFailed) else failure, FENCED):
            raise failure
    for failure in failures:
        if isinstance(failure, BatchFailed):
            raise failure
    if failures:
        raise failures[0]
