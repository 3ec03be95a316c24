"""What is added up of what waits in a topic's queues."""

from __future__ import annotations

import asyncio

import pytest

from devkit.clock import in_virtual_time
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import QUICK, Turns, a_topic, a_worker, running
from remora.bounded import PORTION
from remora.engine.backlog import Backlog
from remora.metrics import Telemetry
from remora.model.record import CAUSES
from remora.model.shard import QueueRoom, Shard, ShardStats
from remora.policy.delivery.retry import ShardFailure


def stats(entries: int, oldest_age_s: float | None) -> ShardStats:
    """A queue in which so many entries wait."""
    return ShardStats(Shard("t"), entries, True, entries * 100, 1 << 20, 0, 0, oldest_age_s, None)


@pytest.mark.parametrize(
    ("queues", "entries", "oldest_age_s"),
    [
        ([], 0, None),
        ([(0, None)], 0, None),
        ([(3, None)], 3, None),
        ([(3, 0.0)], 3, 0.0),
        ([(3, 5.0), (1, None), (2, 9.0)], 6, 9.0),
    ],
)
def test_the_age_is_that_of_the_oldest_entry_that_tells_it(
    queues: list[tuple[int, float | None]], entries: int, oldest_age_s: float | None
) -> None:
    """Where nothing waits, or no entry tells its age, none is said: 0 seconds would mean that nothing is late."""
    backlog = Backlog()
    for each in queues:
        backlog.add(stats(*each))

    assert (backlog.entries, backlog.oldest_age_s) == (entries, oldest_age_s)


@in_virtual_time
async def test_the_series_of_a_topic_begin_when_it_is_found() -> None:
    """A topic that comes later has counters at 0 within seconds, before its first event, until it goes; those of each
    kind of failure and each cause of a letter, too."""
    store, telemetry = FakeStore(tells=True), Telemetry()
    worker = a_worker(store, FakeEndpoint(), telemetry=telemetry)

    series: list[tuple[str, dict[str, str]]] = [
        ("remora_ingested_events_total", {}),
        ("remora_delivered_entries_total", {}),
        ("remora_event_age_seconds_count", {}),
        *(("remora_failures_total", {"kind": kind}) for kind in (*ShardFailure, "poison")),
        *(("remora_parked_entries_total", {"cause": cause}) for cause in CAUSES),
    ]

    def counted() -> set[float | None]:
        return {sample_value(telemetry.registry, name, {"topic": "late", **labels}) for name, labels in series}

    async with running(worker) as task:
        await asyncio.sleep(20)
        assert counted() == {None}
        store.make("late")
        store.metadata["late"] = a_topic("late")
        await asyncio.sleep(QUICK.discovery_interval_s + 3)

        assert counted() == {0.0}
        del store.queues["late"], store.metadata["late"]
        await asyncio.sleep(60)
        assert counted() == {None}
        task.cancel()


@pytest.mark.parametrize(
    ("told", "within_s"), [("topic_found", 10), ("backlog", 20), ("balances", 20), ("room_left", 20)]
)
@in_virtual_time
async def test_very_many_topics_are_shown_in_several_turns_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, told: str, within_s: float
) -> None:
    """The series of each topic begin once, and what is known of it is shown once. Heartbeats have their turn meanwhile:
    on a busy machine a worker would be taken for one that hangs."""
    store, telemetry, turns = FakeStore(tells=True), Telemetry(), Turns()
    for number in range(2 * PORTION + 1):
        store.make(f"t{number}")
        store.metadata[f"t{number}"] = a_topic(f"t{number}")
        store.rooms[f"t{number}"] = QueueRoom(100, 1, 0, 0)

    monkeypatch.setattr(telemetry, told, turns.count)

    async with running(a_worker(store, FakeEndpoint(), telemetry=telemetry)):
        await asyncio.sleep(within_s)

    assert sum(turns.counts) == 2 * PORTION + 1
    assert max(turns.counts) <= PORTION


@in_virtual_time
async def test_very_many_topics_are_forgotten_in_several_turns_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The series of each topic that is held no longer end once."""
    store, telemetry, turns = FakeStore(tells=True), Telemetry(), Turns()
    for number in range(2 * PORTION + 1):
        store.make(f"t{number}")
        store.metadata[f"t{number}"] = a_topic(f"t{number}")
    monkeypatch.setattr(telemetry, "forget_topic", turns.count)
    worker = a_worker(store, FakeEndpoint(), telemetry=telemetry)

    async with running(worker):
        await asyncio.sleep(20)
        worker.drain(True)
        await asyncio.sleep(20)

    assert sum(turns.counts) == 2 * PORTION + 1
    assert max(turns.counts) <= PORTION
