"""Which faults a chaos run makes depends on its seed alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.chaos.plan import DOUBLINGS, OF_HTTP, OF_RABBITMQ, UNNAMED, WEIGHTS, Fault, rounds

BESIDE_A_FREEZE = ("store", "clock", "refusals", "answers")

STORES = st.sampled_from(["sqlite", "rados"])


@pytest.mark.guarantee("chaos-runs")
@given(seed=st.text(max_size=8), store=STORES, count=st.integers(1, 20))
def test_a_seed_draws_the_same_faults(seed: str, store: str, count: int) -> None:
    """The same seed draws the same strokes, and a longer run begins as a shorter one."""
    drawn = rounds(seed, count, store)

    assert drawn == rounds(seed, count, store)
    assert drawn == rounds(seed, count + 1, store)[:count]


@given(seed=st.text(max_size=8), store=STORES)
def test_a_round_hurts_each_part_once(seed: str, store: str) -> None:
    """A round has one to three strokes, in the order of time, each at another part; the first freezes a host."""
    drawn = rounds(seed, 20, store)

    assert Fault.FREEZE_HOST in {each.fault for each in drawn[0]}
    for strokes in drawn:
        assert 1 <= len(strokes) <= 3
        assert [each.after_s for each in strokes] == sorted(each.after_s for each in strokes)
        assert len({each.part for each in strokes}) == len(strokes)
        if Fault.FREEZE_HOST in {each.fault for each in strokes}:
            assert len([each for each in strokes if each.part not in BESIDE_A_FREEZE]) == 1


@pytest.mark.parametrize(("store", "others"), [("sqlite", {Fault.KILL_OSD, Fault.SPILL}), ("rados", {Fault.FULL_DISK})])
def test_every_fault_is_drawn(store: str, others: set[Fault]) -> None:
    """Among a few hundred rounds each fault is drawn that the store can have, and no other."""
    drawn = {stroke.fault for strokes in rounds("1", 300, store) for stroke in strokes}

    assert drawn == UNNAMED - others


@given(seed=st.text(max_size=8), store=STORES)
def test_numbers_of_shards_change_in_each_round(seed: str, store: str) -> None:
    """Where that is asked for, and other faults are made meanwhile: owners frozen beyond their leases, too."""
    drawn = rounds(seed, 40, store, {Fault.RESHARD, Fault.FREEZE_HOST, Fault.KILL_WORKER})

    assert all(Fault.RESHARD in {each.fault for each in strokes} for strokes in drawn)
    assert {each.fault for strokes in drawn for each in strokes} == {
        Fault.RESHARD,
        Fault.FREEZE_HOST,
        Fault.KILL_WORKER,
    }
    assert Fault.FREEZE_HOST in {each.fault for each in drawn[0]}


def test_faults_by_name_are_drawn_beside_hurt_owners() -> None:
    """Records are refused and answered late while owners are killed, and frozen for longer than their lease."""
    owners = {Fault.FREEZE_HOST, Fault.KILL_HOST, Fault.KILL_WORKER}
    drawn = [{each.fault for each in strokes} for strokes in rounds("1", 60, "sqlite", {*owners, *OF_HTTP})]

    for fault in OF_HTTP:
        assert {owner for faults in drawn if fault in faults for owner in faults & owners} == owners


@given(seed=st.text(max_size=8), store=STORES, among=st.sets(st.sampled_from([*OF_RABBITMQ]), min_size=1))
def test_no_other_fault_is_drawn_than_asked_for(seed: str, store: str, among: set[Fault]) -> None:
    """A run that is given its faults draws no other, not even in the first round."""
    drawn = {stroke.fault for strokes in rounds(seed, 20, store, among) for stroke in strokes}

    assert drawn <= among


def test_faults_that_a_store_cannot_have() -> None:
    """A run whose faults the store cannot have is refused."""
    with pytest.raises(ValueError, match="none of these faults can be made on rados"):
        rounds("1", 1, "rados", {Fault.FULL_DISK})


def test_every_fault_has_its_figures() -> None:
    """No fault lacks a weight, or a bound for what it may double."""
    assert set(WEIGHTS) == set(DOUBLINGS) == set(Fault)
