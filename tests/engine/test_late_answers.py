"""An entry whose last attempt is answered too late is delivered and no dead letter; else its letter says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import START_S, a_topic, a_worker, drained, running, until
from remora.model.errors import EndpointUnavailable
from remora.model.record import DeadLetter
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import Batch

UNKNOWN = "; its fate is unknown: {} was not answered"


class Late(FakeEndpoint):
    """Hears after `late_s` of the records, by position, that have arrived after all."""

    def __init__(self, late_s: float = 5.0, lanes: int = 1) -> None:
        super().__init__(lanes)
        self.late_s = late_s
        self.late: set[bytes] = set()
        self.asked: list[bytes] = []

    async def arrived_late(
        self, shard: Shard, incarnation: str, target: Target, positions: Sequence[bytes]
    ) -> frozenset[bytes]:
        self.asked += positions
        await asyncio.sleep(self.late_s)
        return frozenset(self.late.intersection(positions))


def unanswered(batch: Batch, tries: int = 1, *, at: int = 0) -> Fate:
    """A push that ends without an answer to the record at this place."""
    error = EndpointUnavailable("no answer within 10 s").at(at, tries)
    error.unclear = [at]
    return Fate(wait_s=10, arrives=at, error=error)


def stored(store: FakeStore) -> list[DeadLetter]:
    return sorted(store.parked.values(), key=lambda each: each.position)


@pytest.mark.guarantee("no-loss", "nothing-leaves-silently")
@in_virtual_time
async def test_an_answer_that_comes_too_late_counts() -> None:
    """Of entries that ran out of attempts one that arrived all the same is delivered, and the other has a letter."""
    store, endpoint = FakeStore(), Late()
    queue = store.make("t", raw_entry("a", 0), raw_entry("b", 1))
    store.metadata["t"] = a_topic(max_retries=1)
    endpoint.fate = lambda _, batch: unanswered(batch)
    endpoint.late = {queue.marker(0)}

    async with running(a_worker(store, endpoint)):
        await drained(store)

    [letter] = stored(store)
    assert (letter.position.encode(), letter.cause, letter.attempts) == (queue.marker(1), "exhausted", 2)
    assert letter.reason == "not delivered by 1 retries" + UNKNOWN.format("the last attempt")
    assert (queue.ledger.delivered, queue.ledger.dead_lettered) == (1, 1)
    assert sorted(endpoint.asked) == [queue.marker(0), queue.marker(1)]


@in_virtual_time
async def test_an_entry_behind_one_that_is_tried_on() -> None:
    """It is asked for, too, where it runs out of attempts while what stands before it does not."""
    store, endpoint = FakeStore(), Late(lanes=100)
    queue = store.make("t", raw_entry("a", 0), raw_entry("b", 1), raw_entry("b", 2))
    store.metadata["t"] = a_topic(max_retries=1)
    endpoint.batch_records = 1
    endpoint.late = {queue.marker(1)}

    def fate(_: FakeRoute, batch: Batch) -> Fate:
        if batch.records[0].event_id == b"id-1":
            return unanswered(batch)
        if batch.records[0].event_id == b"id-0" and not endpoint.asked:
            return Fate(wait_s=10, arrives=0, error=EndpointUnavailable("another request failed").at(0, 0))
        return Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert (stored(store), endpoint.asked) == ([], [queue.marker(1)])
    assert sorted(endpoint.events()) == [b"id-0", b"id-2"]
    assert queue.ledger.delivered == 3


@in_virtual_time
async def test_an_attempt_that_was_answered_in_the_end() -> None:
    """Where only an earlier attempt was not answered the letter says that; where all were, it says nothing."""
    store, endpoint = FakeStore(), Late()
    store.make("t", raw_entry("a", 0), raw_entry("a", 1))
    store.metadata["t"] = a_topic(max_retries=1)
    busy = EndpointUnavailable("it answers with 503").at(0, 1)
    endpoint.fate = lambda _, batch: unanswered(batch) if endpoint.pushes == 1 else Fate(arrives=0, error=busy)

    async with running(a_worker(store, endpoint)):
        await drained(store)

    reason = "not delivered by 1 retries"
    assert [each.reason for each in stored(store)] == [reason + UNKNOWN.format("an earlier attempt"), reason]


@in_virtual_time
async def test_a_try_within_the_push_that_was_not_answered() -> None:
    """Where the last try of a push was answered, and one before it in the same push was not, the letter says so."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=1)
    store.make("t", raw_entry("a", 0))
    store.metadata["t"] = a_topic(max_retries=1)

    def busy() -> EndpointUnavailable:
        error = EndpointUnavailable("it answers with 503").at(0, 1)
        error.once_unclear = [0] if endpoint.pushes == 1 else []
        return error

    endpoint.fate = lambda _, batch: Fate(arrives=0, error=busy())
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert [each.reason for each in stored(store)] == [
        "not delivered by 1 retries" + UNKNOWN.format("an earlier attempt")
    ]


@in_virtual_time
async def test_an_entry_that_outlives_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What expires after an attempt without an answer says so, also where attempts are not limited."""
    monkeypatch.setattr(time, "time_ns", lambda: int((START_S + asyncio.get_running_loop().time()) * 1e9))
    store, endpoint = FakeStore(), FakeEndpoint(lanes=1)
    store.make("t", raw_entry("a", 0, created=START_S))
    store.metadata["t"] = replace(a_topic(), time_to_live_s=60)
    endpoint.fate = lambda _, batch: unanswered(batch)

    async with running(a_worker(store, endpoint)):
        await drained(store)

    [letter] = stored(store)
    assert letter.cause == "expired"
    assert letter.reason.endswith(UNKNOWN.format("the last attempt"))


@in_virtual_time
async def test_a_shard_that_finishes_waits_for_no_late_answer() -> None:
    """A drain ends without the time that a late answer may take; what is known by then counts."""
    store, endpoint, loop = FakeStore(), Late(late_s=0), asyncio.get_running_loop()
    queue = store.make("t", raw_entry("a", 0), raw_entry("b", 1))
    store.metadata["t"] = a_topic(max_retries=1)
    endpoint.fate = lambda _, batch: unanswered(batch)
    endpoint.late = {queue.marker(0)}

    async with running(a_worker(store, endpoint)):
        await until(lambda: len(endpoint.asked) == 1)
        endpoint.late_s = 1e6
        await until(lambda: len(endpoint.asked) == 2)
        began = loop.time()

    assert loop.time() - began < 5
    assert queue.ledger.delivered == 1
    assert [each.position.encode() for each in stored(store)] == [queue.marker(1)]


@pytest.mark.parametrize(("tries", "together", "tried"), [(None, 1, "cde"), (0, 9, ""), (2, 1, "cc"), (2, 2, "ccd")])
def test_which_records_were_tried(tries: int | None, together: int, tried: str) -> None:
    """An error names the records of its batch that were tried in vain, each as often as it was."""
    assert EndpointUnavailable("away").at(2, tries, together).tried("abcde") == list(tried)
