"""What a session begins once it is over: nothing where it failed; where it was asked to end, what it had read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running
from remora.config import DeliverySettings
from remora.model.errors import EndpointUnavailable, EntryRefused
from remora.model.record import Page, Record
from remora.model.shard import LockToken
from remora.ports.endpoint import Batch

DOWN = EndpointUnavailable("no leader")
STORING_S = 5.0


class CountingStore(FakeStore):
    """Counts reads of the front, with which each session begins."""

    fronts = 0

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        self.fronts += not start
        return await super().read(token, start, limit)


class Scene:
    """A queue whose letters take five seconds to store, and whose pushes are written down."""

    def __init__(self, *entries: bytes) -> None:
        self.store, self.endpoint = CountingStore(), FakeEndpoint(lanes=256)
        self.store.make("t", *entries)
        self.store.metadata["t"] = a_topic()
        self.store.before = lambda call: self.storing() if call == "store_letters" else None
        self.storing: Callable[[], float] = lambda: STORING_S
        self.endpoint.fate = self._pushed
        self.fate: Callable[[list[int]], Fate] = lambda _: Fate()
        self.pushes: list[tuple[list[int], int]] = []

    def _pushed(self, route: FakeRoute, batch: Batch) -> Fate:
        events = [number(each) for each in batch.records]
        self.pushes.append((events, self.store.fronts))
        return self.fate(events)

    async def run(self) -> None:
        async with running(a_worker(self.store, self.endpoint, DeliverySettings(retry_cap_s=2))):
            await drained(self.store, within_s=600)

    def of_the_first_session(self) -> list[list[int]]:
        """What it pushed."""
        return [events for events, fronts in self.pushes if fronts == 1]

    def arrived(self) -> list[int]:
        return [number(record) for _, record in self.endpoint.arrived]


def number(record: Record) -> int:
    return int(record.event_id.removeprefix(b"id-"))


@in_virtual_time
async def test_what_stands_behind_a_letter() -> None:
    """Where a session fails while a letter is stored, what stands behind that entry is not pushed by it.

    It would pass the entry of its key that has just failed.
    """
    scene = Scene(raw_entry("k", 0), b"garbage", raw_entry("k", 2), raw_entry("l", 3))
    failures = iter([Fate(1, arrives=0, error=DOWN)])
    scene.fate = lambda events: next(failures, Fate()) if events == [0] else Fate()

    await scene.run()

    assert scene.of_the_first_session() == [[0]]
    assert scene.arrived() == [0, 2, 3]


@pytest.mark.parametrize("fails", [True, False], ids=["failure", "change"])
@in_virtual_time
async def test_what_stands_behind_a_refused_entry(fails: bool) -> None:
    """Where a session ends while the letter of a refused entry is stored, the rest of its batch is not pushed by it."""
    scene = Scene(raw_entry("k", 0), raw_entry("k", 1), raw_entry("l", 2))
    failures = iter([Fate(1, arrives=0, error=DOWN)] if fails else [])

    def fate(events: list[int]) -> Fate:
        if 0 in events:
            return Fate(arrives=0, error=EntryRefused("no").at(0, 1))
        return next(failures, Fate()) if events == [2] else Fate()

    def storing() -> float:
        if not fails:
            scene.store.metadata["t"] = a_topic(to="other")
        return STORING_S

    scene.fate, scene.storing = fate, storing

    await scene.run()

    assert scene.of_the_first_session() == [[0, 1], [2]]
    assert sorted(scene.arrived()) == [1, 2]


@pytest.mark.guarantee("order-per-object")
@in_virtual_time
async def test_the_rest_of_a_batch_goes_first_in_a_session_that_ends_well() -> None:
    """Where a session is asked to end while the letter of a refused entry is stored, the rest of its batch goes next.

    What such a session has read it still delivers: the next batch of the lane would pass that rest, of the same key.
    """
    scene = Scene(*(raw_entry("k", each) for each in range(4)))
    scene.endpoint.batch_records = 2
    scene.fate = lambda events: Fate(arrives=0, error=EntryRefused("no").at(0, 1)) if 0 in events else Fate()
    worker = a_worker(scene.store, scene.endpoint)

    def storing() -> float:
        worker.end()
        return STORING_S

    scene.storing = storing

    async with running(worker) as run:
        await run

    assert scene.of_the_first_session() == [[0, 1], [1], [2, 3]]
    assert scene.arrived() == [1, 2, 3]
