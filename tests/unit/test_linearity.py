"""The checker of linearizability: it takes what can have happened, and refuses what cannot."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.verdicts.linearity import DATA, FILLED, TRIMMED, UNWRITTEN, Call, is_linearizable, judge, step
from devkit.verdicts.log_checker import Op, Stored

A, B = DATA + "a", DATA + "b"


def append(began: float, ended: float, data: str = "a", answer: str = "ok") -> Call:
    return Call("append", began, ended, answer, data)


def read(began: float, ended: float, state: str) -> Call:
    return Call("read", began, ended, state)


def fill(began: float, ended: float, answer: str = "ok") -> Call:
    return Call("fill", began, ended, answer)


GOOD = {
    "a read behind a write sees it": [append(0, 1), read(2, 3, A)],
    "a read beside a write sees it or not": [append(0, 9), read(1, 2, UNWRITTEN), read(3, 4, A)],
    "a write without an answer may land late": [append(0, inf, answer=""), read(1, 2, UNWRITTEN), read(3, 4, A)],
    "or never": [append(0, inf, answer=""), read(1, 2, UNWRITTEN), fill(3, 4), read(5, 6, FILLED)],
    "a fill of what is filled": [fill(0, 1), fill(2, 3)],
    "a fill that is late is refused": [append(0, 1), fill(2, 3, "taken"), read(4, 5, A)],
    "a trim ends all": [append(0, 1), Call("trim", 2, 3, "ok"), read(4, 5, TRIMMED), fill(6, 7, "trimmed")],
    "a trim without an answer may be late": [Call("trim", 0, inf), append(1, 2), read(3, 4, A), read(5, 6, TRIMMED)],
    "what is filled or trimmed is passed over": [fill(0, 1), Call("pass", 2, 3, "ok")],
}
BAD = {
    "a read that misses what was acknowledged": [append(0, 1), read(2, 3, UNWRITTEN)],
    "a read that goes back": [append(0, 9), read(1, 2, A), read(3, 4, UNWRITTEN)],
    "a read of what was never written": [read(0, 1, A)],
    "a read before the write began": [read(0, 1, A), append(2, 3)],
    "two writes of one position": [append(0, 1), append(2, 3, "b")],
    "two writes at once of one position": [append(0, 9), append(0, 9, "b")],
    "a write and a fill": [append(0, 1), fill(2, 3)],
    "a fill that is taken by nobody": [fill(0, 1, "taken")],
    "a late write over a fill": [append(0, inf, answer=""), fill(1, 2), read(3, 4, A)],
    "data behind a trim": [append(0, 1), Call("trim", 2, 3, "ok"), read(4, 5, A)],
    "trimmed, and nobody asked for that": [append(0, 1), read(2, 3, TRIMMED)],
    "data that a follower passed over": [append(0, 1), Call("pass", 2, 3, "ok")],
    "a hole that a follower passed over": [Call("pass", 0, 1, "ok")],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_can_have_happened_is_taken(name: str) -> None:
    """A history that one order of its calls explains is linearizable."""
    assert is_linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_have_happened_is_refused(name: str) -> None:
    """A history that no order of its calls explains is refused."""
    assert not is_linearizable(BAD[name])


def by_trying_all(calls: list[Call]) -> bool:
    """Linearizability by its definition: any order, of any subset of the calls without an answer."""
    known = [each for each in calls if each.ended < inf]
    unknown = [each for each in calls if each.ended == inf]
    for chosen in product([False, True], repeat=len(unknown)):
        taken = known + [each for each, takes in zip(unknown, chosen, strict=True) if takes]
        if any(explains(order) for order in permutations(taken)):
            return True
    return False


def explains(order: tuple[Call, ...]) -> bool:
    """Whether an order agrees with real time and explains every answer."""
    state: str | None = UNWRITTEN
    for n, call in enumerate(order):
        if state is None or any(later.ended < call.began for later in order[n + 1 :]):
            return False
        state = step(state, call)
    return state is not None


CALLS = st.builds(
    lambda kind, began, took, is_known: replace(
        kind, began=began, ended=began + took if is_known or kind.what == "read" else inf,
        answer=kind.answer if is_known or kind.what == "read" else "",
    ),
    st.sampled_from(
        [append(0, 0), append(0, 0, "b"), fill(0, 0), fill(0, 0, "taken"), Call("trim", 0, 0, "ok")]
        + [read(0, 0, each) for each in (A, B, UNWRITTEN, FILLED, TRIMMED)]
    ),
    st.integers(0, 9), st.integers(0, 5), st.booleans(),
)  # fmt: skip


@given(st.lists(CALLS, max_size=5))
def test_the_search_agrees_with_the_definition(calls: list[Call]) -> None:
    """For any few calls the search says what trying all orders says."""
    assert is_linearizable(calls) == by_trying_all(calls)


def op(what: str, began: float, ended: float | None, outcome: str = "ok", position: int = 0, data: str = "") -> Op:
    return Op("log", what, began, ended, outcome if ended is not None else "", position=position, data=data)


FINE = [
    op("append", 0, 1, position=1, data="a"),
    op("append", 2, 3, position=2, data="b"),
    op("tail", 4, 5, position=2),
]
STORED = Stored(1, 0, {1: "a", 2: "b"})


def kinds(ops: list[Op], stored: Stored = STORED) -> set[str]:
    """The kinds of findings."""
    return {each.kind for each in judge(ops, stored, 99.0)}


def test_a_log_without_a_fault_is_taken() -> None:
    """Appends in order, a tail, and an append without an answer that landed are well."""
    assert kinds(FINE) == set()
    assert kinds([*FINE, op("append", 5, None, data="c")], Stored(1, 0, {1: "a", 2: "b", 3: "c"})) == set()
    assert kinds([*FINE, op("append", 5, None, data="c")]) == set()
    assert kinds([*FINE, op("append", 5, 6, "failed", data="c")]) == set()


@pytest.mark.parametrize(
    ("ops", "stored", "kind"),
    [
        ([op("append", 0, 1, position=2, data="a"), op("append", 2, 3, position=1, data="b")], {}, "against real time"),
        ([*FINE, op("tail", 6, 7, position=1)], {}, "against real time"),
        ([*FINE, op("read", 6, 7, "data", 3, "a")], {3: "a"}, "landed twice"),
        (FINE, {3: "z"}, "nobody wrote"),
        ([*FINE, op("append", 4, 5, "failed", data="c")], {3: "c"}, "landed though it failed"),
        ([*FINE, op("append", 4, 5, position=4, data="d")], {4: "d"}, "a hole"),
        ([*FINE, op("append", 4, 5, position=3, data="c")], {}, "not linearizable"),
        ([*FINE, op("read", 6, 7, "unwritten", 2)], {}, "not linearizable"),
    ],
)  # fmt: skip
def test_a_log_with_a_fault_is_refused(ops: list[Op], stored: dict[int, str | None], kind: str) -> None:
    """Each kind of fault is found by its name."""
    assert kind in kinds(ops, Stored(1, 0, {1: "a", 2: "b"} | stored))
