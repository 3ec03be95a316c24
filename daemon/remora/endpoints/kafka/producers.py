"""One aiokafka producer that several topics share, from its first connection to its last.

Why it wraps as much of aiokafka's inside as it does (release 0.14):

* A failed batch has used up sequence numbers, so every later batch of its partition fails too. Hence a producer is
  retired at its first failure: it takes nothing new, what other partitions have under way on it is still
  delivered, and the slot opens another one.
* The idempotent producer repeats a batch for ever, also after whoever waited for it gave up. A copy that arrives
  after newer records of its key would be out of order. Hence a batch that nobody waits for is taken back, or not
  sent once more when it is on its way.
* `send_batch` lets late-comers overtake and its time-out is counted wrong when several wait for one partition.
  Hence a lock, which is first come, first served, for each partition: for the right to begin a batch. What finds one
  begun and not sent yet joins it, if there is room.
* `stop()` waits for brokers that are gone. Hence it has a deadline, and a way to end without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.errors as kafka
from aiokafka import AIOKafkaProducer
from aiokafka.structs import TopicPartition

from remora.config import KafkaSettings
from remora.endpoints.kafka.batches import Freight, Outcome, SharedBatch
from remora.endpoints.kafka.connecting import cut, resolve_first
from remora.endpoints.kafka.errors import blames_records
from remora.endpoints.kafka.lookup import follow
from remora.model.errors import without_frames

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 2.0


class NotSent(Exception):
    """It was not sent, or not to the end, and nothing speaks against another try at once."""


class FailedInCompany(Exception):
    """A batch of several parcels failed in a way for which any of them may be to blame; the cause is aiokafka's."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"a shared batch of {nbytes} bytes failed")
        self.nbytes = nbytes


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

    def __init__(self, driver: Any, name: str, codec: int, on_retired: Callable[[SharedProducer, str], None]) -> None:
        self.name = name
        self.retired = False
        self.under_way = 0
        self.last_used = asyncio.get_running_loop().time()
        self._driver = driver
        self._codec = codec
        self._on_retired = on_retired
        self._quiet = asyncio.Event()
        self._lanes: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._begun: dict[TopicPartition, SharedBatch] = {}
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

    async def deliver(self, topic: str, partition: int, freight: Freight, batch_bytes: int) -> None:
        """Return when the records are on all replicas in sync.

        They may share a batch with others as long as that has no more than `batch_bytes` before compression. Raises
        NotSent, FailedInCompany, else what aiokafka raises. Cancelled, it takes back what has not been sent.
        """
        place = TopicPartition(topic, partition)
        with self.in_use():
            batch, arrived = await self._board(place, freight, batch_bytes)
            try:
                failure = await arrived
            except asyncio.CancelledError:
                self._leave(place, batch, arrived)
                raise
        if failure is None:
            return
        if batch.is_shared and blames_records(failure):
            raise FailedInCompany(batch.nbytes) from failure
        raise copy.copy(failure)  # others raise it, too

    async def _board(self, place: TopicPartition, freight: Freight, batch_bytes: int) -> tuple[SharedBatch, Outcome]:
        """Join the batch that waits to be sent, or begin one; and what to wait for."""
        joined = self._join(place, freight, batch_bytes)
        if joined is None:
            async with self._lanes[place]:
                joined = self._join(place, freight, batch_bytes) or await self._begin(place, freight, batch_bytes)
        return joined

    def _join(self, place: TopicPartition, freight: Freight, batch_bytes: int) -> tuple[SharedBatch, Outcome] | None:
        batch = self._begun.get(place)
        arrived = batch.join(freight, batch_bytes) if batch is not None else None
        return None if batch is None or arrived is None else (batch, arrived)

    async def _begin(self, place: TopicPartition, freight: Freight, batch_bytes: int) -> tuple[SharedBatch, Outcome]:
        batch = self._begun[place] = SharedBatch(self._codec, batch_bytes, freight)
        try:
            await self._hand_over(place, batch)
        except BaseException as exc:
            self._end(place, batch, exc if isinstance(exc, Exception) else NotSent())
            raise
        return batch, batch.first

    async def _hand_over(self, place: TopicPartition, batch: SharedBatch) -> None:
        if self.partitions(place.topic) is None:
            await self._learn(place.topic)
        if self.retired:
            raise NotSent
        if place.partition >= (self.partitions(place.topic) or 0):
            raise kafka.UnknownTopicOrPartitionError
        try:
            future: asyncio.Future[Any] = await self._driver.send_batch(batch, place.topic, partition=place.partition)
        except kafka.KafkaError as exc:
            self.retire(type(exc).__name__)
            raise
        future.add_done_callback(lambda done: self._note_outcome(place, batch, done))

    def _end(self, place: TopicPartition, batch: SharedBatch, failure: Exception | None) -> None:
        """Tell all who wait for a batch what became of it."""
        if self._begun.get(place) is batch:
            del self._begun[place]
        batch.settle(failure)

    async def _learn(self, topic: str) -> None:
        """Look at a topic that this producer knows nothing of, because it is new itself or the topic was away."""
        await self.client.add_topic(topic)
        # A look that was under way when the topic was added, here or for another batch, does not see it. The second
        # of two looks began later for sure.
        for _ in range(2):
            if self.partitions(topic) is None:
                await self.client.force_metadata_update()

    def _note_outcome(self, place: TopicPartition, batch: SharedBatch, done: asyncio.Future[Any]) -> None:
        # Runs before aiokafka's sender wakes up again and would send this partition's next batch in vain.
        failure: Any = kafka.ProducerClosed() if done.cancelled() else done.exception()
        if failure is not None and not isinstance(failure, NotSent):
            self.retire(type(failure).__name__)
            self._release_waiting(place)
        self._end(place, batch, failure)

    def _leave(self, place: TopicPartition, batch: SharedBatch, arrived: Outcome) -> None:
        """Somebody gave up. What was sent before is not sent again, though others wait for it: they start anew."""
        if not batch.leave(arrived):
            batch.given_up = True
        if batch.given_up or batch.is_empty:
            self._take_back(place, batch)

    # ------------------------------------------------------------------------ aiokafka's waiting batches

    def _waiting(self, place: TopicPartition) -> list[Any]:
        return list(self._accumulator._batches.get(place, ()))  # noqa: SLF001 # see the module

    def _drop(self, place: TopicPartition, waiting: Any) -> None:
        batches = self._accumulator._batches  # noqa: SLF001 # see the module
        batches[place].remove(waiting)
        if not batches[place]:
            del batches[place]

    def _take_back(self, place: TopicPartition, batch: SharedBatch) -> None:
        """Remove a batch that waits to be sent; where it had a sequence number, its partition is spoilt."""
        for waiting in self._waiting(place):
            if waiting._builder is batch:  # noqa: SLF001 # see the module
                self._drop(place, waiting)
                _fail(self._accumulator, waiting, NotSent())
                if waiting.retry_count:
                    self._spoil(place)

    def _spoil(self, place: TopicPartition) -> None:
        """A batch that had a sequence number was given up: what follows it in its partition would fail."""
        self.retire("a batch was given up")
        self._release_waiting(place)

    def _release_waiting(self, place: TopicPartition) -> None:
        """Give back this partition's batches that were never sent, so that another producer can take them."""
        for waiting in self._waiting(place):
            if not waiting.retry_count:
                self._drop(place, waiting)
                _fail(self._accumulator, waiting, NotSent())

    def _reenqueue(self, waiting: Any) -> None:
        """aiokafka's own, save for batches that were given up."""
        if waiting._builder.given_up:  # noqa: SLF001 # see the module
            _fail(self._accumulator, waiting, NotSent())
            self._spoil(waiting.tp)
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
    except (TimeoutError, OSError, kafka.KafkaError) as exc:
        without_frames(exc)
        await _abandon(driver)
    except BaseException:
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
        log.debug("connections left to the system: %s", type(without_frames(exc)).__name__)


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
