"""The checker of sequencers' chaos runs finds each kind of fault in a made-up history, and none in a clean one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devkit.verdicts.log_checker import KINDS, Op, Run, Stored, Strike, judge, ops_of

LOG, IDS = "log", "ids"


def given(position: int, began: float, epoch: int = 1, log: str = LOG, server: str = "a") -> Op:
    return Op(log, "next", began, began + 0.1, "ok", epoch, position, server=server)


def put(position: int, began: float, epoch: int = 1, outcome: str = "ok") -> Op:
    return Op(LOG, "append", began, began + 0.1, outcome, epoch, position, data=f"{epoch}.{position}")


def fill(position: int, began: float, epoch: int = 1) -> Op:
    return Op(LOG, "fill", began, began + 0.1, "ok", epoch, position)


def read(position: int, began: float, outcome: str, data: str = "") -> Op:
    return Op(LOG, "read", began, began + 0.1, outcome, position=position, data=data)


OPS = [
    given(1, 0.0), put(1, 0.2), given(2, 0.4), given(3, 0.6), put(3, 0.8), read(2, 1.0, "unwritten"),
    put(2, 1.1, epoch=1, outcome="stale"), given(4, 2.0, epoch=2, server="b"), put(4, 2.2, epoch=2),
    Op(LOG, "tail", 2.5, 2.6, "ok", 2, 4), fill(2, 3.0, epoch=2), read(2, 3.5, "filled"), read(3, 3.5, "data", "1.3"),
    Op(LOG, "trim", 4.0, 4.1, "ok", position=1), read(1, 4.5, "trimmed"),
    given(7, 0.0, log=IDS), given(8, 0.5, log=IDS), given(2007, 2.0, epoch=2, log=IDS, server="b"),
]  # fmt: skip
ENTRIES: dict[int, str | None] = {2: None, 3: "1.3", 4: "2.4"}
STORED = Stored(2, 1, ENTRIES, [2, 2])
RUN = Run(OPS, {LOG: STORED, IDS: Stored(2, 0, {})}, frozenset({IDS}), epochs=[(LOG, 1), (IDS, 1), (LOG, 2), (IDS, 2)])


def and_also(*ops: Op, **changed: object) -> Run:
    """The clean run with further requests; `changed` are fields of the store's log."""
    stored = replace(STORED, **changed)  # type: ignore[arg-type]  # of whatever field
    return replace(RUN, ops=[*OPS, *ops], stored={**RUN.stored, LOG: stored})


def with_entry(position: int, data: str | None) -> dict[int, str | None]:
    return {**ENTRIES, position: data}


def without_entry(position: int) -> dict[int, str | None]:
    return {at: data for at, data in ENTRIES.items() if at != position}


FAULTS = [
    ("handed out twice", and_also(given(3, 0.6))),
    ("handed out twice", and_also(given(8, 5.0, epoch=3, log=IDS), epoch=3)),
    ("out of order", and_also(given(5, 2.5, epoch=2, server="b"), given(4, 5.0, epoch=2, server="b"))),
    ("out of order", and_also(given(9, 5.0, epoch=2, log=IDS, server="b"))),
    ("out of order", and_also(Op(LOG, "tail", 2.5, 2.6, "ok", 2, 3))),
    ("below an append", and_also(given(4, 2.9, epoch=3, server="a"), epoch=3)),
    ("two servers", and_also(given(5, 5.0, epoch=2, server="a"))),
    ("an epoch went back", and_also(given(9, 5.0, epoch=1))),
    ("an epoch went back", replace(RUN, epochs=[(LOG, 2), (LOG, 1)])),
    ("an epoch went back", and_also(epoch=1, stripe_epochs=[1])),
    ("late write landed", and_also(put(5, 5.0, epoch=1), entries=with_entry(5, "1.5"))),
    ("written twice", and_also(replace(put(4, 5.0, epoch=2), data="other"))),
    ("lost", and_also(entries=without_entry(4))),
    ("lost", and_also(Op(LOG, "trim", 5.0, 5.1, "ok", position=2))),
    ("overwritten", and_also(put(4, 5.0, epoch=3, outcome="stale"), entries=with_entry(4, "3.4"), epoch=3)),
    ("overwritten", and_also(put(2, 5.0, outcome=""), entries=with_entry(2, "1.2"))),
    ("nobody wrote", and_also(entries=with_entry(5, "garbage"))),
    ("nobody wrote", and_also(entries=with_entry(5, None))),
    ("trimmed too far", and_also(trimmed=2)),
    ("a hole", and_also(put(6, 5.0, epoch=2), entries=with_entry(6, "2.6"))),
    ("not sealed", and_also(stripe_epochs=[2, 1])),
    ("read wrong", and_also(read(3, 5.0, "unwritten"))),
    ("read wrong", and_also(read(4, 5.0, "data", "other"))),
    ("read wrong", and_also(read(4, 5.0, "filled"))),
    ("read wrong", and_also(read(4, 5.0, "trimmed"))),
]


@pytest.mark.guarantee("positions-of-a-log")
def test_a_clean_history_has_no_findings() -> None:
    """Two epochs with a stale write, a hole that was filled, and a trim; and a counter that skips to its bound."""
    assert judge(RUN) == []


@pytest.mark.guarantee("positions-of-a-log")
@pytest.mark.parametrize(("kind", "run"), FAULTS, ids=[f"{kind} {i}" for i, (kind, _) in enumerate(FAULTS)])
def test_each_fault_is_found(kind: str, run: Run) -> None:
    """A history with one fault has a finding of its kind."""
    assert kind in {each.kind for each in judge(run)}


def test_every_kind_of_finding_is_made() -> None:
    """No kind stays without a history that shows it."""
    assert {kind for kind, _ in FAULTS} == set(KINDS)


@pytest.mark.parametrize(("ended", "is_found"), [(4.5, False), (3.5, True)])
def test_a_lost_lock_excuses_positions_but_for_a_lease(ended: float, is_found: bool) -> None:
    """A server may go on with its epoch for a lease after its lock was taken away, and no longer."""
    run = replace(and_also(given(9, 5.0, epoch=1)), strikes=[Strike(LOG, 3.0, ended)])

    assert bool(judge(run)) == is_found


def test_a_lost_lock_excuses_no_late_write() -> None:
    """Storage refuses what is late at any time."""
    run = and_also(put(5, 5.0, epoch=1), entries=with_entry(5, "1.5"))

    assert [each.kind for each in judge(replace(run, strikes=[Strike(LOG, 3.0, 9.0)]))] == ["late write landed"]


def test_a_request_without_an_answer_may_have_been_carried_out() -> None:
    """Its entry may be there or not."""
    lines = [{"n": 1, "log": LOG, "what": "append", "began": 5.0, "epoch": 2, "position": 5, "data": "x"}]
    (op,) = ops_of(lines)

    assert op.ended is None
    assert judge(and_also(op)) == []
    assert judge(and_also(op, entries=with_entry(5, "x"))) == []
