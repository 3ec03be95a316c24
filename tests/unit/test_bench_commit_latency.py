"""What the benchmark of commit latencies makes of its turns, and of what OSDs remember."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from devkit.bench.commit_latency import ALONE, HELD, NONE, PLAIN, PUT, SlowRow, SlowTurn, What, table, verdict
from devkit.bench.pictures import draw
from devkit.bench.slow_cluster import SYNCS_OF_A_COMMIT, next_sync_s, share_waited


def turn(asked_s: float, kind: str, queues: int, rate: float, work: str = PUT) -> SlowTurn:
    return SlowTurn(What(asked_s, work, kind, 64, queues), rate, 0.001, 0.002, 0.5, 1.0)


def row(turns: list[SlowTurn], queues: int, kind: str = HELD) -> SlowRow:
    (found,) = [each for each in table(turns) if (each.what.queues, each.what.kind) == (queues, kind)]
    return found


def puts(asked_s: float, none: float, one: float, many: float) -> list[SlowTurn]:
    """PUTs without a notification, with one held queue and with eleven."""
    return [turn(asked_s, NONE, 0, none), turn(asked_s, HELD, 1, one), turn(asked_s, HELD, 11, many)]


def operation(name: str, took_s: float, *waited_s: float) -> dict[str, Any]:
    """What an OSD remembers of one."""
    waits = [{"event": "waiting for rw locks", "duration": each} for each in waited_s]
    events = [{"event": "reached_pg", "duration": 0.1}, *waits, {"event": "done", "duration": took_s}]
    text = f"osd_op(client.4176.0:2482 2.7 2:e974059a:bench::{name}:head [call 2pc_queue.2pc_queue_reserve in=26b])"
    return {"description": text, "duration": took_s, "type_data": {"events": events}}


def test_a_rate_is_compared_with_one_queue_of_its_kind_and_with_no_queue() -> None:
    """The ratios are those of medians at the same latency, of the same work."""
    turns = [
        *puts(0.001, 500.0, 100.0, 300.0), turn(0.001, HELD, 11, 400.0), turn(0.001, HELD, 11, 200.0),
        turn(0.001, PLAIN, 1, 250.0), turn(0.002, HELD, 1, 10.0), turn(0.001, HELD, 1, 1000.0, ALONE),
    ]  # fmt: skip

    many = next(each for each in table(turns) if each.what == What(0.001, PUT, HELD, 64, 11))

    assert (many.rate, many.gain, many.of_ceiling) == (300.0, 3.0, 0.6)
    assert len(table(turns)) == 6


def test_what_has_no_ceiling_is_not_compared_with_one() -> None:
    """Where the work was not measured without queues, or not with one queue, the ratio is nan."""
    found = row([turn(0.001, HELD, 4, 10.0, ALONE)], 4)

    assert math.isnan(found.of_ceiling)
    assert math.isnan(found.gain)


def test_the_verdict_is_of_the_smallest_latency_that_leaves_room_for_it() -> None:
    """It is of the first latency at which PUT without notifications is three times PUT with one queue."""
    turns = [*puts(0.005, 400.0, 50.0, 390.0), *puts(0.002, 450.0, 150.0, 315.0), *puts(0.001, 450.0, 200.0, 210.0)]

    found = verdict(table(turns), HELD)

    assert found is not None
    assert (found.asked_s, found.ceiling, round(found.gain, 2), found.of_ceiling) == (0.002, 3.0, 2.1, 0.7)
    assert found.is_reached


@pytest.mark.parametrize(("many", "is_reached"), [(284.0, False), (286.0, False), (302.0, True)])
def test_both_goals_must_be_reached(many: float, is_reached: bool) -> None:
    """Eleven queues are at least 1.9 times one queue, and at least 0.67 of PUT without notifications."""
    found = verdict(table(puts(0.002, 450.0, 150.0, many)), HELD)

    assert found is not None
    assert found.is_reached is is_reached


def test_there_is_no_verdict_where_one_queue_is_fast_enough() -> None:
    """Where PUT with one queue is more than a third of PUT without notifications, nothing can be gained as wanted."""
    assert verdict(table(puts(0.001, 450.0, 151.0, 450.0)), HELD) is None
    assert verdict(table(puts(0.001, 450.0, 50.0, 450.0)), PLAIN) is None


@pytest.mark.parametrize(
    ("asked_s", "idle_s", "sync_s", "took_s", "wanted_s"),
    [
        (0.005, 0.001, 0.0, 0.001, 0.004 / SYNCS_OF_A_COMMIT),  # nothing is known yet
        (0.005, 0.001, 0.001, 0.003, 0.002),  # a write makes two syncs
        (0.005, 0.001, 0.002, 0.009, 0.001),
        (0.005, 0.001, 0.001, 0.001, 0.004 / SYNCS_OF_A_COMMIT),  # the machine was busy when nothing waited
        (0.001, 0.002, 0.0, 0.002, 0.0),
    ],
)
def test_a_sync_waits_for_as_long_as_makes_the_latency(
    asked_s: float, idle_s: float, sync_s: float, took_s: float, wanted_s: float
) -> None:
    """The wait is what is missing, divided by the syncs of one write; none where writes take as long by themselves."""
    assert next_sync_s(asked_s, idle_s, sync_s, took_s) == pytest.approx(wanted_s)


def test_the_share_of_waiting_is_that_of_operations_on_the_queues() -> None:
    """An operation may wait several times; those on other objects do not count, nor does another kind of waiting."""
    remembered = [
        operation("q", 4.0, 1.0, 2.0), operation("q.1", 4.0), operation("other", 50.0, 40.0),
        {"description": "osd_repop(client.1 q)", "duration": 9.0, "type_data": {"events": []}},
    ]  # fmt: skip

    assert share_waited(remembered, {"q", "q.1"}) == 3 / 8
    assert share_waited(remembered, {"unknown"}) == 0.0


def test_the_picture_has_what_was_measured(tmp_path: Path) -> None:
    """Kinds that a work was not measured with leave their place empty."""
    file = tmp_path / "latencies.svg"
    rows = [
        {"asked_s": each.what.asked_s, "work": each.what.work, "kind": each.what.kind, "queues": each.what.queues,
         "rate": each.rate}
        for each in table([*puts(0.001, 4.0, 1.0, 3.0), turn(0.001, PLAIN, 1, 9.0, ALONE)])
    ]  # fmt: skip

    draw("shards", {"latencies": [], "rows": rows}, file)

    assert "<svg" in file.read_text()
