"""The one state of a shard, a topic and a destination."""

from __future__ import annotations

import pytest

from remora.policy.delivery.retry import ShardFailure
from remora.policy.status.condition import (
    FULL,
    Condition,
    Facts,
    FailedSince,
    FailingShard,
    State,
    cause_of,
    of_shard,
    outages,
    place_of,
    state_of_failure,
    together,
)

REFUSED = FailedSince(ShardFailure.CONFIGURATION, "no such topic", 273.0)
AWAY = FailedSince(ShardFailure.TRANSIENT, "no answer", 61.0)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(step=State.STARTING, step_s=1.0), Condition(State.STARTING, "", 1.0)),
        (Facts(step=State.DELIVERING, step_s=9.0), Condition(State.DELIVERING, "", 9.0)),
        (Facts(step=State.DELIVERING, step_s=9.0, is_full=True), Condition(State.DELIVERING, FULL, 9.0)),
        (Facts(step=State.DELIVERING, step_s=9.0, empty_s=0.1), Condition(State.IDLE, "", 0.1)),
        (Facts(step=State.WAITING, why="waits for t", step_s=9.0), Condition(State.WAITING, "waits for t", 9.0)),
        (Facts(step=State.IDLE, step_s=9.0), Condition(State.IDLE, "", 9.0)),
        (Facts(step=State.DELIVERING, shaped=(5.0, "waits for a")), Condition(State.SHAPED, "waits for a", 5.0)),
        (
            Facts(step=State.STOPPED, why="no such topic", step_s=0.4, failing=REFUSED, next_attempt_s=4.6),
            Condition(State.STOPPED, "no such topic", 273.0, 4.6),
        ),
        (
            Facts(step=State.DELIVERING, step_s=0.1, failing=REFUSED, shaped=(5.0, "waits for a")),
            Condition(State.STOPPED, "no such topic", 273.0, None, is_trying=True),
        ),
        (
            Facts(step=State.STARTING, step_s=0.1, failing=AWAY),
            Condition(State.RETRYING, "no answer", 61.0, None, is_trying=True),
        ),
        (
            Facts(step=State.QUARANTINED, why="another one tries", step_s=2.0, failing=AWAY),
            Condition(State.QUARANTINED, "another one tries", 61.0),
        ),
        (
            Facts(step=State.QUARANTINED, why="another one tries", step_s=2.0),
            Condition(State.QUARANTINED, "another one tries", 2.0),
        ),
        (
            Facts(step=State.HELD, why="held until noon", step_s=2.0, failing=AWAY, next_attempt_s=3.0),
            Condition(State.HELD, "held until noon", 2.0, 3.0),
        ),
        (
            Facts(step=State.FINISHING, step_s=2.0, failing=AWAY, empty_s=1.0),
            Condition(State.FINISHING, "", 2.0),
        ),
        (
            Facts(step=State.RETRYING, why="too early", next_attempt_s=3.0),
            Condition(State.RETRYING, "too early", 0.0, 3.0),
        ),
    ],
)  # fmt: skip
def test_a_shard_is_in_one_state(facts: Facts, expected: Condition) -> None:
    """What fails fails since its first failure, also while it is tried; what is empty is idle at once."""
    assert of_shard(facts) == expected


def test_a_failure_stops_a_topic_where_an_operator_must_act() -> None:
    """Configuration and damage stop; all else is retried."""
    stops = {kind for kind in ShardFailure if state_of_failure(kind) is State.STOPPED}

    assert stops == {ShardFailure.CONFIGURATION, ShardFailure.DAMAGED}


def test_a_topic_does_as_the_worst_of_its_queues() -> None:
    """It has failed for as long as that of them that failed first, and is tried when the first of them is."""
    well = Condition(State.DELIVERING, "", 1000.0)
    early = Condition(State.STOPPED, "a", 273.0, 4.0)
    late = Condition(State.STOPPED, "b", 12.0, 1.0)

    assert together([]) is None
    assert together([well, Condition(State.IDLE, "", 2000.0)]) == well
    assert together([well, late, early, Condition(State.RETRYING, "c", 500.0, 0.5)]) == Condition(
        State.STOPPED, "a", 273.0, 1.0
    )


def test_a_topic_of_which_one_queue_is_tried_is_being_tried() -> None:
    """Then it says so, and names no next attempt."""
    found = together([Condition(State.STOPPED, "a", 273.0, 4.0), Condition(State.STOPPED, "a", 9.0, is_trying=True)])

    assert found == Condition(State.STOPPED, "a", 273.0, None, is_trying=True)
    assert found.text == "stopped, trying now"
    assert Condition(State.STOPPED).text == "stopped"


@pytest.mark.parametrize(
    ("endpoint", "reason", "place", "cause"),
    [
        ("kafka://b:9092", "b:9092: Connection refused", "b:9092", "Connection refused"),
        ("kafka://b:9092", "topic t1 at b:9092: no answer in time", "b:9092", "no answer in time"),
        ("kafka://a:1,b:2", "topic t1 at a:1,b:2: no answer", "a:1,b:2", "no answer"),
        ("amqp://b:5672", "exchange e at b:5672: there is no such exchange", "b:5672", "there is no such exchange"),
        ("nats://b:4222", "stream s at b:4222: there is no such stream", "b:4222", "there is no such stream"),
        ("http://h:80/a/secret", "http://h:80: it answers with 503", "h:80", "it answers with 503"),
        ("", "its metadata are unknown", "", "its metadata are unknown"),
    ],
)  # fmt: skip
def test_topics_of_a_destination_share_a_cause(endpoint: str, reason: str, place: str, cause: str) -> None:
    """A cause names neither topic nor host, and a place no path."""
    assert place_of(endpoint) == place
    assert cause_of(reason, place) == cause


def test_three_hundred_topics_behind_one_broker_are_one_outage() -> None:
    """They are counted with what waits in them, and the longest of them says since when."""
    shards = [
        FailingShard(
            f"t{at}", "kafka://b:9092", "", Condition(State.RETRYING, "b:9092: Connection refused", float(at), 9.0)
        )
        for at in range(300)
    ]  # fmt: skip
    other = FailingShard("u", "kafka://b:9092", "topic u at b:9092: unknown", Condition(State.STOPPED, "x", 1.0))

    first, second = outages([other, *shards, *shards], {f"t{at}": 2 for at in range(300)} | {"u": None})

    assert (first.place, first.cause, len(first.topics), first.entries) == ("b:9092", "Connection refused", 300, 600)
    assert first.condition == Condition(State.RETRYING, "b:9092: Connection refused", 299.0, 9.0)
    assert first.named == "t0, t1, t10, t100, t101, t102, t103, t104, t105, t106 and 290 more"
    assert (second.cause, second.topics, second.entries) == ("unknown", ["u"], None)
    assert [first.is_at_least, second.is_at_least] == [False, False]


def test_a_topic_that_fails_is_not_said_to_be_empty() -> None:
    """A count of 0 is from before its entries came, and says nothing of how many there are."""
    shard = FailingShard("t", "kafka://b:9092", "", Condition(State.RETRYING, "away", 1.0))

    (found,) = outages([shard], {"t": 0})

    assert found.entries is None


@pytest.mark.parametrize(("other", "is_at_least"), [(None, True), (0, True), (3, False)])
def test_a_sum_over_topics_that_are_partly_unknown_is_a_lower_bound(other: int | None, is_at_least: bool) -> None:
    """Where the number of one topic's entries is not known, at least those of the others wait."""
    away = Condition(State.RETRYING, "away", 1.0)
    shards = [FailingShard(topic, "kafka://b:9092", "", away) for topic in ("t", "u")]

    (found,) = outages(shards, {"t": 2, "u": other})

    assert (found.entries, found.is_at_least) == (2 + (other or 0), is_at_least)
