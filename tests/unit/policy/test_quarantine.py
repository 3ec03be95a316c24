"""What counts for a destination, what for one topic there, and whom a quarantine holds back."""

from __future__ import annotations

import pytest

from remora.policy.ownership.quarantine import NOT_COUNTED, Quarantine, QuarantineOptions, topic_place

HOST = "http://h:80"
GOOD, BAD = topic_place(HOST, "good"), topic_place(HOST, "bad")
WINDOW_S = 60.0

Step = tuple[str, str, int]
"""A topic, what became of it (a kind of error, or "ok"), and how often."""


def play(quarantine: Quarantine, *steps: Step, now: float = 0.0) -> None:
    """Let these things happen, as a worker tells them."""
    for topic, what, count in steps:
        for _ in range(count):
            if what == "ok":
                quarantine.succeeded(HOST, now, topic)
                continue
            if what == "answered":
                quarantine.answered(HOST, now, topic)
            quarantine.error(HOST, what, topic=topic)


def entered(*steps: Step, options: QuarantineOptions | None = None) -> tuple[str, ...]:
    """What is in quarantine after a window of these things."""
    quarantine = Quarantine(options or QuarantineOptions())
    play(quarantine, *steps)
    return quarantine.close(WINDOW_S, {}).entered


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("timeout", HOST),
        ("unavailable", HOST),
        ("storage", HOST),
        ("connect", None),
        ("answered", BAD),
        *((kind, None) for kind in NOT_COUNTED),
    ],
)
def test_what_a_host_does_counts_for_it_and_what_a_path_answers_for_the_path(kind: str, name: str | None) -> None:
    """Each kind of error counts for the destination, for the topic alone, or for nobody."""
    assert entered(("bad", kind, 5)) == ((name,) if name else ())


def test_connections_that_fail_count_for_the_host_where_configured() -> None:
    """With `connect_errors` no connection is the host's fault, whichever topic wanted one."""
    options = QuarantineOptions(connect_errors=True)

    assert entered(("bad", "connect", 3), ("good", "connect", 2), options=options) == (HOST,)


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ([("bad", "timeout", 4)], ()),
        ([("bad", "timeout", 4), ("good", "timeout", 1)], (HOST,)),
        ([("bad", "answered", 4), ("good", "answered", 4)], ()),
        ([("bad", "answered", 5), ("good", "answered", 5)], (BAD, GOOD)),
        ([("bad", "timeout", 99), ("bad", "ok", 1)], ()),
        ([("bad", "answered", 99), ("bad", "ok", 1)], ()),
        ([("bad", "answered", 99), ("good", "ok", 1)], (BAD,)),
        ([("bad", "timeout", 9), ("bad", "ok", 1), ("bad", "timeout", 4)], ()),
        ([("bad", "timeout", 9), ("bad", "ok", 1), ("bad", "timeout", 5)], (HOST,)),
        ([("good", "timeout", 9), ("bad", "answered", 5)], (BAD, GOOD)),
        ([("good", "ok", 9), ("bad", "timeout", 9)], (HOST,)),
        ([("bad", "timeout", 4), ("good", "ok", 1), ("bad", "timeout", 4)], ()),
        ([("bad", "timeout", 5), ("good", "ok", 1), ("bad", "timeout", 99)], (BAD,)),
        ([("bad", "timeout", 5), ("good", "ok", 1), ("bad", "ok", 1), ("bad", "timeout", 4)], ()),
        ([("bad", "timeout", 5), ("good", "ok", 1), ("good", "timeout", 5)], (HOST, BAD)),
    ],
)
def test_a_window_is_bad_for_whom_it_was_bad_since_the_last_success(steps: list[Step], names: tuple[str, ...]) -> None:
    """A success clears what its window has counted for the destination and for its topic, and shows that the others
    which had failed by then fail for a reason of their own; any answer shows that the destination is there."""
    assert entered(*steps) == names


@pytest.mark.parametrize("early_release", [True, False])
def test_a_destination_holds_back_only_the_topics_that_it_has_failed(early_release: bool) -> None:
    """A topic that gets no answer waits for its turn from then on; one that was never failed uses the destination."""
    quarantine = Quarantine(QuarantineOptions(early_release=early_release))
    play(quarantine, ("bad", "timeout", 5))
    quarantine.close(WINDOW_S, {})

    assert quarantine.held_back_by(HOST, "bad", 70) == HOST
    assert quarantine.held_back_by(HOST, "good", 70) is None
    play(quarantine, ("good", "connect", 1), now=70)
    assert quarantine.held_back_by(HOST, "good", 70) == HOST
    play(quarantine, ("good", "ok", 1), now=70)
    assert quarantine.held_back_by(HOST, "bad", 70) == (None if early_release else HOST)


def test_a_topic_that_is_refused_is_held_back_alone() -> None:
    """What a path answers holds back no other path of its host, and its own success ends that, no other's."""
    quarantine = Quarantine(QuarantineOptions())
    play(quarantine, ("bad", "answered", 5))
    quarantine.close(WINDOW_S, {})

    assert [quarantine.held_back_by(HOST, each, 70) for each in ("bad", "good")] == [BAD, None]
    assert not quarantine.succeeded(HOST, 70, "good")
    assert quarantine.succeeded(HOST, 70, "bad")
    assert quarantine.held_back_by(HOST, "bad", 70) is None


def test_an_answer_ends_the_quarantine_of_its_host() -> None:
    """A host that answers one path with a refusal is there: its quarantine is over, and the path's may begin."""
    quarantine = Quarantine(QuarantineOptions())
    play(quarantine, ("bad", "timeout", 5))
    quarantine.close(WINDOW_S, {})

    assert quarantine.answered(HOST, 70, "bad")
    play(quarantine, ("bad", "answered", 5), now=70)
    assert quarantine.close(120, {}).entered == (BAD,)
    assert not quarantine.is_quarantined(HOST, 120)


def test_a_topic_in_quarantine_counts_for_nobody_else() -> None:
    """A topic that fails for a reason of its own, and tries again now and then, never has its host quarantined."""
    quarantine = Quarantine(QuarantineOptions())
    play(quarantine, ("bad", "timeout", 5), ("good", "ok", 1))
    quarantine.close(WINDOW_S, {})
    play(quarantine, ("bad", "timeout", 99), now=70)

    assert quarantine.close(120, {}).entered == ()
    assert list(quarantine.until(120)) == [BAD]


@pytest.mark.parametrize("draw", [0.29, 0.3])
def test_a_worker_quarantines_by_its_draw(draw: float) -> None:
    """A topic's bad window is drawn for as a destination's is: below the ratio it enters."""
    quarantine = Quarantine(QuarantineOptions(ratio=0.3))
    play(quarantine, ("bad", "answered", 5))

    closed = quarantine.close(WINDOW_S, {BAD: draw})

    assert (closed.entered, closed.skipped) == (((BAD,), ()) if draw < 0.3 else ((), (BAD,)))


def test_a_release_names_a_destination_with_its_topics_or_one_topic() -> None:
    """By the name of a host all its quarantines end, by that of a topic this one, and no other host's."""
    quarantine = Quarantine(QuarantineOptions())
    play(quarantine, ("bad", "answered", 5), ("good", "answered", 5))
    quarantine.error(f"{HOST}80", "timeout", 5, "other")
    quarantine.close(WINDOW_S, {})

    assert quarantine.release(GOOD) == 1
    assert quarantine.release(HOST) == 1
    assert list(quarantine.until(70)) == [f"{HOST}80"]


def test_what_no_queue_of_a_worker_uses_is_forgotten_later_each_time() -> None:
    """A destination is forgotten a window after its quarantine began, then after two, then four, and at the latest when
    its time is over; a success makes it one again."""
    quarantine, now, lasted = Quarantine(QuarantineOptions(time_s=600)), 0.0, []
    for _ in range(6):
        play(quarantine, ("bad", "timeout", 5), now=now)
        began = now = now + WINDOW_S
        quarantine.close(now, {})
        assert quarantine.forget([HOST, BAD], WINDOW_S, now + 1) == []
        while quarantine.is_quarantined(HOST, now):
            now += WINDOW_S
            quarantine.forget([], WINDOW_S, now)
        lasted.append((now - began) / WINDOW_S)

    assert lasted == [1, 2, 4, 8, 10, 10]
    play(quarantine, ("bad", "ok", 1), ("bad", "timeout", 5), now=now)
    quarantine.close(now, {})
    assert quarantine.forget([], WINDOW_S, now + WINDOW_S) == [HOST]


def test_a_topic_without_queues_is_forgotten_at_once() -> None:
    """A topic's quarantine moves no queue, so nothing is handed round when it is forgotten."""
    quarantine = Quarantine(QuarantineOptions())
    play(quarantine, ("bad", "answered", 5))
    quarantine.close(WINDOW_S, {})

    assert quarantine.forget([HOST], WINDOW_S, 61) == [BAD]
