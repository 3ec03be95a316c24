"""Exactly-once in the engine: the order of steps that it rests on, under every fault that the ports allow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeExactRoute, FakeStore, Fate, Verdict
from engine.runs import QUICK, a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.engine.claims import move
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import (
    EndpointError,
    EndpointMisconfigured,
    EndpointUnavailable,
    EntryRefused,
    RemoraError,
    StoreUnavailable,
)
from remora.model.ledger import Tally
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.ports.endpoint import Batch

EXACT = DeliverySettings(mode="exactly-once", retry_cap_s=5)


def an_exact_topic(**changes: Any) -> Topic:
    topic = a_topic(**changes)
    return replace(topic, target=replace(topic.target, args="remora-delivery=exactly-once"))


def entries(count: int, first: int = 0, keys: int = 7) -> list[bytes]:
    return [raw_entry(f"k{i % keys}", i) for i in range(first, first + count)]


def numbers(endpoint: FakeEndpoint) -> list[int]:
    return [int(each.removeprefix(b"id-")) for each in endpoint.events()]


class Journal:
    """What store and endpoint were asked and did, in order."""

    def __init__(self, store: FakeStore, endpoint: FakeEndpoint) -> None:
        self.steps: list[str] = []
        endpoint.journal = self.steps.append
        before, after = store.before, store.after
        store.before = lambda call: self._note(call, "?", before)
        store.after = lambda call: self._note(call, "", after)

    def _note(self, call: str, mark: str, then: Callable[[str], RemoraError | float | None]) -> Any:
        self.steps.append(call + mark)
        return then(call)

    def check(self) -> None:
        """Each commit comes after a removal that succeeded on the same route, which came after entering it."""
        checked = False
        for step in self.steps:
            if step in ("enter", "leave"):
                checked = False
            elif step == "remove":
                checked = True
            elif step == "commit":
                assert checked, self.steps


def in_order(endpoint: FakeEndpoint) -> bool:
    """Whether the records of each key arrived in the order of their numbers."""
    last: dict[bytes, int] = {}
    for _, record in endpoint.arrived:
        number = int(record.event_id.removeprefix(b"id-"))
        if last.get(record.key, -1) >= number:
            return False
        last[record.key] = number
    return True


# ---------------------------------------------------------------------------------- without a fault


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_everything_is_committed_once_in_few_transactions(tells: bool) -> None:
    """A backlog goes in transactions of up to 5,000 records, in order per key, and leaves the queue."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint()
    queue = store.make("t", *entries(12_000))
    store.metadata["t"] = an_exact_topic()
    journal = Journal(store, endpoint)

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(12_000))
    assert in_order(endpoint)
    assert max(endpoint.transactions) == 5000
    assert len(endpoint.transactions) < 8
    assert queue.ledger == Tally(delivered=12_000)
    journal.check()


@in_virtual_time
async def test_few_entries_do_not_wait_for_more() -> None:
    """What a short queue has is committed at once, and what came meanwhile goes together afterwards."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    queue = store.make("t")
    store.metadata["t"] = an_exact_topic()
    slow = DeliverySettings(transaction_time_s=60)

    async with running(a_worker(store, endpoint, slow)):
        await asyncio.sleep(2)
        for i in range(200):
            queue.append(raw_entry("k", i))
            await asyncio.sleep(0.005)
        await drained(store, within_s=0.5)

    assert numbers(endpoint) == list(range(200))
    assert 10 < len(endpoint.transactions) < 80


@in_virtual_time
async def test_a_backlog_that_comes_slowly_is_committed_after_the_time_of_a_transaction() -> None:
    """Where listings are slow a transaction does not wait for all of its entries."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(6000))
    store.metadata["t"] = an_exact_topic()
    store.before = lambda call: 0.2 if call == "read" else None

    async with running(a_worker(store, endpoint, DeliverySettings(transaction_time_s=0.1))):
        await drained(store)

    assert max(endpoint.transactions) <= 2048
    assert sorted(numbers(endpoint)) == list(range(6000))


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_an_idle_shard_has_no_route(tells: bool) -> None:
    """Without entries no route is entered; one that had some is left after some seconds, and entered again for more."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint()
    queue = store.make("t")
    store.metadata["t"] = an_exact_topic()
    journal = Journal(store, endpoint)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(60)
        assert endpoint.exact_routes == []
        queue.append(*entries(1))
        await drained(store, within_s=3)
        await asyncio.sleep(60)
        assert [step for step in journal.steps if step in ("enter", "leave")] == ["enter", "leave"]
        queue.append(*entries(1, first=1))
        await drained(store, within_s=3)

    assert numbers(endpoint) == [0, 1]
    assert len(endpoint.exact_routes) == 2


@in_virtual_time
async def test_many_shards_share_what_may_be_held() -> None:
    """With eleven backlogs and room for a few transactions, each shard still gets large ones."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for shard in range(11):
        store.make(f"t{shard}", *entries(3000))
        store.metadata[f"t{shard}"] = an_exact_topic(queue=f"t{shard}", to="t")
    worker = a_worker(
        store, endpoint, DeliverySettings(shard_bytes=1 << 20, endpoint_bytes=2 << 20, worker_bytes=4 << 20)
    )

    async with running(worker):
        await drained(store)

    assert len(endpoint.arrived) == 33_000
    assert len(endpoint.transactions) <= 44
    assert worker.budget.held == 0


@in_virtual_time
async def test_finishing_commits_what_was_read_and_releases_the_lock() -> None:
    """A worker that is told to finish commits what it has read, reads no more, and lets the shard go."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(2_000))
    store.metadata["t"] = an_exact_topic()
    endpoint.verdict = lambda *_: Verdict(wait_s=1)
    worker = a_worker(store, endpoint, DeliverySettings(transaction_records=300))

    async with running(worker) as task:
        await asyncio.sleep(1.5)
        worker.end()
        await task

    done = len(endpoint.arrived)
    assert 0 < done < 2_000
    assert queue.waiting == 2_000 - done
    assert queue.holder is None


# ------------------------------------------------------------------------------- the order of steps


@pytest.mark.guarantee("exactly-once")
@pytest.mark.parametrize("happens", [True, False])
@in_virtual_time
async def test_an_unknown_outcome_is_looked_up_and_never_guessed(happens: bool) -> None:
    """After a commit without an answer the next route tells whether it was carried out: nothing is lost or doubled."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(3000))
    store.metadata["t"] = an_exact_topic()
    lost = iter([EndpointUnavailable("no answer")] * 3)

    def verdict(route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        error = next(lost, None)
        return Verdict(happens=happens or error is None, error=error)

    endpoint.verdict = verdict
    journal = Journal(store, endpoint)
    async with running(a_worker(store, endpoint, EXACT)):
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(3000))
    assert in_order(endpoint)
    assert len(endpoint.exact_routes) == (2 if happens else 4)
    assert queue.ledger == Tally(delivered=3000)
    journal.check()


@pytest.mark.guarantee("exactly-once")
@in_virtual_time
async def test_the_lock_is_checked_even_when_there_is_nothing_to_trim() -> None:
    """A store that fails the removal which only checks keeps everything from being sent, for as long as it does."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(100))
    store.metadata["t"] = an_exact_topic()
    store.before = lambda call: StoreUnavailable("no answer") if call == "remove" else None

    async with running(a_worker(store, endpoint, EXACT)):
        await asyncio.sleep(60)
        assert len(endpoint.exact_routes) > 3
        assert endpoint.arrived == []
        store.before = lambda _: None
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(100))


@pytest.mark.guarantee("exactly-once")
@in_virtual_time
async def test_a_lock_lost_while_the_producer_is_initialised_sends_nothing() -> None:
    """Where another takes the lock right after the route was entered, the removal is refused and the shard let go."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(100))
    store.metadata["t"] = an_exact_topic()
    worker = a_worker(store, endpoint, EXACT)

    def journal(step: str) -> None:
        if step == "enter" and len(endpoint.exact_routes) == 1:
            store.steal("t", "remora/other/b/w", lease_s=1000)

    endpoint.journal = journal
    async with running(worker):
        await asyncio.sleep(20)
        assert endpoint.arrived == []
        assert queue.waiting == 100
        assert worker.shards == []
        assert len(endpoint.exact_routes) == 1


@in_virtual_time
async def test_a_fenced_owner_that_still_holds_the_lock_begins_with_the_whole_order() -> None:
    """Fenced by somebody who has no lock, the owner enters again, checks the lock, and only then sends."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(8000))
    store.metadata["t"] = an_exact_topic()
    fences = iter(range(2))

    def verdict(route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        if next(fences, None) is not None:
            endpoint.epochs[route.shard] += 1
        return Verdict()

    endpoint.verdict = verdict
    journal = Journal(store, endpoint)
    async with running(a_worker(store, endpoint, EXACT)):
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(8000))
    assert len(endpoint.exact_routes) == 3
    journal.check()


@pytest.mark.guarantee("exactly-once")
@in_virtual_time
async def test_two_owners_never_fence_each_other_in_turn() -> None:
    """When the lock goes to another worker in the middle of a commit, one entering follows, and one let-go."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    queue = store.make("t", *entries(2_000))
    store.metadata["t"] = an_exact_topic()
    endpoint.verdict = lambda *_: Verdict(wait_s=1)
    delivery = replace(EXACT, transaction_records=300)
    one, other = (a_worker(store, endpoint, delivery, cookie=f"remora/h/b/{name}") for name in ("w1", "w2"))

    async with running(one):
        await asyncio.sleep(2.5)
        assert one.shards
        queue.holder = None
        async with running(other):
            await drained(store)

    assert sorted(numbers(endpoint)) == list(range(2_000))
    assert in_order(endpoint)
    assert len(endpoint.exact_routes) <= 4


@in_virtual_time
async def test_nothing_is_committed_without_trust_in_the_lock() -> None:
    """While the lock cannot be renewed nothing is committed, though the endpoint would take it."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(3_000))
    store.metadata["t"] = an_exact_topic()
    endpoint.verdict = lambda *_: Verdict(wait_s=0.5)
    store.before = lambda call: StoreUnavailable("away") if call == "renew" else None
    commits: list[float] = []
    endpoint.journal = lambda step: commits.append(asyncio.get_running_loop().time()) if step == "commit" else None

    async with running(a_worker(store, endpoint, replace(EXACT, transaction_records=100))):
        await asyncio.sleep(20)
        queue.lease_ends = 10_000.0
        store.before = lambda _: None
        await drained(store)

    trusted = QUICK.lease_s - QUICK.trust_margin_s
    assert not [at for at in commits if trusted + 0.1 < at < 12]
    assert [at for at in commits if at < trusted]
    assert sorted(numbers(endpoint)) == list(range(3_000))


@in_virtual_time
async def test_trust_is_asked_for_again_once_the_producer_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where initialising takes longer than the trust lasts, nothing is read, removed or sent on that route."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(10))
    store.metadata["t"] = an_exact_topic()
    worker = a_worker(store, endpoint, EXACT)
    steps: list[str] = []

    async with running(worker):
        entered = endpoint.exact

        @asynccontextmanager
        async def slow(*args: Any) -> Any:
            async with entered(*args) as route:
                for lease in worker.ownership.leases:
                    lease.term = replace(lease.term, trusted_until=-1.0)
                steps.append("untrusted")
                store.before = lambda call: steps.append(call)
                yield route

        monkeypatch.setattr(endpoint, "exact", slow)
        await until(lambda: steps)
        await asyncio.sleep(0.05)
        assert not {"read", "remove"} & set(steps)
        assert endpoint.arrived == []


# ------------------------------------------------------------------------------------- the position


async def _deliver(store: FakeStore, endpoint: FakeEndpoint, count: int) -> None:
    """Commit this many entries, and let none of them leave the queue."""
    store.before = lambda call: StoreUnavailable("away") if call == "remove" and endpoint.arrived else None
    async with running(a_worker(store, endpoint, DeliverySettings(mode="exactly-once", retry_cap_s=1))) as task:
        await until(lambda: len(endpoint.arrived) >= count)
        await asyncio.sleep(1)
        task.cancel()
    store.before = lambda _: None


@in_virtual_time
async def test_what_was_committed_and_not_removed_is_removed_by_the_next_owner() -> None:
    """The position that was committed is trimmed up to before anything is sent; each entry counts as what it was."""
    store, endpoint = FakeStore(), FakeEndpoint()
    raw = entries(40)
    raw[5] = b"not an entry"
    queue = store.make("t", *raw)
    store.metadata["t"] = an_exact_topic()
    await _deliver(store, endpoint, 39)
    assert queue.waiting == 40
    queue.append(*entries(10, first=40))
    queue.holder = None

    async with running(a_worker(store, endpoint, EXACT, cookie="remora/h/b/w2")):
        await drained(store)

    assert sorted(numbers(endpoint)) == [i for i in range(50) if i != 5]
    assert queue.ledger == Tally(delivered=49, dead_lettered=1)
    assert len(store.parked) == 1


@in_virtual_time
async def test_a_position_behind_the_front_is_ignored() -> None:
    """A position that the queue has passed, because the topic was delivered otherwise meanwhile, skips nothing."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(20))
    store.metadata["t"] = an_exact_topic()
    queue.front = 10
    endpoint.positions["t", queue.incarnation] = queue.marker(4)

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(10, 20))


@pytest.mark.guarantee("exactly-once")
@pytest.mark.parametrize("beyond", [b"0/99999999", b"7/0", b"0/24577", b"nonsense"])
@in_virtual_time
async def test_a_position_that_is_none_of_the_queue_stops_the_shard(beyond: bytes) -> None:
    """A position past the tail, or between entries, removes and sends nothing; the status says why."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(20))
    store.metadata["t"] = an_exact_topic()
    endpoint.positions["t", queue.incarnation] = beyond
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(20)
        (status,) = worker.shards
        assert (status.state, queue.waiting, endpoint.arrived) == ("stopped", 20, [])
        assert "position" in status.reason
        del endpoint.positions["t", queue.incarnation]
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(20))


# ------------------------------------------------------------------------------- what cannot be sent


@in_virtual_time
async def test_letters_are_stored_before_the_commit_that_passes_over_them() -> None:
    """Undecodable and too large entries are in the store when the transaction begins, and travel in it."""
    store, endpoint = FakeStore(), FakeEndpoint()
    raw = entries(10)
    raw[3] = b"not an entry"
    queue = store.make("t", *raw)
    store.metadata["t"] = an_exact_topic()
    endpoint.too_large = lambda record: record.event_id == b"id-7"
    parked_before: list[int] = []
    endpoint.journal = lambda step: parked_before.append(len(store.parked)) if step == "commit" else None

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert parked_before == [2]
    assert sorted(each.cause for each in endpoint.buried) == ["too_large", "undecodable"]
    assert sorted(numbers(endpoint)) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert queue.ledger == Tally(delivered=8, dead_lettered=2)


@in_virtual_time
async def test_nothing_passes_an_entry_whose_letter_cannot_be_stored() -> None:
    """While dead letters cannot be stored, no transaction that passes over one is begun."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", b"not an entry", *entries(10))
    store.metadata["t"] = an_exact_topic()
    store.before = lambda call: StoreUnavailable("away") if call == "store_letters" else None

    async with running(a_worker(store, endpoint, EXACT)):
        await asyncio.sleep(30)
        assert endpoint.arrived == []
        store.before = lambda _: None
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(10))


@pytest.mark.parametrize("count", [1, 2, 300])
@in_virtual_time
async def test_a_refused_record_is_found_and_parked(count: int) -> None:
    """A record that aborts its transaction for good is found among the others, parked, and the others arrive once."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(count))
    store.metadata["t"] = an_exact_topic()
    bad = b"id-%d" % (count // 2)

    def verdict(route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        if any(record.event_id == bad for each in batches for record in each.records):
            return Verdict(happens=False, error=EntryRefused("invalid timestamp"))
        return Verdict()

    endpoint.verdict = verdict
    async with running(a_worker(store, endpoint)):
        await drained(store, within_s=60)

    assert [each.cause for each in store.parked.values()] == ["refused"]
    assert sorted(numbers(endpoint)) == [i for i in range(count) if i != count // 2]
    assert queue.ledger == Tally(delivered=count - 1, dead_lettered=1)


@in_virtual_time
async def test_what_fails_too_often_is_parked() -> None:
    """With max_retries an entry whose transaction fails n + 1 times becomes a dead letter, and goes no more."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(5))
    store.metadata["t"] = an_exact_topic(max_retries=2)
    endpoint.verdict = lambda _, batches: Verdict(
        happens=not batches, error=EndpointUnavailable("no leader") if batches else None
    )

    async with running(a_worker(store, endpoint, EXACT)):
        await drained(store)

    assert {(each.cause, each.attempts) for each in store.parked.values()} == {("exhausted", 3)}
    assert endpoint.arrived == []


@pytest.mark.guarantee("exactly-once")
@pytest.mark.parametrize("happens", [True, False])
@in_virtual_time
async def test_nothing_is_given_up_while_it_may_have_been_committed(happens: bool) -> None:
    """Entries outlive their time while only the endpoint, which is away, knows whether they were committed."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(20))
    store.metadata["t"] = an_exact_topic(max_retries=1)

    def verdict(route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        endpoint.opening = lambda _: EndpointUnavailable("away")
        return Verdict(happens=happens, error=EndpointUnavailable("no answer"))

    endpoint.verdict = verdict
    async with running(a_worker(store, endpoint, EXACT)):
        await asyncio.sleep(120)
        assert (store.parked, queue.waiting) == ({}, 20)
        endpoint.verdict = lambda *_: Verdict()
        endpoint.opening = lambda _: None
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(20))
    assert queue.ledger == Tally(delivered=20)


# ---------------------------------------------------------------------------------- changes of a topic


@pytest.mark.guarantee("exactly-once")
@in_virtual_time
async def test_the_mode_of_a_topic_may_change_while_entries_wait() -> None:
    """There and back again, in the middle of a backlog: everything arrives, once, since nothing failed."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *entries(6_000))
    plain, exact = a_topic(), an_exact_topic()
    store.metadata["t"] = plain
    endpoint.verdict = lambda *_: Verdict(wait_s=0.3)
    endpoint.fate = lambda *_: Fate(wait_s=0.3)
    small = DeliverySettings(shard_bytes=128 << 10)

    async with running(a_worker(store, endpoint, small)):
        for topic in (exact, plain, exact):
            before = len(endpoint.arrived)
            await until(lambda: len(endpoint.arrived) >= before + 200 or not queue.waiting)  # noqa: B023
            store.metadata["t"] = topic
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(6_000))
    assert in_order(endpoint)
    assert endpoint.pushes
    assert endpoint.transactions


@pytest.mark.guarantee("exactly-once")
@pytest.mark.parametrize("happens", [True, False])
@in_virtual_time
async def test_a_mode_that_changes_after_an_unknown_outcome_loses_nothing(happens: bool) -> None:
    """Back to at-least-once right after a commit without an answer, and once more there: nothing is missing."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(3000))
    store.metadata["t"] = an_exact_topic()

    def verdict(route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        store.metadata["t"] = a_topic()
        return Verdict(happens=happens, error=EndpointUnavailable("no answer"))

    endpoint.verdict = verdict
    async with running(a_worker(store, endpoint)):
        await drained(store)
        endpoint.verdict = lambda *_: Verdict()
        store.metadata["t"] = an_exact_topic()
        store.queues["t"].append(*entries(100, first=3000))
        await drained(store)

    assert set(numbers(endpoint)) == set(range(3100))
    if not happens:
        assert len(numbers(endpoint)) == 3100


@in_virtual_time
async def test_an_unknown_mode_stops_the_topic() -> None:
    """A topic that asks for a mode that there is none of is stopped, and says which there are."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(1))
    topic = a_topic()
    store.metadata["t"] = replace(topic, target=replace(topic.target, args="remora-delivery=twice"))
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(5)
        (status,) = worker.shards
        assert status.state == "stopped"
        assert "exactly-once" in status.reason
        store.metadata["t"] = an_exact_topic()
        await drained(store, within_s=3)
        assert worker.shards[0].delivery == "exactly-once"


class PlainEndpoint:
    """An endpoint without transactions."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        self.schemes = endpoint.schemes
        self.check = endpoint.check
        self.publishes_letters = endpoint.publishes_letters
        self.up = endpoint.up
        self.destination = endpoint.destination
        self.route = endpoint.route


@in_virtual_time
async def test_an_endpoint_without_transactions() -> None:
    """A topic that asks for exactly-once at an endpoint without it is stopped with that reason, and others deliver."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(1))
    store.make("u", *entries(5, first=1))
    store.metadata |= {"t": an_exact_topic(), "u": a_topic("u", to="u")}
    worker = Worker(
        store,
        [PlainEndpoint(endpoint)],
        Telemetry(),
        WorkerSetup("remora/h/b/w1", QUICK, DeliverySettings()),
        Random(7),
    )

    async with running(worker):
        await drained(store, "u")
        await until(lambda: {each.queue: each.state for each in worker.shards}["t"] == "stopped")
        (reason,) = (each.reason for each in worker.shards if each.queue == "t")
        assert "at-least-once only" in reason
        store.metadata["t"] = a_topic()
        await drained(store, within_s=3)

    assert sorted(numbers(endpoint)) == list(range(6))


@in_virtual_time
async def test_a_recreated_queue_begins_anew() -> None:
    """A position of the queue that had the name before skips no entry of the new one."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *entries(100))
    store.metadata["t"] = an_exact_topic()

    async with running(a_worker(store, endpoint)):
        await drained(store)
        store.make("t", *entries(50, first=100))
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(150))


# ------------------------------------------------------------------------------------ every schedule


class Trouble:
    """Draws what goes wrong, for a while."""

    def __init__(self, rng: Random, until: float) -> None:
        self.rng, self.until = rng, until

    def hits(self, chance: float) -> bool:
        return asyncio.get_running_loop().time() < self.until and self.rng.random() < chance

    def store(self, call: str) -> RemoraError | float | None:
        if self.hits(0.05):
            return StoreUnavailable(f"{call}: no answer")
        return self.rng.choice([0.0, 0.001, 0.05])

    def verdict(self, route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        error: EndpointError | None = None
        if self.hits(0.3):
            error = self.rng.choice([EndpointUnavailable("no answer"), EndpointMisconfigured("no such topic")])
        if self.hits(0.1):
            route.endpoint.epochs[route.shard] += 1
        wait_s, answer_s = self.rng.choice([0.0, 0.02, 3.0]), self.rng.choice([0.0, 0.02, 3.0])
        return Verdict(wait_s, error is None or self.rng.random() < 0.5, answer_s, error)


@pytest.mark.guarantee("exactly-once")
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1 << 32), tells=st.booleans())
def test_no_schedule_of_faults_loses_doubles_or_reorders(seed: int, tells: bool) -> None:
    """Whatever fails, answers late or loses the lock, with two workers that take over from each other and hand over."""

    @in_virtual_time
    async def play() -> None:
        rng = Random(seed)
        trouble = Trouble(rng, until=120)
        store, endpoint = FakeStore(tells=tells), FakeEndpoint(lanes=rng.choice([1, 3, 11]))
        queue = store.make("t", *entries(rng.choice([10, 500, 3000]), keys=rng.choice([1, 5, 50])))
        store.metadata["t"] = an_exact_topic()
        store.before, store.after, endpoint.verdict = trouble.store, trouble.store, trouble.verdict
        delivery = DeliverySettings(
            list_entries=rng.choice([1, 7, 1024]),
            transaction_records=rng.choice([3, 100, 5000]),
            max_unacked=rng.choice([0, 0, 200]),
            retry_cap_s=5,
        )
        telemetry = Telemetry()
        workers = [a_worker(store, endpoint, delivery, f"remora/h/b/w{i}", telemetry) for i in range(2)]
        async with running(workers[0]), running(workers[1]):
            while asyncio.get_running_loop().time() < trouble.until:
                await asyncio.sleep(rng.uniform(1, 20))
                if rng.random() < 0.5:
                    queue.holder = None
                queue.append(*entries(rng.randrange(30), first=len(queue.entries), keys=5))
                if rng.random() < 0.3:
                    with suppress(RemoraError):  # the store fails the command, too
                        await move(store, Shard("t"), rng.choice(["w0", "w1"]))
            await drained(store)

        assert sorted(numbers(endpoint)) == list(range(len(queue.entries)))
        assert queue.ledger == Tally(delivered=len(queue.entries))
        assert sample_value(telemetry.registry, "remora_crashes_total") == 0

    play()
