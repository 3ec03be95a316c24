"""The parts of the delivery wing, each built alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeBatch, FakeStore
from engine.ownership.parts import a_store, taken
from engine.runs import a_topic
from remora.codec.rendering_cached import Renderer
from remora.config import DeliverySettings, QuarantineSettings
from remora.engine.admission.gate import Gate
from remora.engine.admission.givers import Allowance, PageAhead
from remora.engine.admission.holds import HeldTopics
from remora.engine.catalogue import Catalogue
from remora.engine.delivery.head_expiry import HeadExpiry
from remora.engine.delivery.lane_queues import InFlightBatch, LaneQueues
from remora.engine.delivery.letters import dead_letter
from remora.engine.delivery.pages_ahead import PagesAhead
from remora.engine.delivery.reader import Reader
from remora.engine.delivery.scope import DeliveryScope, WorkerContext
from remora.engine.delivery.session import Session
from remora.engine.delivery.shard_state import Redelivery, ShardState
from remora.engine.delivery.triage import Rejected
from remora.engine.delivery.trimmer import Trimmer
from remora.engine.lease import Lease
from remora.engine.quarantines import Quarantines
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable, OwnershipLost, RemoraError, ShardGone, StoreUnavailable
from remora.model.ledger import Cause, Tally
from remora.model.record import DeadLetter, Page
from remora.policy.admission.limits import ByteLimit
from remora.policy.delivery.pace import Pace
from remora.policy.delivery.retry import PROBE_ENTRIES
from support.kafka_sender import make_records


@dataclass
class Stand:
    """A scope on a scripted store, and the failures that its parts report."""

    store: FakeStore
    scope: DeliveryScope
    failures: list[RemoraError] = field(default_factory=list)

    def reader(self, tasks: asyncio.TaskGroup, budget: ByteLimit) -> Reader:
        allowance = Allowance(budget)
        return Reader(self.scope, allowance, tasks, on_failure=self.failures.append, all_removed=lambda: True)

    def trimmer(self, *, more_to_come: bool = False) -> Trimmer:
        return Trimmer(self.scope, on_failure=self.failures.append, more_to_come=lambda: more_to_come)

    async def page(self) -> Page:
        return await self.store.queue.read(self.scope.lease.token, b"", 100)


async def a_stand(entries: int, settings: DeliverySettings | None = None) -> Stand:
    store, telemetry = a_store("t"), Telemetry()
    store.queues["t"].append(*(raw_entry("k", i) for i in range(entries)))
    lock = await taken(store, "t")
    lease = Lease(lock.token, lock.term, lambda: 1)
    catalogue = Catalogue(store, telemetry, 30)
    settings, gate = settings or DeliverySettings(), Gate(telemetry)
    quarantines = Quarantines(QuarantineSettings(), telemetry, Random(7))
    holds = HeldTopics(catalogue.is_held, gate.free)
    context = WorkerContext(store, catalogue, telemetry, Renderer(), settings, Pace(1000), gate, quarantines, holds)
    return Stand(store, DeliveryScope(context, lease, a_topic(), ShardState()))


# ----------------------------------------------------------------------------------------- redelivery


def a_letter(position: str) -> DeadLetter:
    return DeadLetter("t", "i", position, "", "refused", "by the broker", 1, 0.0, 0.0, b"raw")


def test_a_letter_is_stored_only_when_the_store_has_it() -> None:
    """A letter whose storing began keeps its entry from being sent, and counts as stored only when that ended."""
    redelivery, letter = Redelivery(), a_letter("0/10")

    redelivery.begin_storing([letter])
    began = redelivery.is_stored(letter)
    redelivery.stored([letter])

    assert b"0/10" in redelivery.letters
    assert (began, redelivery.is_stored(letter)) == (False, True)


def test_what_has_left_the_queue_is_forgotten() -> None:
    """Whatever is known of entries before a position goes, and what is known of the others stays."""
    redelivery = Redelivery({b"0/9": Cause.DELIVERED, b"0/10": Cause.DELIVERED}, refused={b"0/9": "no", b"1/1": "no"})
    redelivery.count_attempt([b"0/9", b"0/10"])
    redelivery.begin_storing([a_letter("0/9"), a_letter("1/1")])

    redelivery.removed(b"0/10")
    known = set(redelivery.letters)
    redelivery.drop_before(b"0/10")

    assert known == {b"1/1"}
    assert set(redelivery.done) == set(redelivery.attempts) == {b"0/10"}
    assert set(redelivery.refused) == set(redelivery.unstored) == {b"1/1"}


# -------------------------------------------------------------------------------------------- reading


@in_virtual_time
async def test_a_reader_returns_the_page_and_learns_from_it() -> None:
    """A page is read with the lock's token; what it says of sizes and backlog decides on the next one."""
    stand = await a_stand(10)

    async with asyncio.TaskGroup() as tasks:
        reader = stand.reader(tasks, ByteLimit(1 << 20))
        reader.fetch(b"", 4)
        page = await reader.fetched()
        assert page is not None
        reader.learn(page)

    reads = stand.scope.state.reads
    assert (len(page.entries), reads.has_backlog, stand.scope.state.progress.has_work) == (4, True, True)
    assert reads.mean_bytes == max(page.nbytes / 4, 1024 + (page.nbytes / 4 - 1024) / 4)
    assert stand.failures == []


@in_virtual_time
async def test_a_reader_reports_a_store_that_is_away() -> None:
    """A failed read is no page, and the session learns of it."""
    stand = await a_stand(10)
    stand.store.before = lambda call: StoreUnavailable("away") if call == "read" else None

    async with asyncio.TaskGroup() as tasks:
        reader = stand.reader(tasks, ByteLimit(1 << 20))
        reader.fetch(b"", 4)
        assert await reader.fetched() is None

    assert [str(each) for each in stand.failures] == ["away"]


@in_virtual_time
async def test_a_reader_holds_bytes_until_they_are_given_back() -> None:
    """What a reader takes of the budget is held, by the shard too, and all of it goes back at the end."""
    stand, budget = await a_stand(0), ByteLimit(4096)

    async with asyncio.TaskGroup() as tasks:
        reader = stand.reader(tasks, budget)
        room = await reader.take_room(3)
        refused = reader.take_turn_now(3)
        reader.held.hold(-1000)
        held = (budget.held, stand.scope.state.progress.held_bytes)
        reader.close(keeps_place=False)

    assert (room, refused) == (3072, 0)
    assert held == (2072, 2072)
    assert (budget.held, stand.scope.state.progress.held_bytes) == (0, 0)


# ------------------------------------------------------------------------------------------- trimming


@in_virtual_time
async def test_a_trimmer_removes_the_prefix_that_is_done() -> None:
    """Entries behind one that is open stay in the queue, and are known as done when the window is abandoned."""
    stand = await a_stand(5)
    trimmer, page = stand.trimmer(), await stand.page()
    acks = trimmer.add(page)

    trimmer.mark_done(acks, [0, 1, 3], Cause.DELIVERED)
    await trimmer.trim()

    assert stand.store.queues["t"].waiting == 3
    assert stand.store.queues["t"].ledger == Tally(delivered=2)
    assert trimmer.forget() == {page.positions[3]: Cause.DELIVERED}


@in_virtual_time
async def test_part_of_a_page_waits_for_the_rest() -> None:
    """What is done of a page is removed with the rest of it, or a quarter of a second later, also when nothing more
    arrives."""
    stand = await a_stand(5)
    trimmer, page = stand.trimmer(more_to_come=True), await stand.page()
    acks, waiting = trimmer.add(page), list[int]()
    async with asyncio.TaskGroup() as tasks:
        removing = tasks.create_task(trimmer.run())
        for done in ([0], [1], [], [2], [3, 4]):
            trimmer.mark_done(acks, done, Cause.DELIVERED)
            await asyncio.sleep(0.1)
            waiting.append(stand.store.queues["t"].waiting)
        await asyncio.sleep(2)
        removing.cancel()

    assert waiting == [5, 5, 3, 3, 0]
    assert stand.store.removals == [("t", 2), ("t", 3)]


@in_virtual_time
async def test_part_of_the_next_page_is_removed_too() -> None:
    """What was done of a page before the one ahead of it was whole is removed a quarter of a second later, also when
    nothing more arrives."""
    stand = await a_stand(5)
    trimmer, whole = stand.trimmer(more_to_come=True), await stand.page()
    ahead, behind = trimmer.add(whole.front(2)), trimmer.add(replace(whole, positions=whole.positions[2:]))
    async with asyncio.TaskGroup() as tasks:
        removing = tasks.create_task(trimmer.run())
        trimmer.mark_done(behind, [0, 1], Cause.DELIVERED)
        trimmer.mark_done(ahead, [0, 1], Cause.DELIVERED)
        await asyncio.sleep(2)
        removing.cancel()

    assert stand.store.removals == [("t", 2), ("t", 2)]
    assert stand.store.queues["t"].waiting == 1


@in_virtual_time
async def test_a_trimmer_that_lost_the_lock_removes_nothing() -> None:
    """The store refuses a removal of a former owner, and the session learns of it."""
    stand = await a_stand(2)
    trimmer, page = stand.trimmer(), await stand.page()
    trimmer.mark_done(trimmer.add(page), [0, 1], Cause.DELIVERED)
    stand.store.steal("t", "remora/other/b/w2", lease_s=60)

    await trimmer.trim()

    assert stand.store.queues["t"].waiting == 2
    assert [type(each) for each in stand.failures] == [OwnershipLost]


# ---------------------------------------------------------------------------------------- turning back


@in_virtual_time
async def test_what_may_be_turned_back() -> None:
    """Pages of which nothing was begun, but none between the arrival of a page and its packing, which would overtake
    them, and none once the session is over."""
    stand, is_over, lanes = await a_stand(20), False, LaneQueues()
    async with asyncio.TaskGroup() as tasks:
        reader, trimmer = stand.reader(tasks, ByteLimit(1 << 20)), stand.trimmer()
        ahead = PagesAhead(stand.scope, reader, trimmer, lanes, is_over=lambda: is_over)
        ahead.begin_at(b"")
        joining, joined, sizes = [], [], []
        for _ in range(2):
            page = await stand.store.queue.read(stand.scope.lease.token, ahead.next_read(), 10)
            assert ahead.follows(page)
            joining.append(ahead.ahead())
            acks = trimmer.add(page)
            lanes.add(InFlightBatch(page, acks, FakeBatch(0, make_records(0, 1)), 0.0))
            ahead.add(PageAhead(acks, page.nbytes, batches=1), is_clean=True)
            joined.append(ahead.ahead())
            sizes.append(page.nbytes)
        is_over = True
        at_the_end = ahead.ahead()

    assert joining == [(), ()]
    assert joined == [(sizes[0],), tuple(sizes)]
    assert at_the_end == ()


# -------------------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize("loss", [OwnershipLost("another's"), ShardGone("gone")])
@in_virtual_time
async def test_a_shard_that_is_lost_is_what_a_session_ends_with(loss: RemoraError) -> None:
    """A failure of the endpoint before or after it is nothing beside it: the shard is let go, not tried again."""
    stand, down = await a_stand(0), EndpointUnavailable("no leader")
    failures = []
    for order in ([down, loss, down], [loss, down], [down, EndpointUnavailable("still none")]):
        session = Session(stand.scope, Allowance(ByteLimit(1 << 20)), lambda: None)
        for failure in order:
            session.fail(failure)
        failures.append(session.failure)

    assert failures == [loss, loss, down]


@in_virtual_time
async def test_a_head_is_left_when_the_shard_is_to_be_given_back() -> None:
    """A look removes what has expired page by page, and reads no page once the shard is wanted by another worker."""
    stand = await a_stand(500)
    await stand.store.letters.standing(stand.scope.lease.token)
    topic = replace(stand.scope.topic, time_to_live_s=1)
    queue = stand.store.queues["t"]
    waiting = []
    for most in (1, 1000):
        reads = stand.store.calls["read"] + most

        def is_finishing(reads: int = reads) -> bool:
            return stand.store.calls["read"] >= reads

        head = HeadExpiry(stand.scope.context, stand.scope.lease, stand.scope.state, is_finishing)
        await head.look(topic, ByteLimit(1 << 20), tried=False, publishes=False)
        waiting.append(queue.waiting)

    assert waiting == [500 - PROBE_ENTRIES, 0]


# --------------------------------------------------------------------------------------- dead letters


@in_virtual_time
async def test_a_letter_is_stored_once() -> None:
    """An entry that is rejected at a second reading keeps the letter of the first one, and its cause."""
    stand = await a_stand(3)
    await stand.store.letters.standing(stand.scope.lease.token)
    page = await stand.page()

    (first,) = await dead_letter(stand.scope, page, [Rejected(1, "too_large", "above the limit")])
    (again,) = await dead_letter(stand.scope, page, [Rejected(1, "expired", "too old")])

    assert (first.cause, again.cause) == ("too_large", "too_large")
    assert again.raw == page.entries[1]
    assert stand.store.calls["store_letters"] == 1
