"""When a refused record becomes a dead letter, and when its topic stops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.delivery.refusals import (
    EDGE_S,
    MOST_KNOWN,
    MOST_REFUSED,
    POISON_ANSWERS,
    POISON_APART_S,
    TAKEN_S,
    Finding,
    Refusals,
)

ASK, PARK, STOP = Finding.ASK_AGAIN, Finding.PARK, Finding.STOP

Step = tuple[float, str]
"""Seconds since the step before, and whose refusal it is: a record's, or "ack"."""


def played(steps: list[Step], refusals: Refusals | None = None) -> list[Finding]:
    """What each refusal proved."""
    refusals, now, found = refusals or Refusals(), 1000.0, []
    for seconds, what in steps:
        now += seconds
        if what == "ack":
            refusals.took(now)
        else:
            found.append(refusals.refused(what, now))
    return found


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        pytest.param([(0, "a"), (1, "a"), (0, "ack"), (1, "a")], [ASK, ASK, PARK], id="another was taken in between"),
        pytest.param([(0, "a"), (0, "ack"), (5, "a"), (300, "a")], [ASK, ASK, PARK], id="pushes far apart"),
        pytest.param([(0, "a"), (4.5, "a"), (0, "ack"), (8, "a")], [ASK, ASK, PARK], id="slow answers"),
        pytest.param([(0, "a"), (1, "a"), (1, "a")], [ASK, ASK, STOP], id="nothing was ever taken"),
        pytest.param([(0, "ack"), (9, "a"), (1, "a"), (1, "a")], [ASK, ASK, PARK], id="one was taken before"),
        pytest.param(
            [(0, "ack"), (9, "a"), (0, "b"), (1, "a"), (0, "b"), (1, "a"), (0, "b")],
            [ASK, ASK, ASK, ASK, PARK, PARK],
            id="two in a quiet topic",
        ),
        pytest.param([(0, "ack"), (TAKEN_S, "a"), (9, "a"), (9, "a")], [ASK, ASK, PARK], id="by the first refusal"),
        pytest.param([(0, "ack"), (TAKEN_S + 1, "a"), (1, "a"), (1, "a")], [ASK, ASK, STOP], id="taken too long ago"),
        pytest.param([(0, "a"), (0.9, "a"), (0.9, "a"), (0.9, "a")], [ASK] * 4, id="not far enough apart"),
        pytest.param([(0, "ack"), (0, "a"), (0.5, "a"), (0.5, "a"), (1, "a")], [ASK] * 3 + [PARK], id="some too soon"),
        pytest.param(
            [(0, "a"), (1, "a"), (1, "a"), (5, "ack"), (0, "a"), (1, "a"), (1, "a")],
            [ASK, ASK, STOP, ASK, ASK, PARK],
            id="begun anew after a stop",
        ),
        pytest.param(
            [(0, "b"), (0, "a"), (1, "a"), (1, "a"), (5, "ack"), (0, "b"), (1, "b")],
            [ASK, ASK, ASK, STOP, ASK, ASK],
            id="what was refused with everything says nothing of another record",
        ),
    ],
)
def test_findings(steps: list[Step], found: list[Finding]) -> None:
    """Three refusals a second apart make a letter where the receiver takes others, and else stop the topic."""
    assert played(steps) == found


@pytest.mark.parametrize(("records", "last"), [(MOST_REFUSED, PARK), (MOST_REFUSED + 1, STOP)])
def test_a_bad_deploy_makes_few_letters(records: int, last: Finding) -> None:
    """Where many are refused and none is taken, what was taken before makes no letters of them."""
    each = [(0.0, f"r{number}") for number in range(records)]
    again: list[Step] = [(1.0, "r0"), *each[1:], (1.0, "r0")]

    assert played([(0, "ack"), *each, *again])[-1] is last


def test_letters_of_a_topic_that_takes_nothing_any_more_are_few() -> None:
    """However slowly a receiver refuses one record after the other, no more than so many have letters until an ack."""
    refusals = Refusals()
    steps: list[Step] = [(0, "ack")]
    for number in range(100):
        steps += [(1, f"r{number}")] * POISON_ANSWERS

    assert played(steps, refusals).count(PARK) == MOST_REFUSED
    assert played([(0, "ack"), (0, "r99"), (1, "r99"), (1, "r99")], refusals)[-1] is PARK


def test_what_is_done_begins_anew() -> None:
    """Nothing is known of a record once it is done, or once so many others were refused after it."""
    refusals = Refusals()
    played([(0, "ack"), (0, "a"), (1, "a"), (0, "b"), (1, "b")], refusals)
    refusals.refused_together("c", 4)
    refusals.forget(["a", "c"])

    assert (refusals.most_together("a"), refusals.most_together("b"), refusals.most_together("c")) == (None, 1, None)
    for number in range(MOST_KNOWN):
        refusals.refused(number, 2000.0)
    assert refusals.most_together("b") is None


@pytest.mark.parametrize(("records", "then"), [(100, 50), (3, 1), (2, 1)])
def test_records_that_were_refused_together(records: int, then: int) -> None:
    """A request that was refused is halved from its first record on, and one that was refused alone stays alone."""
    refusals = Refusals()
    refusals.refused_together("a", records)

    assert refusals.most_together("a") == then
    refusals.refused("a", 1000.0)
    assert refusals.most_together("a") == 1


@given(
    st.lists(
        st.tuples(st.floats(0, 700, allow_nan=False), st.sampled_from(["ack", "a", "b", *map(str, range(20))])),
        max_size=80,
    )
)
def test_no_letter_without_evidence(steps: list[Step]) -> None:
    """Whatever is refused and taken when, a letter has three refusals a second apart, and something that was taken."""
    refusals, now = Refusals(), 0.0
    refused: dict[str, list[float]] = {}
    taken: list[float] = []
    for seconds, what in steps:
        now += seconds
        if what == "ack":
            refusals.took(now)
            taken.append(now)
            continue
        refused.setdefault(what, []).append(now)
        if refusals.refused(what, now) is PARK:
            times = refused.pop(what)
            assert len(times) >= POISON_ANSWERS
            assert now - times[0] >= (POISON_ANSWERS - 1) * (POISON_APART_S - EDGE_S)
            assert any(times[0] - TAKEN_S <= each for each in taken)
