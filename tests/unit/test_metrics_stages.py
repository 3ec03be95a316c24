"""The times of stages as metrics and in the status, and the collections of garbage."""

from __future__ import annotations

import gc
import weakref

import msgspec

from remora.metrics import Telemetry
from remora.metrics.stages import StageRow, slow_lines, stages_shown
from remora.policy.status.stages import EventStage
from remora.process.loop import GarbageWatch


class Node:
    """What may refer to itself."""

    itself: Node


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(name, labels)


def noted(push_s: float, before_s: float = 0.001) -> list[StageRow]:
    """What a worker says whose pushes took so long in the last seconds, and so long at first."""
    telemetry = Telemetry()
    for now in range(100):
        for _ in range(10):
            telemetry.stage_took(EventStage.PUSH, "kafka", push_s if now > 80 else before_s)
        telemetry.note_stages(float(now))
    return telemetry.stages()


def test_times_are_counted_in_cumulative_buckets() -> None:
    """Each time is in the bucket of its bound and in all above, and in count and sum."""
    telemetry = Telemetry()
    for seconds in (0.00004, 0.003, 0.003, 100.0):
        telemetry.stage_took(EventStage.LIST, "sqlite", seconds)

    found = {
        bound: value(telemetry, "remora_stage_seconds_bucket", stage="list", at="sqlite", le=bound)
        for bound in ("5e-05", "0.0025", "0.005", "60.0", "+Inf")
    }

    assert found == {"5e-05": 1, "0.0025": 1, "0.005": 3, "60.0": 3, "+Inf": 4}
    assert value(telemetry, "remora_stage_seconds_sum", stage="list", at="sqlite") == 100.00604


def test_depths_of_the_store_and_what_was_listed_in_vain_are_shown() -> None:
    """The gauges have the last depth of the writers and the OSDs; entries that were listed in vain are added up."""
    telemetry = Telemetry()
    for jobs, operations, entries in ((7, 0, 5), (2, 3, 4)):
        telemetry.store_depth(jobs, operations)
        telemetry.read_in_vain(entries)

    assert value(telemetry, "remora_store_queue_jobs") == 2
    assert value(telemetry, "remora_store_operations_in_flight") == 3
    assert value(telemetry, "remora_read_ahead_discarded_entries_total") == 9


def test_the_stages_of_all_workers_are_one() -> None:
    """The counts of two workers are added up, and one that is slow is named from what both say."""
    rows = msgspec.json.decode(msgspec.json.encode([*noted(0.06), *noted(0.06)]), type=list[StageRow])
    (shown,) = stages_shown(rows)

    assert shown["stage"] == "push"
    assert shown["slow"] is True
    assert shown["follows"] == []
    assert 0.05 < shown["p50_seconds"] < 0.1
    assert sum(shown["now"]["buckets"] if isinstance(shown["now"], dict) else shown["now"][0]) == 2 * 150


def test_lines_are_of_the_places_that_are_asked_for() -> None:
    """A slow endpoint of another kind is not named for a topic."""
    shown = stages_shown(noted(0.06))

    assert [each.split(" takes")[0] for each in slow_lines(shown)] == ["push (kafka)"]
    assert [each.split(" takes")[0] for each in slow_lines(shown, {"kafka", "sqlite"})] == ["push (kafka)"]
    assert slow_lines(shown, {"http", "sqlite"}) == []
    assert slow_lines(stages_shown(noted(0.001))) == []


def test_collections_of_garbage_are_counted_when_they_are_reported() -> None:
    """Each one is noted as it happens, and counted by its generation at the next report; none after the end."""
    telemetry = Telemetry()
    with GarbageWatch() as watch:
        gc.collect(2)
        assert value(telemetry, "remora_gc_seconds_count", generation="2") is None
        watch.report(telemetry)
    gc.collect(2)
    watch.report(telemetry)

    assert value(telemetry, "remora_gc_seconds_count", generation="2") == 1


def test_what_a_worker_holds_is_left_out_of_further_collections() -> None:
    """Once it holds a thousand shards, and then each time that it holds twice as many; what was garbage by then is
    collected first. A worker that gave most of them away begins anew."""
    watch, kept, is_left_out = GarbageWatch(), list[list[int]](), list[bool]()
    garbage = Node()
    garbage.itself = garbage
    is_gone = weakref.ref(garbage)
    del garbage

    try:
        for held in (999, 1000, 1999, 2000, 1000, 999, 1997, 1998):
            kept += ([] for _ in range(100))
            before = gc.get_freeze_count()
            watch.settle(held)
            is_left_out.append(gc.get_freeze_count() >= before + 100)
            assert (is_gone() is None) or held == 999
    finally:
        gc.unfreeze()
        gc.freeze()

    assert is_left_out == [False, True, False, True, False, False, False, True]
