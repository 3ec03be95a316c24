"""What is counted of each topic, as the status shows it."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from remora.metrics import Telemetry
from remora.metrics.figures import LastFailure, RoomFigures, TopicFigures, merged_figures
from remora.metrics.series import RoomLeft
from remora.model.ledger import Balance, Tally
from remora.model.shard import Shard


def test_a_topics_figures_are_those_of_its_series() -> None:
    """What was delivered, given up and taken in, what waits, the ledger, and the last failure with its age."""
    now = 100.0
    telemetry = Telemetry(clock=lambda: now)
    telemetry.delivered("orders", 3, 300, [1, 2, 3], 4)
    telemetry.dead_lettered("orders", "orders.1", "7", "expired", "too old")
    telemetry.ingested("orders", 5, 500, 0)
    telemetry.backlog("orders", 2, True, 200, 1.5)
    telemetry.balances("orders", [Balance(Shard("orders"), 6, 2, Tally(delivered=3, expired=1))])
    telemetry.failed("orders", "transient", "refused")
    telemetry.recovered("orders")
    now = 107.0

    assert telemetry.topics() == [
        TopicFigures(
            topic="orders",
            delivered_entries=3,
            parked_entries=1,
            ingested_events=5,
            backlog_entries=2,
            backlog_bytes=200,
            oldest_age_seconds=1.5,
            ledger={
                "committed": 6, "pending": 2, "unaccounted": 0,
                "delivered": 3, "dead_lettered": 0, "expired": 1, "dropped": 0, "removed_elsewhere": 0,
                "exported": 0,
            },
            last_failure=LastFailure(kind="transient", reason="refused", age_seconds=7.0),
        )
    ]  # fmt: skip


def test_a_topics_room_is_that_of_its_worst_queue() -> None:
    """The room of a topic stands with its other figures; of several workers' queues the worst counts in each."""
    telemetry = Telemetry()
    telemetry.balances("orders", [Balance(Shard("orders"), 6, 2, Tally(delivered=4))])
    telemetry.room_left("orders", RoomLeft(90_000, 100_000, 1_000, math.inf))
    telemetry.balances("other worker", [Balance(Shard("o"), 1, 1, Tally())])
    telemetry.room_left("other worker", RoomLeft(1_000, 100_000, 99_000, 60.0))

    calm, leaky = telemetry.topics()
    assert calm.room == RoomFigures(
        room_bytes=90_000, capacity_bytes=100_000, leaked_bytes=1_000, seconds_until_full=None
    )
    assert leaky.room is not None
    both = merged_figures([calm, msgspec.structs.replace(leaky, topic="orders")])[0].room
    assert both == leaky.room
    assert (leaky.room.leaks, leaky.room.advice) == (True, "full by a leak of 0.1 MB of Ceph < 19.2.4")

    telemetry.forget_topic("orders")
    assert [each.topic for each in telemetry.topics()] == ["other worker"]


def test_topics_beyond_the_limit_are_one_row() -> None:
    """Those that share a label in the metrics share a row, and a topic that is gone has none."""
    telemetry = Telemetry(metric_topics=1)
    for topic in ("first", "second", "third"):
        telemetry.delivered(topic, 1, 1, [1], 2)
        telemetry.failed(topic, "transient", "refused")

    rows = telemetry.topics()
    assert [(each.topic, each.delivered_entries) for each in rows] == [("first", 1), ("other", 2)]

    telemetry.forget_topic("first")
    assert [each.topic for each in telemetry.topics()] == ["other"]


def test_the_rows_of_workers_are_added_up() -> None:
    """Numbers add up, the oldest event and the latest failure count, and what no worker knows stays unknown."""
    early, late = (
        LastFailure(kind="transient", reason=each, age_seconds=age) for each, age in (("a", 9.0), ("b", 2.0))
    )
    rows = [
        TopicFigures(topic="t", delivered_entries=1, backlog_entries=4, oldest_age_seconds=3.0, last_failure=early),
        TopicFigures(topic="s", parked_entries=1),
        TopicFigures(
            topic="t", delivered_entries=2, backlog_entries=5, backlog_exact=False, ledger={"pending": 1},
            last_failure=late,
        ),
        TopicFigures(topic="t", ledger={"pending": 2}),
    ]  # fmt: skip

    assert merged_figures(rows) == [
        TopicFigures(topic="s", parked_entries=1),
        TopicFigures(
            topic="t", delivered_entries=3, backlog_entries=9, backlog_exact=False, oldest_age_seconds=3.0,
            ledger={"pending": 3}, last_failure=late,
        ),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.none() | st.floats(0, 9)), max_size=9))
def test_the_order_of_workers_does_not_matter(said: list[tuple[str, int, float | None]]) -> None:
    """The merged rows are the same whichever worker answers first."""
    rows = [TopicFigures(topic=topic, delivered_entries=count, oldest_age_seconds=age) for topic, count, age in said]

    assert merged_figures(rows) == merged_figures(reversed(rows))
