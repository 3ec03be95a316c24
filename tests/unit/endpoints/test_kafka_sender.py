"""The sender that topics share, before a broker that fails in every way that Kafka's may."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import aiokafka.errors as kafka
import pytest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import ClockLoop, in_virtual_time
from remora.codec.kafka_records import encode_record
from remora.config import KafkaSettings
from remora.endpoints.kafka import sender as module
from remora.endpoints.kafka.batches import RecordBatch
from remora.endpoints.kafka.client import KafkaClient
from remora.endpoints.kafka.endpoint import KafkaRoute
from remora.endpoints.kafka.errors import translate
from remora.endpoints.kafka.packer import Packer, RecordOrigin, SmallerBatches
from remora.endpoints.kafka.produce import SEQUENCES, Numbering, init_producer, produce
from remora.endpoints.kafka.sender import FailedInCompany, NotSent, SharedSender
from remora.endpoints.kafka.sender_pool import SenderSlot
from remora.endpoints.observer import LogObserver
from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from support.kafka_sender import make_records

PARTITIONS = 6
VERSIONS = {0: (3, 7)}

REFUSALS = (
    kafka.NotLeaderForPartitionError,
    kafka.NotEnoughReplicasError,
    kafka.NotEnoughReplicasAfterAppendError,
    kafka.UnknownTopicOrPartitionError,
    kafka.KafkaStorageError,
)
FOR_GOOD = (kafka.MessageSizeTooLargeError, kafka.TopicAuthorizationFailedError)
LOSSES = (kafka.RequestTimedOutError, kafka.KafkaConnectionError, kafka.NodeNotReadyError)


@dataclass
class Log:
    """One partition as its leader keeps it: what was appended, and each producer's next number and last batch."""

    values: list[str] = field(default_factory=list)
    next: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def append(self, producer: int, first: int, values: list[str]) -> type[Exception]:
        if self.last.get(producer) == (first, len(values)):
            return cast(type[Exception], kafka.NoError)  # it was taken before
        if first != self.next[producer]:
            return cast(type[Exception], kafka.OutOfOrderSequenceNumber)
        self.values += values
        self.last[producer] = first, len(values)
        self.next[producer] = first + len(values)
        return cast(type[Exception], kafka.NoError)


class Brokers:
    """Two brokers that share the partitions of a topic, behind what a sender uses of a client.

    `before` is asked before each batch is appended, and may refuse it or raise; `after` may lose the answer.
    """

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(
            partitions_for_topic=lambda topic: set(range(PARTITIONS)), leader_for_partition=self.leader
        )
        self.logs: defaultdict[TopicPartition, Log] = defaultdict(Log)
        self.before: Callable[[int, TopicPartition], type[Exception] | None] = lambda node, place: None
        self.after: Callable[[int], None] = lambda node: None
        self.invalid = ""
        """A value that they call invalid, and with it every batch that has it."""
        self.leaders: dict[TopicPartition, int] = {}
        self.requests: list[tuple[int, list[TopicPartition], int]] = []
        self.looks = 0
        self.delay: Callable[[], float] = lambda: 0.001

    def leader(self, place: TopicPartition) -> int:
        return self.leaders.get(place, int(place.partition % 2))

    def force_metadata_update(self) -> asyncio.Future[None]:
        self.looks += 1
        return asyncio.ensure_future(asyncio.sleep(0.002))

    async def send(self, node: int, request: Any) -> Any:
        built = request.prepare(VERSIONS)
        sent = {TopicPartition(topic, at): content for topic, each in built.topics for at, content in each}
        self.requests.append((node, list(sent), sum(map(len, sent.values()))))
        await asyncio.sleep(self.delay())
        codes = {place: self._take(node, place, content) for place, content in sent.items()}
        self.after(node)
        topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, error in codes.items():
            topics[place.topic].append((place.partition, error.errno))
        return SimpleNamespace(topics=list(topics.items()))

    def _take(self, node: int, place: TopicPartition, content: bytes) -> Any:
        refusal = self.before(node, place)
        if refusal is not None and refusal is not kafka.NotEnoughReplicasAfterAppendError:
            return refusal
        batch = MemoryRecords(content).next_batch()
        assert batch is not None
        values = [(each.value or b"").decode() for each in batch]
        if self.invalid in values:
            return SimpleNamespace(errno=87)
        error = self.logs[place].append(batch.producer_id, batch.base_sequence, values)
        return error if error is not kafka.NoError else refusal or error


class Client:
    """What one sender uses of its connections."""

    def __init__(self, brokers: Brokers) -> None:
        self.cluster = brokers.cluster
        self.force_metadata_update = brokers.force_metadata_update
        self._brokers = brokers
        self._busy: set[int] = set()

    async def send(self, node: int, request: Any) -> Any:
        assert node not in self._busy, "a broker gets one request at a time"
        self._busy.add(node)
        try:
            return await self._brokers.send(node, request)
        finally:
            self._busy.discard(node)

    async def shut(self) -> None:
        assert not self._busy, "the work of a closed sender has ended"


@dataclass(frozen=True)
class Values:
    """A record set of these values."""

    values: tuple[str, ...]
    nbytes: int = 100

    def __len__(self) -> int:
        return len(self.values)

    def encode(self, first: int) -> bytes:
        return b"".join(encode_record(first + at, None, each.encode(), []) for at, each in enumerate(self.values))


class Slot:
    """Makes a sender when the one before is retired, each with a producer id of its own."""

    def __init__(self, brokers: Brokers, tasks: Tasks) -> None:
        self._brokers = brokers
        self._tasks = tasks
        self._made = 0
        self.retired: list[str] = []
        self._current: SharedSender | None = None

    def ready(self) -> SharedSender:
        if self._current is None:
            self._made += 1
            client, numbering = cast(KafkaClient, Client(self._brokers)), Numbering(self._made, 0)
            self._current = SharedSender(client, numbering, "fake", KafkaSettings(), self._tasks, self._replace)
        return self._current

    def _replace(self, sender: SharedSender, reason: str) -> None:
        if reason != "closed":
            self.retired.append(reason)
        if sender is self._current:
            self._current = None
            self._tasks.begin(sender.close(60), name="close")

    async def close(self) -> None:
        if self._current is not None:
            await self._current.close(0)


class Defects:
    """Nothing that these tests do is a defect of the sender."""

    def crashed(self, what: str) -> None:
        raise AssertionError(what)


@asynccontextmanager
async def a_slot(brokers: Brokers) -> AsyncIterator[Slot]:
    async with Tasks(Defects()) as tasks:
        slot = Slot(brokers, tasks)
        try:
            yield slot
        finally:
            await slot.close()


async def deliver(slot: Slot, place: TopicPartition, values: Values, batch_bytes: int = 1000) -> None:
    """As a route does it."""
    while True:
        try:
            return await slot.ready().deliver(place.topic, place.partition, values, batch_bytes)
        except NotSent:
            continue
        except FailedInCompany:
            batch_bytes = 0


class Shard:
    """Sends numbers to one partition, the next when the one before has arrived, and again what failed."""

    def __init__(self, name: str, place: TopicPartition, rng: Random, patiences: Sequence[float]) -> None:
        self.name = name
        self.place = place
        self.arrived: list[str] = []
        self._rng = rng
        self._patiences = patiences

    async def run(self, slot: Slot, count: int) -> None:
        at = attempt = 0
        while at < count:
            attempt += 1
            number = min(self._rng.randint(1, 3), count - at)
            values = Values(tuple(f"{self.name} {at + each} {attempt}" for each in range(number)))
            patience_s = self._rng.choice(self._patiences)
            try:
                async with asyncio.timeout(patience_s):
                    await deliver(slot, self.place, values, self._rng.choice([150, 400, 10_000]))
            except (TimeoutError, kafka.KafkaError):
                continue
            self.arrived += values.values
            at += number


@given(seed=st.integers(0, 1 << 32), trouble=st.sampled_from([0.0, 0.1, 0.4]), is_hasty=st.booleans())
@settings(max_examples=100, deadline=None)
def test_whatever_brokers_do(seed: int, trouble: float, is_hasty: bool) -> None:
    """Everything is in the log, and each shard's numbers first appear in order; once each, unless callers give up.

    Brokers refuse batches for a time, append some and lose the answer, and give partitions to each other. Where
    callers are hasty, and give up on what may be shared and on its way, brokers also refuse batches for good.
    """
    rng = Random(seed)
    brokers = Brokers()

    def before(node: int, place: TopicPartition) -> type[Exception] | None:
        if node != brokers.leader(place):
            return cast(type[Exception], kafka.NotLeaderForPartitionError)
        refusals = REFUSALS + FOR_GOOD if is_hasty else REFUSALS
        return cast(type[Exception], rng.choice(refusals)) if rng.random() < trouble else None

    def after(node: int) -> None:
        if rng.random() < trouble:
            brokers.leaders[TopicPartition("t", rng.randrange(PARTITIONS))] = rng.randrange(-1, 2)
        if rng.random() < trouble:
            raise rng.choice(LOSSES)

    brokers.before, brokers.after = before, after
    brokers.delay = lambda: rng.choice([0.0005, 0.002, 0.02])
    patiences = [0.004, 0.05, 1, 100] if is_hasty else [1e9]
    shards = [Shard(f"s{each}", TopicPartition("t", rng.randrange(PARTITIONS)), rng, patiences) for each in range(8)]

    async def heal() -> None:
        """Partitions find a leader again."""
        while True:
            await asyncio.sleep(0.5)
            brokers.leaders = {place: leader for place, leader in brokers.leaders.items() if leader >= 0}

    async def run() -> None:
        async with a_slot(brokers) as slot:
            healing = asyncio.create_task(heal())
            await asyncio.gather(*(each.run(slot, 30) for each in shards))
            healing.cancel()
            assert is_hasty or slot.retired == []

    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        runner.run(run())

    for shard in shards:
        log = [each for each in brokers.logs[shard.place].values if each.startswith(f"{shard.name} ")]
        assert is_hasty or len(set(log)) == len(log)
        assert set(shard.arrived) <= set(log)
        first = list(dict.fromkeys(int(each.split()[1]) for each in log))
        assert first == list(range(30))


@in_virtual_time
async def test_what_comes_together_travels_together() -> None:
    """Record sets for one partition share a batch, and batches for one broker a request."""
    brokers = Brokers()
    async with a_slot(brokers) as slot:
        places = [TopicPartition("t", each % PARTITIONS) for each in range(30)]
        await asyncio.gather(*(deliver(slot, place, Values((f"{at}",))) for at, place in enumerate(places)))

    assert sorted((node, len(places)) for node, places, _ in brokers.requests) == [(0, 3), (1, 3)]


@in_virtual_time
async def test_what_an_answer_wakes_travels_together() -> None:
    """A caller that sends on when it is answered shares the next request with batches that waited meanwhile."""
    brokers = Brokers()

    async def send_on(place: TopicPartition, turns: int) -> None:
        for number in range(turns):
            await deliver(slot, place, Values((f"{number}",)), batch_bytes=0)

    async with a_slot(brokers) as slot:
        busy, calm = TopicPartition("t", 0), TopicPartition("t", 2)
        await asyncio.gather(send_on(busy, 10), send_on(busy, 10), send_on(calm, 20))

    assert len(brokers.requests) == 20


@in_virtual_time
async def test_a_repeat_holds_up_its_own_partition_only() -> None:
    """While a partition's batch is refused again and again, its broker's other partitions are delivered to."""
    brokers, stuck = Brokers(), TopicPartition("t", 0)
    brokers.before = lambda _, place: cast(Any, kafka.NotEnoughReplicasError) if place == stuck else None
    loop = asyncio.get_running_loop()
    async with a_slot(brokers) as slot:
        waiting = asyncio.create_task(deliver(slot, stuck, Values(("stuck",))))
        for number in range(100):
            await deliver(slot, TopicPartition("t", 2), Values((f"{number}",)))
        took = loop.time()
        brokers.before = lambda _, place: None
        await waiting

    assert took < 100 * module.RETRY_PAUSE_S / 10
    assert slot.retired == []
    assert brokers.logs[stuck].values == ["stuck"]


@in_virtual_time
async def test_an_answer_that_is_lost() -> None:
    """A batch that was appended before the connection broke is sent again, and counts once."""
    brokers, lost = Brokers(), iter(LOSSES)

    def lose(node: int) -> None:
        for each in lost:
            raise each

    brokers.after = lose
    async with a_slot(brokers) as slot:
        await deliver(slot, TopicPartition("t", 0), Values(("a", "b")))

    assert len(brokers.requests) == 1 + len(LOSSES)
    assert brokers.logs[TopicPartition("t", 0)].values == ["a", "b"]
    assert slot.retired == []


@in_virtual_time
async def test_no_leader_for_a_time() -> None:
    """A batch waits until its partition has a leader, and the metadata is asked for at a bounded rate meanwhile."""
    brokers, place = Brokers(), TopicPartition("t", 0)
    brokers.leaders[place] = -1
    async with a_slot(brokers) as slot:
        waiting = asyncio.create_task(deliver(slot, place, Values(("a",))))
        await asyncio.sleep(10)
        assert brokers.requests == []
        assert 50 <= brokers.looks <= 10 / module.RETRY_PAUSE_S + 1
        brokers.leaders[place] = 0
        await waiting

    assert brokers.logs[place].values == ["a"]


@in_virtual_time
async def test_a_batch_that_is_given_up() -> None:
    """A batch that was sent and whose caller gave up is not sent again; what waits behind it takes another sender."""
    brokers, place = Brokers(), TopicPartition("t", 0)
    brokers.before = lambda *_: cast(Any, kafka.NotEnoughReplicasError)
    async with a_slot(brokers) as slot:
        first = asyncio.create_task(deliver(slot, place, Values(("first",))))
        await asyncio.sleep(1)
        second = asyncio.create_task(deliver(slot, place, Values(("second",))))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.wait([first])
        brokers.before = lambda *_: None
        await second

    assert brokers.logs[place].values == ["second"]
    assert slot.retired == ["a batch was given up"]


@in_virtual_time
async def test_a_batch_that_is_given_up_on_its_way() -> None:
    """A batch whose caller gives up while it is on its way is not sent again when that fails."""
    brokers, place = Brokers(), TopicPartition("t", 0)
    brokers.before = lambda *_: cast(Any, kafka.NotEnoughReplicasError)
    brokers.delay = lambda: 1.0
    async with a_slot(brokers) as slot:
        first = asyncio.create_task(deliver(slot, place, Values(("first",))))
        await asyncio.sleep(0.5)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(deliver(slot, place, Values(("second",))))
        await asyncio.sleep(1)
        brokers.before = lambda *_: None
        await second

    assert brokers.logs[place].values == ["second"]
    assert slot.retired == ["a batch was given up"]


@pytest.mark.parametrize(("refusal", "arrives"), [(None, True), (kafka.NotEnoughReplicasError, False)])
@in_virtual_time
async def test_what_becomes_of_a_batch_that_was_given_up(refusal: type[Exception] | None, arrives: bool) -> None:
    """The outcome of one that was on its way is told when it comes; one that waited behind it is taken back, untold."""
    brokers, place, told = Brokers(), TopicPartition("t", 0), list[tuple[str, bool]]()
    brokers.before = lambda *_: cast(Any, refusal)
    brokers.delay = lambda: 1.0

    def start(slot: Slot, name: str) -> asyncio.Task[None]:
        def on_left() -> Callable[[Exception | None], None]:
            return lambda failure: told.append((name, failure is None))

        return asyncio.create_task(slot.ready().deliver(place.topic, place.partition, Values((name,)), 1000, on_left))

    async with a_slot(brokers) as slot:
        first, second = start(slot, "first"), start(slot, "second")
        await asyncio.sleep(0.5)
        behind = start(slot, "behind")
        await asyncio.sleep(0.1)
        for each in (first, behind):
            each.cancel()
        await asyncio.wait([first, behind])
        assert told == []
        await asyncio.wait([second])

    assert told == [("first", arrives)]
    assert brokers.logs[place].values == (["first", "second"] if arrives else [])


def lost(_: int) -> None:
    """The answer is."""
    raise kafka.KafkaConnectionError


@pytest.mark.parametrize(
    ("before", "after", "is_doubted"),
    [
        (None, lost, True),
        (kafka.NotEnoughReplicasAfterAppendError, None, True),
        (kafka.NotEnoughReplicasError, None, False),
        (kafka.NotLeaderForPartitionError, None, False),
    ],
    ids=["no answer", "appended by some", "too few replicas", "not the leader"],
)
@in_virtual_time
async def test_what_shared_a_batch_that_another_gave_up(
    before: type[Exception] | None, after: Callable[[int], None] | None, is_doubted: bool
) -> None:
    """It may be sent anew, and its caller hears whether it may have arrived; that it was refused leaves no doubt."""
    brokers, place, doubts = Brokers(), TopicPartition("t", 0), list[str]()
    brokers.before = lambda *_: before
    brokers.after = after or brokers.after

    def start(slot: Slot, name: str) -> asyncio.Task[None]:
        sent = slot.ready().deliver(
            place.topic, place.partition, Values((name,)), 1000, None, lambda: doubts.append(name)
        )
        return asyncio.create_task(sent)

    async with a_slot(brokers) as slot:
        hasty, other = start(slot, "hasty"), start(slot, "other")
        await asyncio.sleep(1)
        hasty.cancel()
        with pytest.raises(NotSent):
            await other

    assert doubts == (["other"] if is_doubted else [])


@pytest.mark.parametrize("is_lost", [True, False])
@in_virtual_time
async def test_a_batch_that_is_refused_after_a_try_without_an_answer(is_lost: bool) -> None:
    """Its caller hears that it may have arrived; of one that is refused at once there is no doubt."""
    brokers, place, doubts = Brokers(), TopicPartition("t", 0), list[bool]()

    def lose_one(node: int) -> None:
        brokers.before = lambda *_: kafka.TopicAuthorizationFailedError
        if is_lost and len(brokers.requests) == 1:
            lost(node)

    brokers.after = lose_one
    if not is_lost:
        lose_one(0)
    async with a_slot(brokers) as slot:
        with pytest.raises(kafka.TopicAuthorizationFailedError):
            await slot.ready().deliver(
                place.topic, place.partition, Values(("a",)), 1000, None, lambda: doubts.append(True)
            )

    assert doubts == [True] * is_lost


@in_virtual_time
async def test_a_record_that_the_broker_calls_invalid() -> None:
    """Its topic stops for a reason that says so, nothing of it may have arrived, and what shared its batch arrives."""
    brokers, place, doubts = Brokers(), TopicPartition("t", 0), list[bool]()
    brokers.invalid = "bad"

    async with a_slot(brokers) as slot:
        first = asyncio.create_task(deliver(slot, place, Values(("first",))))
        await asyncio.sleep(0)
        sent = slot.ready().deliver(
            place.topic, place.partition, Values(("bad",)), 1000, None, lambda: doubts.append(True)
        )
        bad, good = asyncio.create_task(sent), asyncio.create_task(deliver(slot, place, Values(("good",))))
        with pytest.raises(FailedInCompany) as caught:
            await bad
        await asyncio.gather(first, good)

    error = translate(cast(Exception, caught.value.__cause__), "t")
    assert brokers.logs[place].values == ["first", "good"]
    assert isinstance(error, EndpointMisconfigured)
    assert "calls a record invalid" in str(error)
    assert not doubts


async def refusal() -> None:
    """The next try is refused."""
    raise kafka.TopicAuthorizationFailedError


async def silence() -> None:
    """The next try is not sent before its time is over."""
    await asyncio.Event().wait()


async def away() -> None:
    """There is no sender for the next try."""
    raise EndpointUnavailable("no broker answers")


@pytest.mark.parametrize(
    ("then", "unclear", "once_unclear"),
    [(refusal, [], [0]), (silence, [0], []), (away, [0], [])],
)
@in_virtual_time
async def test_what_a_push_says_of_a_try_in_doubt(
    then: Callable[[], Awaitable[None]], unclear: list[int], once_unclear: list[int]
) -> None:
    """A try that another caller ended, and that may have arrived, is told when the next one fails: as the last attempt
    where that one was not sent, else as an earlier one."""
    tries = 0

    async def ready() -> SimpleNamespace:
        if tries and then is away:
            await then()
        return SimpleNamespace(deliver=deliver)

    async def deliver(*given: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            on_doubt = given[-1]
            on_doubt()
            raise NotSent
        await then()

    packer = Packer(RecordOrigin.of("q", "i"), 1, codec=0, batch_bytes=1000, limit_bytes=1 << 20)
    slot = cast(SenderSlot, SimpleNamespace(ready=ready))
    route = KafkaRoute(slot, "t", 1, packer, KafkaSettings(), LogObserver(), SmallerBatches())
    [batch], _ = route.pack(make_records(0, 1))
    with pytest.raises(EndpointError) as caught:
        await route.push(batch)

    assert (list(caught.value.unclear), list(caught.value.once_unclear)) == (unclear, once_unclear)


class Poison(Values):
    """What cannot be encoded, for a reason that was not thought of."""

    def encode(self, first: int) -> bytes:
        raise ZeroDivisionError


@in_virtual_time
async def test_a_defect_in_one_record_set() -> None:
    """A record set that cannot be encoded fails its own caller; those that shared its batch and request arrive once."""
    brokers = Brokers()
    places = [TopicPartition("t", each % 2) for each in range(10)]
    async with a_slot(brokers) as slot:
        good = [asyncio.create_task(deliver(slot, place, Values((f"good {at}",)))) for at, place in enumerate(places)]
        with pytest.raises(ZeroDivisionError):
            await deliver(slot, places[0], Poison(("bad",)))
        await asyncio.gather(*good)

    assert sorted(each for log in brokers.logs.values() for each in log.values) == [f"good {at}" for at in range(10)]


@in_virtual_time
async def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that would make a request too large travel in the next one, all of them in turn."""
    monkeypatch.setattr(module, "MOST_REQUEST_BYTES", 1000)
    brokers = Brokers()
    async with a_slot(brokers) as slot:
        sets = [Values((f"{each}",), nbytes=400 if each else 5000) for each in range(PARTITIONS)]
        await asyncio.gather(*(deliver(slot, TopicPartition("t", at), each) for at, each in enumerate(sets)))

    assert sorted(len(places) for _, places, _ in brokers.requests) == [1, 1, 2, 2]
    assert sum(len(log.values) for log in brokers.logs.values()) == PARTITIONS


@in_virtual_time
async def test_an_answer_without_a_partition() -> None:
    """A batch that an answer says nothing of counts as failed, never as delivered."""
    place, client = TopicPartition("t", 0), SimpleNamespace()

    async def send(node: int, request: Any) -> Any:
        return SimpleNamespace(topics=[])

    client.send = send

    failures = await produce(cast(KafkaClient, client), 0, {place: RecordBatch(0, [Values(("a",))])}, 1.0)

    assert [type(each) for each in failures.values()] == [kafka.UnknownError]


@given(st.lists(st.integers(1, 5), max_size=20), st.integers(0, 30))
def test_numbers_of_records(counts: list[int], before_the_end: int) -> None:
    """A partition's batches are numbered without a gap, and begin anew behind the largest number."""
    numbering, place = Numbering(7, 1), TopicPartition("t", 0)
    numbering._next[place] = at = SEQUENCES - before_the_end if before_the_end else 0

    for count in counts:
        batch = RecordBatch(0, [Values(("v",) * count)])
        numbering.number(place, batch)
        assert batch._producer == (7, 1, at)
        at = (at + count) % SEQUENCES


@in_virtual_time
async def test_a_producer_id_from_a_busy_broker() -> None:
    """A producer id is asked for until the coordinator is no longer busy; another refusal is raised."""
    codes = [kafka.GroupLoadInProgressError.errno, kafka.NotCoordinatorForGroupError.errno, 0]

    async def ask(request: Any) -> Any:
        return SimpleNamespace(error_code=codes.pop(0), producer_id=5 - len(codes), producer_epoch=3)

    found = await init_producer(ask)
    assert (found.producer_id, found.epoch, codes) == (5, 3, [])

    codes = [kafka.ClusterAuthorizationFailedError.errno]
    with pytest.raises(kafka.ClusterAuthorizationFailedError):
        await init_producer(ask)
