"""One aiokafka producer that several topics share, from its first connection to its last.

Why it wraps as much of aiokafka's inside as it does (release 0.14):

* A failed batch has used up sequence numbers, so every later batch of its partition fails too. Hence a producer is
  retired at its first failure: it takes nothing new, what other partitions have under way on it is still
  delivered, and the slot opens another one.
* The idempotent producer repeats a batch for ever, also after whoever waited for it gave up. A copy that arrives
  after newer records of its key would be out of order. Hence a batch that nobody waits for is taken back, or not
  sent once more when it is on its way.
* `send_batch` lets late-comers overtake and its time-out is counted wrong when several wait for one partition.
  Hence a lock, which is first come, first served, for each partition.
* `stop()` waits for brokers that are gone. Hence it has a deadline, and a way to end without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.errors as kafka
from aiokafka import AIOKafkaProducer
from aiokafka.structs import TopicPartition

from remora.config import KafkaSettings
from remora.endpoints.kafka.connecting import cut, resolve_first
from remora.endpoints.kafka.lookup import follow
from remora.endpoints.kafka.packing import Batch

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 2.0


class ProducerRetired(Exception):
    """The batch was not sent, because this producer takes nothing new; another one may take it at once."""


def build_driver(bootstrap: str, options: dict[str, Any], settings: KafkaSettings) -> Any:
    """An aiokafka producer with the promises that this endpoint makes, not started yet."""
    # Shorter than a push may take, so that a request to a silent broker ends while somebody still waits for it.
    request_timeout_ms = max(100, int(settings.delivery_timeout_s * 800))
    driver = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=settings.client_id,
        enable_idempotence=True,
        acks="all",
        compression_type=None,  # each batch brings its own
        request_timeout_ms=request_timeout_ms,
        metadata_max_age_ms=int(settings.metadata_max_age_s * 1000),
        connections_max_idle_ms=None,  # idle producers are closed as a whole
        **options,
    )
    resolve_first(driver.client)
    return driver


class SharedProducer:
    """See the module. Made by `ProducerSlot`, which replaces it when it is retired."""

    def __init__(self, driver: Any, name: str, on_retired: Callable[[SharedProducer, str], None]) -> None:
        self.name = name
        self.retired = False
        self.under_way = 0
        self.last_used = asyncio.get_running_loop().time()
        self._driver = driver
        self._on_retired = on_retired
        self._quiet = asyncio.Event()
        self._lanes: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._accumulator = driver._message_accumulator  # noqa: SLF001 # see the module
        self._put_back = self._accumulator.reenqueue
        self._accumulator.reenqueue = self._reenqueue

    @property
    def client(self) -> Any:
        """The connections, for questions about topics."""
        return self._driver.client

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic had at the last look; None while nothing is known of it."""
        known = self._driver.client.cluster.partitions_for_topic(topic)
        return None if known is None else len(known)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the connections open meanwhile, also when the producer is retired."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self.last_used = asyncio.get_running_loop().time()
            if self.retired and not self.under_way:
                self._quiet.set()

    async def follow(self, topic: str, partitions: int) -> None:
        """Keep looking at a topic from now on; returns when it is seen with this many partitions."""
        await follow(self._driver.client, topic, partitions)

    def unfollow(self, topic: str) -> None:
        """Stop looking at a topic; the last one stays, because aiokafka asks for all when it has none."""
        topics = self._driver.client._topics  # noqa: SLF001 # its set_topics would ask at once
        if len(topics) > 1:
            topics.discard(topic)

    async def deliver(self, topic: str, partition: int, batch: Batch) -> None:
        """Return when the batch is on all replicas in sync.

        Raises ProducerRetired when it surely was not sent, else what aiokafka raises. Cancelled, it takes back
        what has not been sent.
        """
        place = TopicPartition(topic, partition)
        with self.in_use():
            async with self._lanes[place]:
                future = await self._hand_over(place, batch)
            await self._await_answer(place, batch, future)

    async def _hand_over(self, place: TopicPartition, batch: Batch) -> asyncio.Future[Any]:
        if self.partitions(place.topic) is None:
            await self._learn(place.topic)
        if self.retired:
            raise ProducerRetired
        if place.partition >= (self.partitions(place.topic) or 0):
            raise kafka.UnknownTopicOrPartitionError
        try:
            future: asyncio.Future[Any] = await self._driver.send_batch(batch, place.topic, partition=place.partition)
        except kafka.KafkaError as exc:
            self.retire(type(exc).__name__)
            raise
        future.add_done_callback(lambda done: self._note_outcome(place, done))
        return future

    async def _learn(self, topic: str) -> None:
        """Look at a topic that this producer knows nothing of, because it is new itself or the topic was away."""
        await self.client.add_topic(topic)
        # A look that was under way when the topic was added, here or for another batch, does not see it. The second
        # of two looks began later for sure.
        for _ in range(2):
            if self.partitions(topic) is None:
                await self.client.force_metadata_update()

    def _note_outcome(self, place: TopicPartition, done: asyncio.Future[Any]) -> None:
        # Runs before aiokafka's sender wakes up again and would send this partition's next batch in vain.
        exc = None if done.cancelled() else done.exception()
        if exc is not None and not isinstance(exc, ProducerRetired):
            self.retire(type(exc).__name__)
            self._release_waiting(place)

    async def _await_answer(self, place: TopicPartition, batch: Batch, future: asyncio.Future[Any]) -> None:
        try:
            await asyncio.wait([future])  # does not cancel the future with the waiter
        except asyncio.CancelledError:
            batch.given_up = True
            self._take_back(place, batch)
            raise
        future.result()

    # ------------------------------------------------------------------------ aiokafka's waiting batches

    def _waiting(self, place: TopicPartition) -> list[Any]:
        return list(self._accumulator._batches.get(place, ()))  # noqa: SLF001 # see the module

    def _drop(self, place: TopicPartition, waiting: Any) -> None:
        batches = self._accumulator._batches  # noqa: SLF001 # see the module
        batches[place].remove(waiting)
        if not batches[place]:
            del batches[place]

    def _take_back(self, place: TopicPartition, batch: Batch) -> None:
        """Remove a batch that nobody waits for; where it had a sequence number, its partition is spoilt."""
        for waiting in self._waiting(place):
            if waiting._builder is batch:  # noqa: SLF001 # see the module
                self._drop(place, waiting)
                _fail(self._accumulator, waiting, ProducerRetired())
                if waiting.retry_count:
                    self.retire("a batch was given up")
                    self._release_waiting(place)

    def _release_waiting(self, place: TopicPartition) -> None:
        """Give back this partition's batches that were never sent, so that another producer can take them."""
        for waiting in self._waiting(place):
            if not waiting.retry_count:
                self._drop(place, waiting)
                _fail(self._accumulator, waiting, ProducerRetired())

    def _reenqueue(self, waiting: Any) -> None:
        """aiokafka's own, save for batches that nobody waits for any more."""
        if waiting._builder.given_up:  # noqa: SLF001 # see the module
            _fail(self._accumulator, waiting, kafka.KafkaTimeoutError())
        else:
            self._put_back(waiting)

    # ------------------------------------------------------------------------------------------ the end

    def retire(self, reason: str) -> None:
        """Take nothing new from now on."""
        if not self.retired:
            self.retired = True
            if not self.under_way:
                self._quiet.set()
            self._on_retired(self, reason)

    async def close(self, patience_s: float) -> None:
        """Wait for what is under way, at most that long; then end the connections, also with brokers gone."""
        self.retire("closed")
        try:
            async with asyncio.timeout(patience_s):
                await self._quiet.wait()
        except TimeoutError:
            log.warning("%s: closed with %d batches under way", self.name, self.under_way)
        finally:
            await stop_driver(self._driver)


async def stop_driver(driver: Any) -> None:
    """End an aiokafka producer in bounded time, whatever state it is in; never raises for a broker's sake."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await driver.stop()
    except (TimeoutError, OSError, kafka.KafkaError):
        await _abandon(driver)
    except asyncio.CancelledError:
        _let_go(driver)
        raise


async def _abandon(driver: Any) -> None:
    """End a producer whose brokers do not answer."""
    _let_go(driver)
    sender = driver._sender.sender_task  # noqa: SLF001 # see the module
    # Each cancellation ends one request that the sender waits for; there is one for each broker.
    for _ in range(16):
        if sender is None or sender.done():
            break
        sender.cancel()
        await asyncio.wait([sender], timeout=0.1)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await driver.client.close()
    except (TimeoutError, OSError, kafka.KafkaError) as exc:
        log.debug("connections left to the system: %s", type(exc).__name__)


def _let_go(driver: Any) -> None:
    """Fail what is left and cut the connections, without waiting."""
    accumulator, client = driver._message_accumulator, driver.client  # noqa: SLF001 # see the module
    for waiting in [batch for queue in accumulator._batches.values() for batch in queue]:  # noqa: SLF001
        _fail(accumulator, waiting, kafka.ProducerClosed())
    accumulator._batches.clear()  # noqa: SLF001
    for waiting in list(accumulator._pending_batches):  # noqa: SLF001
        waiting._builder.given_up = True  # noqa: SLF001
        _fail(accumulator, waiting, kafka.ProducerClosed())
    # Nobody will renew the metadata any more: whoever waits for that must not wait for ever.
    refresh, client._md_update_fut = client._md_update_fut, None  # noqa: SLF001
    if refresh is not None and not refresh.done():
        refresh.set_result(False)
    answered = asyncio.get_running_loop().create_future()
    answered.set_result(False)
    client.force_metadata_update = lambda: answered
    for connection in list(client._conns.values()):  # noqa: SLF001
        cut(connection)


def _fail(accumulator: Any, waiting: Any, exc: Exception) -> None:
    """Answer a batch, without aiokafka's complaint about futures that nobody looks at."""
    if waiting.future.done():
        return
    waiting.future.add_done_callback(lambda done: done.cancelled() or done.exception())
    if waiting.retry_count:
        # aiokafka's own callback removes it from there, and fails when it was put back meanwhile.
        accumulator._pending_batches.add(waiting)  # noqa: SLF001
    waiting.failure(exception=exc)
    drained = waiting._drain_waiter  # noqa: SLF001
    if drained.done() and not drained.cancelled():
        drained.exception()
