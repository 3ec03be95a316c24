"""A stored letter makes its entry done: no worker sends it afterwards, whatever has changed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Verdict
from engine.runs import QUICK, START_S, a_topic, a_worker, drained, running, until
from remora.codec.topic import DEAD_LETTER_TOPIC
from remora.config import DeliverySettings
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, StoreUnavailable
from remora.model.ledger import Tally
from remora.model.record import Page
from remora.model.shard import LockToken
from remora.model.topic import Topic

QUICK_RETRIES = DeliverySettings(retry_cap_s=2, configuration_recheck_s=2)
MISSING = EndpointMisconfigured("there is no such dead-letter topic")


def topic(mode: str, **changes: Any) -> Topic:
    """A topic with a dead-letter topic, delivered in this mode."""
    made = a_topic()
    args = f"{DEAD_LETTER_TOPIC}=letters&remora-delivery={mode}"
    return replace(made, target=replace(made.target, args=args), **changes)


def nothing_is_sent(endpoint: FakeEndpoint, error: EndpointError) -> None:
    """Neither letters nor transactions arrive from now on."""
    endpoint.letter_failure = lambda: error
    endpoint.verdict = lambda *_: Verdict(happens=False, error=error)


def all_is_well(endpoint: FakeEndpoint) -> None:
    """Everything arrives from now on, whatever its size."""
    endpoint.letter_failure = lambda: None
    endpoint.verdict = lambda *_: Verdict()
    endpoint.too_large = lambda _: False


def scene(mode: str) -> tuple[FakeStore, FakeEndpoint]:
    """A large entry in front of two small ones of its key, where the dead-letter topic is missing."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 1, padding=5000), raw_entry("k", 2), raw_entry("k", 3))
    store.metadata["t"] = topic(mode)
    endpoint.too_large = lambda record: len(record.body) > 4000
    nothing_is_sent(endpoint, MISSING)
    return store, endpoint


def check(store: FakeStore, endpoint: FakeEndpoint) -> None:
    """The first was dead-lettered and only that; the others were delivered behind its letter; the books say so."""
    assert endpoint.events() == [b"id-2", b"id-3"]
    assert [each.cause for each in store.parked.values()] == ["too_large"]
    assert [replace(each, raw=b"") for each in endpoint.buried] == [
        replace(each, raw=b"") for each in store.parked.values()
    ]
    assert {each.raw for each in endpoint.buried} == {store.queues["t"].entries[0]}
    assert store.queues["t"].ledger == Tally(delivered=2, dead_lettered=1)


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@in_virtual_time
async def test_a_raised_limit_does_not_send_what_has_a_letter(mode: str) -> None:
    """While its letter cannot be published nothing passes an entry; when it fits by then it stays a dead letter."""
    store, endpoint = scene(mode)

    async with running(a_worker(store, endpoint, QUICK_RETRIES)):
        await until(lambda: store.parked)
        await asyncio.sleep(20)
        assert endpoint.arrived == []
        endpoint.too_large = lambda _: False
        await asyncio.sleep(20)
        assert endpoint.arrived == []
        all_is_well(endpoint)
        await drained(store, within_s=60)

    check(store, endpoint)


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@in_virtual_time
async def test_the_next_owner_does_not_send_what_has_a_letter(mode: str) -> None:
    """Also where another worker goes on, for which the entry is small enough."""
    store, endpoint = scene(mode)
    async with running(a_worker(store, endpoint, QUICK_RETRIES)) as task:
        await until(lambda: store.parked)
        await asyncio.sleep(5)
        task.cancel()
    assert store.queues["t"].waiting == 3

    all_is_well(endpoint)
    async with running(a_worker(store, endpoint, QUICK_RETRIES, "remora/h/b/w2")):
        await drained(store, within_s=60)

    check(store, endpoint)


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@in_virtual_time
async def test_a_letter_that_may_be_stored_is(mode: str) -> None:
    """An entry whose letter was stored without an answer, and that fits by now, is parked for the same cause."""
    store, endpoint = scene(mode)
    store.after = lambda call: StoreUnavailable("no answer") if call == "store_letters" else None

    async with running(a_worker(store, endpoint, QUICK_RETRIES)):
        await until(lambda: store.parked)
        await asyncio.sleep(5)
        all_is_well(endpoint)
        store.after = lambda _: None
        await drained(store, within_s=60)

    check(store, endpoint)


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@in_virtual_time
async def test_a_mode_that_changes_does_not_send_what_has_a_letter(mode: str) -> None:
    """Also where the topic is delivered in the other mode from then on."""
    store, endpoint = scene(mode)

    async with running(a_worker(store, endpoint, QUICK_RETRIES)):
        await until(lambda: store.parked)
        all_is_well(endpoint)
        store.metadata["t"] = topic("exactly-once" if mode == "at-least-once" else "at-least-once")
        await drained(store, within_s=60)

    check(store, endpoint)


@pytest.mark.parametrize("opens", [True, False])
@in_virtual_time
async def test_a_clock_that_is_set_back_does_not_send_what_expired(
    opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker whose clock stood ahead has parked stays expired for the next one, whose clock is right."""
    ahead_s = 7200.0
    monkeypatch.setattr(time, "time_ns", lambda: int((START_S + ahead_s) * 1e9))
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *(raw_entry("k", i, created=START_S) for i in range(3)))
    store.metadata["t"] = replace(a_topic(), time_to_live_s=3600)
    store.before = lambda call: StoreUnavailable("away") if call == "remove" else None
    if not opens:
        endpoint.opening = lambda _: EndpointUnavailable("no broker")
    async with running(a_worker(store, endpoint)) as task:
        await until(lambda: len(store.parked) == 3)
        task.cancel()

    ahead_s = 0.0
    queue.append(raw_entry("k", 3, created=START_S))
    store.before, endpoint.opening = lambda _: None, lambda _: None
    async with running(a_worker(store, endpoint, cookie="remora/h/b/w2")):
        await drained(store, within_s=60)

    assert endpoint.events() == [b"id-3"]
    assert [each.cause for each in store.parked.values()] == ["expired"] * 3
    assert queue.ledger == Tally(delivered=1, expired=3)


@in_virtual_time
async def test_a_letter_that_is_to_be_published_waits_for_a_way() -> None:
    """While no way opens what expires leaves the queue, but no entry whose stored letter has still to be published."""
    store, endpoint = scene("at-least-once")
    store.metadata["t"] = topic("at-least-once", time_to_live_s=10**9)

    async with running(a_worker(store, endpoint, QUICK_RETRIES)):
        await until(lambda: store.parked)
        endpoint.opening = lambda _: EndpointUnavailable("no broker")
        await asyncio.sleep(60)
        assert store.queues["t"].waiting == 3
        endpoint.opening = lambda _: None
        all_is_well(endpoint)
        await drained(store, within_s=60)

    check(store, endpoint)


@pytest.mark.parametrize("listed", [1, 1024])
@in_virtual_time
async def test_what_stands_in_front_of_a_letter_goes_on(listed: int) -> None:
    """While an undecodable entry cannot be published everything in front of it arrives, and nothing behind it."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=7)
    before, behind = [raw_entry(f"a{i}", i) for i in range(9)], [raw_entry(f"b{i}", 9 + i) for i in range(9)]
    queue = store.make("t", *before, b"garbage", *behind)
    store.metadata["t"] = topic("at-least-once")
    nothing_is_sent(endpoint, MISSING)

    async with running(a_worker(store, endpoint, replace(QUICK_RETRIES, list_entries=listed))):
        await until(lambda: queue.waiting == 10)
        await asyncio.sleep(20)
        assert sorted(endpoint.events()) == [b"id-%d" % i for i in range(9)]
        all_is_well(endpoint)
        await drained(store, within_s=60)

    assert len(endpoint.events()) == 18


@in_virtual_time
async def test_no_letter_is_stored_without_trust_in_the_lock() -> None:
    """Where the lock may be another's, an entry that would be given up is not: the other may have delivered it."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *(raw_entry("k", i) for i in range(3)))
    store.metadata["t"] = a_topic()
    store.before = lambda call: StoreUnavailable("away") if call == "renew" else None
    packed: list[float] = []

    def too_large(_: object) -> bool:
        packed.append(asyncio.get_running_loop().time())
        return packed[-1] > QUICK.lease_s - QUICK.trust_margin_s

    endpoint.too_large = too_large
    store.after = lambda call: 20.0 if call == "read" else None
    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(30)

    assert [each for each in packed if each > QUICK.lease_s]
    assert store.calls["store_letters"] == 0
    assert queue.waiting == 3


# ------------------------------------------------------------------------------------------- fences


@in_virtual_time
async def test_garbage_of_an_unknown_topic_is_stored_before_it_is_removed() -> None:
    """Where nothing tells a queue's topic, an entry that cannot be decoded stays until its letter is stored."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", raw_entry("k", 0))
    async with running(a_worker(store, endpoint, QUICK_RETRIES)):
        await drained(store)
        store.before = lambda call: StoreUnavailable("away") if call == "store_letters" else None
        queue.append(b"garbage")
        await until(lambda: store.calls["store_letters"] > 3)
        assert (queue.waiting, store.parked) == (1, {})
        store.before = lambda _: None
        await drained(store, within_s=30)

    assert [each.raw for each in store.parked.values()] == [b"garbage"]


@in_virtual_time
async def test_nothing_is_committed_when_trust_ends_while_letters_are_stored() -> None:
    """A transaction whose letters take longer to store than the lock can be trusted is not committed."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", b"garbage", *(raw_entry("k", i) for i in range(3)))
    store.metadata["t"] = topic("exactly-once")
    steps: list[tuple[str, float]] = []
    endpoint.journal = lambda step: steps.append((step, asyncio.get_running_loop().time()))

    def slowly(call: str) -> StoreUnavailable | float | None:
        if call == "renew":
            return StoreUnavailable("away")
        return QUICK.lease_s if call == "store_letters" else None

    store.before = slowly
    async with running(a_worker(store, endpoint, QUICK_RETRIES)):
        await until(lambda: store.parked)
        await asyncio.sleep(0.5)
        assert [step for step, _ in steps if step == "commit"] == []
        store.before = lambda _: None
        await drained(store, within_s=60)

    assert endpoint.events() == [b"id-0", b"id-1", b"id-2"]


class Skipping(FakeStore):
    """Answers one listing from a later place on than it was asked for, as if entries had left in between."""

    due = True

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        page = await super().read(token, start, limit)
        if self.due and start and len(page.entries) > 1:
            self.due = False
            return Page(page.positions[1:], page.entries[1:], page.truncated)
        return page


@in_virtual_time
async def test_no_position_is_committed_that_passes_over_an_entry() -> None:
    """A listing that begins behind where the last commit ended commits nothing: its first entry would be lost."""
    store, endpoint = Skipping(), FakeEndpoint()
    queue = store.make("t", *(raw_entry("k", i) for i in range(5)))
    store.metadata["t"] = topic("exactly-once")

    async with running(a_worker(store, endpoint, QUICK_RETRIES)):
        await drained(store, within_s=120)

    assert not store.due
    assert endpoint.events() == [b"id-%d" % i for i in range(5)]
    assert queue.ledger == Tally(delivered=5)
