"""What the workers of a host say together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remora.metrics.stages import StageRow
from remora.policy.status.stages import EventStage, StageCounts
from remora.process.pipe import Heartbeat
from remora.supervisor.merged import WorkerAnswer, merged_line, merged_status


def shard(queue: str, state: str = "idle", **more: Any) -> dict[str, Any]:
    """What a worker says of a queue; the topic's name is the queue's."""
    return {
        "queue": queue, "topic": queue, "endpoint": "kafka://b:9092", "state": state, "reason": "",
        "since_seconds": 1.0, "next_attempt_seconds": None, "trying": False, "last_failure": None, **more,
    }  # fmt: skip


def status(*queues: str, left: list[dict[str, Any]] | None = None, connected: bool = True) -> dict[str, Any]:
    """What a worker says that holds these queues."""
    return {
        "ready": True,
        "reasons": [],
        "cookie": "c",
        "store": {"description": "d", "connected": connected, "state": "s" if connected else "away", "damaged": ["x"]},
        "ingest": "unix:/i",
        "in_flight_bytes": 10,
        "shards": [shard(queue) for queue in queues],
        "topics": [],
        "stages": [],
        "buckets": [],
        "members": [],
        "left": left or [],
    }


def test_each_shard_names_its_worker() -> None:
    """The shards of all workers stand in one list, by queue, and bytes are added up."""
    found = merged_status(
        [WorkerAnswer(1, 11, "remora/h/b/1", 1, status("b")), WorkerAnswer(2, 12, "remora/h/b/2", 1, status("a"))]
    )

    assert found["shards"] == [shard("a", worker=2), shard("b", worker=1)]
    assert found["in_flight_bytes"] == 20
    assert [(each["pid"], each["shards"], each["answers"]) for each in found["workers"]] == [
        (11, 1, True),
        (12, 1, True),
    ]
    assert found["store"]["damaged"] == ["x"]


def test_a_stage_that_is_slow_on_all_workers_together_is_named() -> None:
    """The times of all workers count as one; the sentence about a slow stage stands beside them."""

    def pushes(seconds: float) -> dict[str, Any]:
        fast, slow = StageCounts((0, 0, 0, 0, 0, 9), 9 * 0.002), StageCounts((0,) * 10 + (9,), 9 * seconds)
        row = StageRow(stage=EventStage.PUSH, at="kafka", now=slow, before=fast, before_seconds=3600.0)
        return {**status(), "stages": [msgspec.to_builtins(row)]}

    found = merged_status([WorkerAnswer(1, 11, "c", 0, pushes(0.06)), WorkerAnswer(2, 12, "d", 0, pushes(0.08))])

    (stage,) = found["stages"]
    assert (stage["stage"], stage["slow"], sum(stage["now"][0])) == ("push", True, 18)
    assert [each.split(", and")[0] for each in found["slow"]] == ["push (kafka) takes 70 ms"]


def test_a_silent_worker_is_named_with_what_it_last_held() -> None:
    """A worker that gives no status is not passed over."""
    found = merged_status([WorkerAnswer(1, 11, "c", 7, None), WorkerAnswer(2, 12, "d", 1, status("a"))])

    assert found["workers"][0] == {
        "number": 1, "pid": 11, "cookie": "c", "answers": False, "ready": False,
        "reasons": ["it does not answer"], "shards": 7, "in_flight_bytes": 0,
    }  # fmt: skip


def test_what_only_workers_know_is_not_known_where_none_answers() -> None:
    """Where events are taken in, and how many dead letters are stored, is None and not off or 0."""
    silent, answers = WorkerAnswer(1, 11, "c", 7, None), WorkerAnswer(2, 12, "d", 0, status())

    assert [(found["ingest"], found["dead_letters"]) for found in (merged_status([silent]), merged_status([]))] == [
        (None, None),
        (None, None),
    ]
    found = merged_status([silent, answers])
    assert (found["ingest"], found["dead_letters"]) == ("unix:/i", 0)


def test_what_one_worker_holds_no_other_leaves() -> None:
    """A queue is left by a host when none of its workers holds it, and the best reason is given once."""
    other, own = (
        {"queue": "a", "reason": "held", "owner": "x", "waiting": False},
        {"queue": "a", "reason": "evicted", "owner": "", "waiting": False},
    )
    held = {"queue": "b", "reason": "held", "owner": "remora/h/b/2", "waiting": False}

    found = merged_status(
        [WorkerAnswer(1, 11, "c", 0, status(left=[other, held])), WorkerAnswer(2, 12, "d", 1, status("b", left=[own]))]
    )

    assert found["left"] == [own]


def test_the_store_is_as_good_as_the_worst_worker_sees_it() -> None:
    """One worker that cannot reach the store is enough to say so."""
    found = merged_status([WorkerAnswer(1, 11, "c", 0, status()), WorkerAnswer(2, 12, "d", 0, status(connected=False))])

    assert (found["store"]["connected"], found["store"]["state"]) == (False, "away")
    assert merged_status([])["store"]["connected"] is False


def test_the_line_counts_over_all_workers() -> None:
    """Workers, store and shards stand in one line."""

    def beat(store: str) -> Heartbeat:
        return Heartbeat(is_alive=True, store=store, held_shards=3, failing_shards=1)

    assert merged_line([beat(""), beat("")], 2) == "2 of 2 workers; store connected; 6 shards held, 2 of them failing"
    assert "store away: no answer" in merged_line([beat(""), beat("no answer")], 2)
    assert "starting" in merged_line([], 2)


def test_a_queue_that_a_worker_leaves_to_others_says_what_those_found() -> None:
    """That one worker waits for another to take a queue is told only while no worker knows more."""
    waits = {"queue": "a", "reason": "left to workers that hold fewer", "owner": "", "waiting": True}
    refused = {"queue": "a", "reason": "no permission", "owner": "", "waiting": False}
    tried = {"queue": "a", "reason": "no permission", "owner": "", "waiting": True}
    taken = {"queue": "a", "reason": "held", "owner": "x", "waiting": False}

    for known, lefts in [
        (waits, [waits, waits]),
        (refused, [waits, refused]),
        (refused, [refused, waits]),
        (tried, [waits, tried]),
        (tried, [tried, waits]),
        (taken, [waits, taken]),
        (refused, [taken, refused, waits]),
    ]:
        answers = [WorkerAnswer(number, 11, "c", 0, status(left=[each])) for number, each in enumerate(lefts)]
        assert merged_status(answers)["left"] == [known]


def test_topics_and_destinations_have_the_state_of_all_their_queues() -> None:
    """A topic with queues in two workers has one state, and its destination one line with all of its topics."""
    refused = {"kind": "transient", "reason": "b:9092: Connection refused", "age_seconds": 0.4}
    failing = {"reason": refused["reason"], "last_failure": refused}
    first, second = status(), status()
    first["shards"] = [
        shard("t", "stopped", **failing, since_seconds=273.0, next_attempt_seconds=4.0),
        shard("u", "stopped", **failing, since_seconds=9.0, next_attempt_seconds=1.0),
    ]
    second["shards"] = [shard("t.1", "stopped", **failing, topic="t", since_seconds=200.0, trying=True), shard("v")]
    first["topics"], second["topics"] = [{"topic": "t", "backlog_entries": 2}], [{"topic": "t", "backlog_entries": 3}]

    found = merged_status([WorkerAnswer(1, 11, "c", 2, first), WorkerAnswer(2, 12, "d", 2, second)])

    names = ("topic", "state_text", "since_seconds", "next_attempt_seconds", "queues")
    assert [tuple(each[name] for name in names) for each in found["topics"]] == [
        ("t", "stopped, trying now", 273.0, None, 2),
        ("u", "stopped", 9.0, 1.0, 1),
        ("v", "idle", 1.0, None, 1),
    ]
    [destination] = found["destinations"]
    shown = ("destination", "cause", "state_text", "since_seconds", "topics", "named", "entries")
    assert tuple(destination[name] for name in shown) == (
        "b:9092", "Connection refused", "stopped, trying now", 273.0, 2, "t, u", 5,
    )  # fmt: skip


def test_the_host_is_named_with_its_id() -> None:
    """A status says on which host it is, by the name that people know and by the id that stands in its locks."""
    said = status() | {"hostname": "db7"}

    assert merged_status([WorkerAnswer(1, 11, "remora/0123456789abcdef/b/1", 0, said)])["host"] == "db7 (01234567)"
    assert merged_status([WorkerAnswer(1, 11, "remora/db7/b/1", 0, said)])["host"] == "db7"
    assert merged_status([])["host"] == ""


@pytest.mark.parametrize(
    ("state", "counted", "shown"), [("retrying", 0, None), ("retrying", 7, 7), ("idle", 0, 0), ("delivering", 0, 0)]
)
def test_entries_of_a_failing_topic_are_known_or_unknown_in_both_lists(
    state: str, counted: int, shown: int | None
) -> None:
    """A topic that fails has entries: where none were counted yet, its row and its destination's say that the number is
    not known."""
    said = status() | {
        "shards": [shard("t", state, reason="b:9092: Connection refused")],
        "topics": [{"topic": "t", "backlog_entries": counted}],
    }

    found = merged_status([WorkerAnswer(1, 11, "remora/h/b/1", 1, said)])

    assert [each["backlog_entries"] for each in found["topics"]] == [shown]
    assert [each["entries"] for each in found["destinations"]] == ([shown] if state == "retrying" else [])
