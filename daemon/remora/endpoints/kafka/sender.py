"""One idempotent producer that several topics share, from its first connection to its last.

A partition has one batch under way at a time, and a broker one request. What comes for a partition meanwhile shares the
next batch; what comes for others of the broker's partitions shares the next request. That keeps the order of a
partition whatever fails:

* A batch that fails in a way that passes is sent again with the same numbers; the broker takes each number once,
  before anything behind it. Its partition waits for that, and no other.
* A batch that is given up is taken back, or not sent once more when it is on its way: a copy that arrived behind newer
  records of its key would be out of order.
* A batch that failed for good, or was given up with its numbers used, leaves a hole that the broker takes nothing
  behind. So the sender is retired: it takes nothing new, what is under way on it is still delivered, and the pool opens
  another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import aiokafka.errors as kafka
from aiokafka.structs import TopicPartition

from remora.config.delivery import KafkaSettings
from remora.endpoints.kafka.batches import CODECS, OnSettled, Outcome, RecordSet, SharedBatch
from remora.endpoints.kafka.client import CLOSE_PATIENCE_S, KafkaClient, request_timeout_s
from remora.endpoints.kafka.errors import DOUBTFUL, blames_records
from remora.endpoints.kafka.produce import Numbering, produce
from remora.endpoints.tasks import Tasks
from remora.model.errors import without_frames

log = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.1
"""Before a batch is sent again, and before the leader of a partition is looked for again."""

MOST_REQUEST_BYTES = 32 << 20
"""The most bytes of one request's batches, unless one batch is larger; brokers take up to 100 MiB by default."""


class NotSent(Exception):
    """It was not sent, or is not sent to the end, and nothing speaks against another try at once."""


class FailedInCompany(Exception):
    """A batch of several record sets failed in a way for which any of them may be to blame; that is the cause."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"a shared batch of {nbytes} bytes failed")
        self.nbytes = nbytes


Request = Mapping[TopicPartition, SharedBatch]
"""The batches of a request to one broker."""


@dataclass(slots=True)
class PartitionQueue:
    """The batches for one partition: `sent` is numbered and not settled, the others wait behind it, unnumbered."""

    waiting: deque[SharedBatch] = field(default_factory=deque)
    sent: SharedBatch | None = None
    request: Request | None = None  # the one that `sent` is in

    @property
    def next(self) -> SharedBatch:
        """The batch that is to be sent now."""
        return self.sent if self.sent is not None else self.waiting[0]


class SharedSender:
    """See the module. Made by `SenderSlot`, which replaces it when it is retired."""

    def __init__(
        self,
        client: KafkaClient,
        numbering: Numbering,
        name: str,
        settings: KafkaSettings,
        tasks: Tasks,
        on_retired: Callable[[SharedSender, str], None],
    ) -> None:
        self.name = name
        self.client = client
        self.retired = False
        self.under_way = 0
        self.last_used = asyncio.get_running_loop().time()
        self._numbering = numbering
        self._tasks = tasks
        self._on_retired = on_retired
        self._codec = CODECS[settings.compression]
        self._timeout_s = request_timeout_s(settings)
        self._unused = asyncio.Event()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._due: dict[TopicPartition, None] = {}  # with a batch to send and none in a request, in order of arrival
        self._leaderless: dict[TopicPartition, None] = {}
        self._seeking: asyncio.Task[None] | None = None
        self._busy: dict[int, Request] = {}  # the request of each broker that has one
        self._work: set[asyncio.Task[None]] = set()
        self._dispatch_handle: asyncio.Handle | None = None

    def partitions(self, topic: str) -> int | None:
        """The number of a topic's partitions at the last look; None while nothing is known of it."""
        known = self.client.cluster.partitions_for_topic(topic)
        return None if known is None else len(known)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the connections open meanwhile, also when the sender is retired."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self.last_used = asyncio.get_running_loop().time()
            if self.retired and not self.under_way:
                self._unused.set()

    def unfollow(self, topic: str) -> None:
        """Stop looking at a topic."""
        self.client.unfollow(topic)

    # ------------------------------------------------------------------------------------ what callers see

    async def deliver(
        self,
        topic: str,
        partition: int,
        records: RecordSet,
        batch_bytes: int,
        on_left: Callable[[], OnSettled] | None = None,
        on_doubt: Callable[[], None] = lambda: None,
    ) -> None:
        """Return when the records are on all replicas in sync.

        They may share a batch with others as long as that has no more than `batch_bytes` before compression. Raises
        NotSent, FailedInCompany, else what aiokafka raises. Cancelled, it takes back what has not been sent, or
        calls `on_left` for what is to be told of the outcome. Before it raises another error, NotSent too, it calls
        `on_doubt` where the records may have arrived: a request with them was not answered.
        """
        place = TopicPartition(topic, partition)
        with self.in_use():
            await self._check(place)
            batch, arrived = self._enqueue(place, records, batch_bytes)
            try:
                failure = await arrived
            except asyncio.CancelledError:
                if self._leave(place, batch, arrived) and on_left is not None:
                    batch.left(on_left())
                raise
        if failure is None:
            return
        if batch.is_doubted:
            on_doubt()
        if isinstance(failure, NotSent):
            raise NotSent
        if batch.is_shared and blames_records(failure):
            raise FailedInCompany(batch.nbytes) from failure
        raise copy.copy(failure)  # others raise it, too, and no frame may keep what it raises: see `without_frames`

    async def _check(self, place: TopicPartition) -> None:
        if self.partitions(place.topic) is None:
            await self._learn(place.topic)
        if self.retired:
            raise NotSent
        if place.partition >= (self.partitions(place.topic) or 0):
            raise kafka.UnknownTopicOrPartitionError

    async def _learn(self, topic: str) -> None:
        """Look at a topic that this sender knows nothing of, because it is new itself or the topic was away."""
        await self.client.add_topic(topic)
        # A look that was under way when the topic was added, here or for another batch, does not see it. The second
        # of two looks began later for sure.
        for _ in range(2):
            if self.partitions(topic) is None:
                await self.client.force_metadata_update()

    def _enqueue(self, place: TopicPartition, records: RecordSet, batch_bytes: int) -> tuple[SharedBatch, Outcome]:
        """Join the last batch that waits, or begin one; and what to wait for."""
        queue = self._queues.setdefault(place, PartitionQueue())
        if queue.waiting:
            batch = queue.waiting[-1]
            arrived = batch.add(records, batch_bytes)
            if arrived is not None:
                return batch, arrived
        batch = SharedBatch(self._codec, batch_bytes, records)
        queue.waiting.append(batch)
        if queue.sent is None:
            self._make_due(place)
        return batch, batch.first

    def _leave(self, place: TopicPartition, batch: SharedBatch, arrived: Outcome) -> bool:
        """A caller gave up. What was sent before is not sent again, though others wait for it: they start anew.

        Returns whether it was sent.
        """
        queue = self._queues.get(place)
        if queue is None or (batch is not queue.sent and batch not in queue.waiting):
            return True  # it was settled a moment ago
        if not batch.remove(arrived):
            batch.given_up = True
            if queue.request is None:
                self._give_up(place)
            return True
        if batch.is_empty:
            queue.waiting.remove(batch)
            if queue.sent is None and not queue.waiting:
                self._release(place, None, NotSent())
        return False

    # ----------------------------------------------------------------------------------- who goes next

    def _make_due(self, place: TopicPartition) -> None:
        self._due[place] = None
        self._dispatch_soon()

    def _dispatch_soon(self) -> None:
        """Make requests when all callers that are awake, or were just woken, have run: what comes together travels
        together."""
        if self._dispatch_handle is None:
            loop = asyncio.get_running_loop()
            self._dispatch_handle = loop.call_soon(loop.call_soon, self._dispatch)

    def _dispatch(self) -> None:
        """Make a request to each broker that has none, with a batch of each partition that it leads."""
        self._dispatch_handle = None
        requests: dict[int, dict[TopicPartition, SharedBatch]] = {}
        nbytes: dict[int, int] = {}
        for place in list(self._due):
            leader = self._leader(place)
            if leader is None:
                del self._due[place]
                self._leaderless[place] = None
                if self._seeking is None or self._seeking.done():
                    self._seeking = self._start(self._seek_leaders(), f"look for leaders at {self.name}")
            elif leader not in self._busy:
                size = self._queues[place].next.nbytes
                if leader not in requests or nbytes[leader] + size <= MOST_REQUEST_BYTES:
                    requests.setdefault(leader, {})[place] = self._take(place)
                    nbytes[leader] = nbytes.get(leader, 0) + size
        for leader, batches in requests.items():
            self._busy[leader] = batches
            for place in batches:
                self._queues[place].request = batches
            task = self._start(self._exchange(leader, batches), f"send to broker {leader} of {self.name}")
            task.add_done_callback(partial(self._abandon_request, leader, batches))

    def _take(self, place: TopicPartition) -> SharedBatch:
        """The batch that is to be sent now, with its numbers; from here on none joins it or leaves it."""
        del self._due[place]
        queue = self._queues[place]
        if queue.sent is None:
            queue.sent = queue.waiting.popleft()
            self._numbering.number(place, queue.sent)
        return queue.sent

    def _leader(self, place: TopicPartition) -> int | None:
        leader: int | None = self.client.cluster.leader_for_partition(place)
        return None if leader is None or leader < 0 else leader

    async def _seek_leaders(self) -> None:
        """Renew the metadata until every partition with a batch has a leader, and send what has one at once."""
        while self._leaderless:
            await self.client.force_metadata_update()
            for place in [each for each in self._leaderless if self._leader(each) is not None]:
                del self._leaderless[place]
                self._make_due(place)
            if self._leaderless:
                await asyncio.sleep(RETRY_PAUSE_S)

    def _start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.begin(work, name=name)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    # ------------------------------------------------------------------------------------ requests, outcomes

    async def _exchange(self, node: int, batches: Request) -> None:
        """Send a request, and see to what becomes of its batches."""
        failures: Mapping[TopicPartition, Exception]
        try:
            failures = await produce(self.client, node, batches, self._timeout_s)
        except kafka.KafkaError as exc:
            failures = dict.fromkeys(batches, without_frames(exc))
        except Exception as exc:  # a defect: those get it whose batches these are, as any of them may have caused it
            failures = dict.fromkeys(batches, exc)
        self._end_request(node, batches)
        again = {}
        for place, batch in batches.items():
            failure = failures.get(place)
            batch.is_doubted |= isinstance(failure, DOUBTFUL)
            self._queues[place].request = None
            if failure is None or isinstance(failure, kafka.DuplicateSequenceNumber):
                self._finish(place, batch)
            elif not getattr(failure, "retriable", False):
                self._fail(place, batch, failure)
            elif batch.given_up:
                self._give_up(place)
            else:
                again[place] = failure
        if again:
            await self._repeat(again)

    def _end_request(self, node: int, batches: Request) -> None:
        """The broker may get the next one."""
        if self._busy.get(node) is batches:
            del self._busy[node]
            self._dispatch_soon()

    def _abandon_request(self, node: int, batches: Request, _: object) -> None:
        """After a defect in an exchange: its batches fail, and the broker may get the next request."""
        self._end_request(node, batches)
        for place, batch in batches.items():
            queue = self._queues.get(place)
            if queue is not None and queue.request is batches:
                self._fail(place, batch, kafka.ProducerClosed())

    async def _repeat(self, failures: Mapping[TopicPartition, Exception]) -> None:
        """Send batches again after a pause, where they were not given up meanwhile."""
        batches = {place: self._queues[place].sent for place in failures}
        try:
            renewed = None
            if any(getattr(failure, "invalid_metadata", False) for failure in failures.values()):
                renewed = self.client.force_metadata_update()
            await asyncio.sleep(RETRY_PAUSE_S)
            if renewed is not None:
                await renewed
        finally:
            for place, batch in batches.items():
                queue = self._queues.get(place)
                if queue is not None and queue.sent is batch:
                    self._make_due(place)

    def _finish(self, place: TopicPartition, batch: SharedBatch) -> None:
        queue = self._queues[place]
        queue.sent = None
        batch.settle(None)
        if queue.waiting:
            self._make_due(place)
        else:
            del self._queues[place]

    def _fail(self, place: TopicPartition, batch: SharedBatch, failure: Exception) -> None:
        """A batch failed for good: nothing behind it would be taken, so another sender gets what was not sent."""
        self.stop_taking(type(failure).__name__)
        self._release(place, batch, failure)

    def _give_up(self, place: TopicPartition) -> None:
        """A numbered batch is not sent again, since a caller gave up; what follows it here would fail."""
        self.stop_taking("a batch was given up")
        self._release(place, self._queues[place].sent, NotSent())

    def _release(self, place: TopicPartition, batch: SharedBatch | None, failure: Exception) -> None:
        queue = self._queues.pop(place)
        self._due.pop(place, None)
        self._leaderless.pop(place, None)
        if batch is not None:
            batch.settle(failure)
        for each in queue.waiting:
            each.settle(NotSent())

    # ------------------------------------------------------------------------------------------- the end

    def stop_taking(self, reason: str) -> None:
        """Take nothing new from now on."""
        if not self.retired:
            self.retired = True
            if not self.under_way:
                self._unused.set()
            self._on_retired(self, reason)

    async def close(self, patience_s: float) -> None:
        """Wait for what is under way, at most that long; then end the connections, also with brokers gone."""
        self.stop_taking("closed")
        try:
            async with asyncio.timeout(patience_s):
                await self._unused.wait()
        except TimeoutError:
            log.warning("%s: closed with %d batches under way", self.name, self.under_way)
        finally:
            await self._abandon()
            await self.client.shut()

    async def _abandon(self) -> None:
        """Fail what is left, and end the work on it."""
        for place, queue in list(self._queues.items()):
            self._release(place, queue.sent, kafka.ProducerClosed())
        for task in self._work:
            task.cancel()
        if self._work:
            await asyncio.wait(self._work, timeout=CLOSE_PATIENCE_S)
