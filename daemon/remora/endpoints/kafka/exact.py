"""Routes in transactions: who may open one now, what opening one takes, and what its failures mean."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiokafka.errors as kafka
from aiokafka.structs import TopicPartition

from remora.config.delivery import KafkaSettings
from remora.endpoints.kafka.batches import CODECS, RecordBatch
from remora.endpoints.kafka.client import KafkaClient, request_timeout_s
from remora.endpoints.kafka.errors import TOO_LARGE, translate
from remora.endpoints.kafka.identity import ConnectionIdentity, build_client
from remora.endpoints.kafka.lookup import TopicFacts, look_up_and_follow
from remora.endpoints.kafka.packer import KafkaBatch, LetterBatch, LetterPacker, Packer, RecordOrigin, SmallerBatches
from remora.endpoints.kafka.target import KafkaTarget
from remora.endpoints.kafka.transactions import (
    FENCED,
    BatchFailed,
    GivenUp,
    Mark,
    Sending,
    TransactionalProducer,
)
from remora.endpoints.observer import KafkaObserver
from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointError, EndpointFenced, EndpointMisconfigured, EndpointUnavailable
from remora.model.position import Position
from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.ports.endpoint import Batch

TURN_S = 2.0
"""How long a route may go on while other shards wait for theirs; opening one takes a few hundredths of that."""

NAME_PREFIX = "remora."
"""What every transactional id and consumer group of ours begins with, for the operator who gives permissions."""

MOST_QUEUE_CHARS = 100


def producer_name(queue: str, incarnation: str) -> str:
    """The transactional id, and consumer group, of a queue: the same for every owner, another for a recreated queue.

    The incarnation alone makes it unique; the queue's name, as far as Kafka's tools take it, tells people what it is.
    """
    return f"{NAME_PREFIX}{re.sub(r'[^A-Za-z0-9._-]', '_', queue)[:MOST_QUEUE_CHARS]}.{incarnation}"


class Places:
    """Places for routes to one cluster: given in the order in which they were asked for."""

    def __init__(self, places: int) -> None:
        self._free = asyncio.Semaphore(places)
        self._waiting = 0
        self._taken = 0

    @property
    def are_awaited(self) -> bool:
        """Whether a shard waits for a place."""
        return self._waiting > 0

    @property
    def is_idle(self) -> bool:
        """Whether no shard has a place or wants one."""
        return not self._waiting and not self._taken

    async def take(self) -> None:
        """Wait for a place."""
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        self._taken += 1

    def release(self) -> None:
        """Let the next one have the place."""
        self._taken -= 1
        self._free.release()


class ExactRoutes:
    """Opens and closes the routes in transactions of an endpoint. Each has connections of its own."""

    def __init__(self, settings: KafkaSettings, observer: KafkaObserver, smaller: SmallerBatches, tasks: Tasks) -> None:
        self._settings = settings
        self._observer = observer
        self._smaller = smaller
        self._tasks = tasks
        self._places_of: dict[ConnectionIdentity, Places] = {}

    @asynccontextmanager
    async def route(
        self, connection: ConnectionIdentity, shard: Shard, incarnation: str, meant: KafkaTarget
    ) -> AsyncIterator[ExactKafkaRoute]:
        """A route with a producer of its own, which fences the shard's earlier ones; waits for a place first.

        What is left open is aborted in the background, and only then is the place given on.
        """
        places = self._places_of.setdefault(connection, Places(self._settings.exact_producers))
        await places.take()
        opening = RouteOpening(connection, self._settings, self._observer, self._smaller, self._tasks)
        try:
            opened = await opening.open(producer_name(shard.queue, incarnation), shard, incarnation, meant)
            yield ExactKafkaRoute(opened, connection, places, self._settings, self._observer, self._smaller)
        finally:
            self._tasks.begin(self._close(opening, connection, places), name=f"close {connection.cluster}")

    async def _close(self, opening: RouteOpening, connection: ConnectionIdentity, places: Places) -> None:
        try:
            await opening.close()
        finally:
            places.release()
            if places.is_idle:
                self._places_of.pop(connection, None)


@dataclass(frozen=True, slots=True)
class Opened:
    """All that a route needs; `partitions` has those of each of its topics, by which its records are sorted."""

    meant: KafkaTarget
    incarnation: str
    client: KafkaClient
    producer: TransactionalProducer
    partitions: Mapping[str, int]
    packer: Packer
    letters: LetterPacker | None
    reached: bytes | None
    look_up: Callable[[], Awaitable[TopicFacts]]


class RouteOpening:
    """One route's connections, from the first to the last, however far it gets."""

    def __init__(
        self,
        connection: ConnectionIdentity,
        settings: KafkaSettings,
        observer: KafkaObserver,
        smaller: SmallerBatches,
        tasks: Tasks,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._observer = observer
        self._smaller = smaller
        self._tasks = tasks
        self._client: KafkaClient | None = None
        self._producer: TransactionalProducer | None = None

    async def open(self, name: str, shard: Shard, incarnation: str, meant: KafkaTarget) -> Opened:
        """Connect, learn what packing must know, fence the earlier producers, read the position: in this order.

        Raises EndpointUnavailable or EndpointMisconfigured.
        """
        cluster = self._connection.cluster
        what = f"topic {meant.topic} at {cluster}"
        with _translated(str(cluster)):
            async with asyncio.timeout(self._settings.connect_timeout_s + 1):
                client, _ = await build_client(self._connection, self._settings)
                self._client = client
                self._observer.exact_opened(str(self._connection.cluster))
                await client.bootstrap()
        facts = {meant.topic: await self._learn(meant.topic, what)}
        if meant.letters:
            facts[meant.letters] = await self._learn(meant.letters, f"dead-letter topic {meant.letters} at {cluster}")
        with _translated(what):
            async with asyncio.timeout(self._settings.delivery_timeout_s):
                producer = self._producer = self._make_producer(client, name, TopicPartition(meant.topic, 0))
                await producer.initialise()
                mark = await producer.read_mark()
        partitions = {topic: each.partitions for topic, each in facts.items()}
        origin, packing = RecordOrigin.of(shard.queue, incarnation), self._packing(meant.topic, facts)
        packer = Packer(origin, **packing, cloudevents=meant.cloudevents)
        letters = LetterPacker(**self._packing(meant.letters, facts)) if meant.letters else None
        try:
            reached = position_of(mark, incarnation)
        except EndpointMisconfigured as exc:
            raise EndpointMisconfigured(f"{what}, group {name}: {exc}") from None
        return Opened(
            meant, incarnation, client, producer, partitions, packer, letters, reached,
            look_up=lambda: self._learn(meant.topic, what),
        )  # fmt: skip

    async def _learn(self, topic: str, what: str) -> TopicFacts:
        with _translated(what):
            async with asyncio.timeout(self._settings.connect_timeout_s):
                facts = await look_up_and_follow(self._client, topic, what, self._settings.connect_timeout_s)
        if not facts.limit_known and self._smaller.is_news(self._connection, topic):
            self._observer.limit_assumed(str(self._connection.cluster), topic, facts.limit_bytes)
        return facts

    def _make_producer(self, client: KafkaClient, name: str, place: TopicPartition) -> TransactionalProducer:
        return TransactionalProducer(
            client,
            name,
            place,
            self._tasks,
            request_timeout_s=request_timeout_s(self._settings),
            transaction_timeout_s=self._settings.transaction_timeout_s,
        )

    def _packing(self, topic: str, facts: Mapping[str, TopicFacts]) -> dict[str, Any]:
        settings, mine = self._settings, facts[topic]
        return {
            "partitions": mine.partitions,
            "codec": CODECS[settings.compression],
            "batch_bytes": self._smaller.ceiling(self._connection, topic, mine, settings.max_batch_bytes),
            "limit_bytes": self._smaller.limit(self._connection, topic, mine),
        }

    async def close(self) -> None:
        """Abort what is open, where that is safe, and end the connections, in bounded time."""
        try:
            if self._producer is not None:
                await self._producer.close()
        finally:
            if self._client is not None:
                await self._client.shut()
                self._observer.exact_closed(str(self._connection.cluster))


class ExactKafkaRoute:
    """From one shard to one Kafka topic, in transactions."""

    def __init__(
        self,
        opened: Opened,
        connection: ConnectionIdentity,
        places: Places,
        settings: KafkaSettings,
        observer: KafkaObserver,
        smaller: SmallerBatches,
    ) -> None:
        self._opened = opened
        self._connection = connection
        self._places = places
        self._settings = settings
        self._observer = observer
        self._smaller = smaller
        self._turn_ends = asyncio.get_running_loop().time() + TURN_S
        self._has_moved = False
        self._is_spent = False

    @property
    def reached(self) -> bytes | None:
        return self._opened.reached

    @property
    def stale(self) -> bool:
        if not self._has_moved:
            self._has_moved = any(self._sees_other(topic, count) for topic, count in self._opened.partitions.items())
        turn_is_over = self._places.are_awaited and asyncio.get_running_loop().time() >= self._turn_ends
        return self._has_moved or turn_is_over

    def _sees_other(self, topic: str, count: int) -> bool:
        """Whether a topic has another number of partitions by now; logs it."""
        seen = self._opened.client.cluster.partitions_for_topic(topic)
        if seen is None or len(seen) == count:
            return False
        self._observer.partitions_changed(str(self._connection.cluster), topic, count, len(seen))
        return True

    def succeeds(self, after: bytes) -> None:
        self._opened.packer.after = after

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        batches, refused = self._opened.packer.pack(records)
        return list(batches), refused

    async def look_again(self) -> None:
        facts, topic = await self._opened.look_up(), self._opened.meant.topic
        most = self._smaller.ceiling(self._connection, topic, facts, self._settings.max_batch_bytes)
        self._opened.packer.limit(most, facts.limit_bytes)

    async def commit(self, batches: Sequence[Batch], upto: bytes, letters: Sequence[DeadLetter] = ()) -> None:
        if self._is_spent:
            raise EndpointUnavailable(f"{self._what}: a transaction of this route failed before", "aborted")
        self._is_spent = True  # until the outcome is known
        started, outcome = asyncio.get_running_loop().time(), "aborted"
        try:
            await self._transact(batches, upto, letters)
            self._is_spent, outcome = False, "committed"
        except EndpointFenced:
            outcome = "fenced"
            raise
        finally:
            if self._opened.producer.outcome_unknown:
                outcome = "unknown"
            seconds = asyncio.get_running_loop().time() - started
            self._observer.transaction_ended(str(self._connection.cluster), outcome, seconds)

    async def _transact(self, batches: Sequence[Batch], upto: bytes, letters: Sequence[DeadLetter]) -> None:
        opened = self._opened
        sendings: dict[Sending, KafkaBatch | LetterBatch] = {}
        for batch in batches:
            assert isinstance(batch, KafkaBatch)
            sendings[self._sending(opened.meant.topic, batch)] = batch
        for each in opened.letters.pack(letters) if opened.letters and letters else ():
            sendings[self._sending(opened.meant.letters, each)] = each
        try:
            await opened.producer.transact(
                list(sendings), mark_of(opened.incarnation, upto), self._settings.delivery_timeout_s
            )
        except BatchFailed as exc:
            raise self._refusal(exc.cause, sendings[exc.sending]) from exc.cause
        except (TimeoutError, GivenUp) as exc:
            patience_s = self._settings.delivery_timeout_s
            raise EndpointUnavailable(f"{self._what}: not committed within {patience_s:g} s", "timeout") from exc
        except kafka.KafkaError as exc:
            raise self._error(exc) from exc

    def _sending(self, topic: str, batch: KafkaBatch | LetterBatch) -> Sending:
        codec = CODECS[self._settings.compression]
        return Sending(TopicPartition(topic, batch.lane), RecordBatch(codec, [batch], transactional=True))

    @property
    def _what(self) -> str:
        return f"topic {self._opened.meant.topic} at {self._connection.cluster}"

    def _refusal(self, exc: Exception, batch: KafkaBatch | LetterBatch) -> EndpointError:
        """What a refused batch means; a letter is never the entry's fault."""
        if not isinstance(exc, TOO_LARGE):
            return self._error(exc)
        if isinstance(batch, LetterBatch):
            codec, letters = CODECS[self._settings.compression], self._opened.meant.letters
            what = f"dead-letter topic {letters} at {self._connection.cluster}"
            return self._smaller.refused_letters(self._connection, letters, codec, batch, what)
        if len(batch.records) > 1:
            self._smaller.refused(self._connection, self._opened.meant.topic, batch.nbytes)
        return translate(exc, self._what, records=len(batch.records))

    def _error(self, exc: Exception) -> EndpointError:
        if isinstance(exc, FENCED):
            return EndpointFenced(
                f"{self._what}: another producer of this queue has begun, or the transaction took too long"
            )
        return translate(exc, self._what)


def mark_of(incarnation: str, upto: bytes) -> Mark:
    """Returns a position as it is committed; the incarnation names its queue."""
    position = upto.decode()
    return Mark(Position.parse(position).offset, f"{incarnation} {position}")


def position_of(mark: Mark | None, incarnation: str) -> bytes | None:
    """The position that was committed; None where there is none, and for one of another incarnation.

    Raises EndpointMisconfigured when something else is kept in its place, such as an offset that a tool has set: the
    entries that were committed would be sent again if that counted as none.
    """
    if mark is None:
        return None
    theirs, _, position = mark.text.partition(" ")
    try:
        Position.parse(position)
    except ValueError:
        raise EndpointMisconfigured(
            f"the position kept as offset {mark.offset} cannot be read: {mark.text[:40]!r} is none of remora's"
        ) from None
    return position.encode() if theirs == incarnation else None


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Errors of aiokafka, and silence, as errors of the endpoint."""
    try:
        yield
    except TimeoutError as exc:
        raise EndpointUnavailable(f"{what}: no answer in time", "timeout") from exc
    except kafka.KafkaError as exc:
        raise translate(exc, what) from exc
