from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.ownership.lease import Evidence, LeaseTimes, Term, has_ended, is_doubtful

seconds = st.floats(0.001, 1e5, allow_nan=False)


@given(seconds, seconds, seconds, seconds, seconds)
def test_trust_ends_before_the_lease_does(room: float, renew: float, margin: float, asked: float, delay: float) -> None:
    """However long the store takes to answer, trust is over before the lease that it granted is."""
    lease = 2 * renew + margin + room
    times = LeaseTimes(lease, renew, margin)
    assert times.broken_rule() is None

    term = Term.granted(times, asked)

    granted_at_the_store = asked + delay
    assert not term.is_trusted(granted_at_the_store + lease)
    assert term.trusted_until < asked + lease


@given(seconds, seconds, seconds)
def test_accepted_times_leave_room_for_two_renewals(lease: float, renew: float, margin: float) -> None:
    """Times are accepted only when one failed renewal can be made good before trust ends."""
    times = LeaseTimes(lease, renew, margin)
    term = Term.granted(times, 0.0)

    if times.broken_rule() is None:
        assert term.renew_at + renew <= term.trusted_until + 1e-9  # the last bit of a float
    else:
        assert 2 * renew + margin > lease


def test_a_failed_renewal_is_repeated_soon_and_extends_nothing() -> None:
    """After a renewal without an answer the next one comes early, and trust ends when it would have."""
    times = LeaseTimes(90, 30, 5)
    term = Term.granted(times, 100.0)

    retried = term.retry_renewal(times, 135.0)

    assert retried == Term(renew_at=138.0, trusted_until=185.0)


def test_radosgw_s_own_times_are_the_default_and_hold_together() -> None:
    """Ninety seconds of lease with a renewal every thirty, as radosgw has it, break no rule."""
    assert LeaseTimes() == LeaseTimes(lease_s=90.0, renew_s=30.0, margin_s=5.0)
    assert LeaseTimes().broken_rule() is None


@pytest.mark.parametrize(
    ("evidence", "ended"),
    [
        (Evidence(), False),
        (Evidence(announced=True), False),
        (Evidence(reaped=True), True),
        (Evidence(reaped=True, announced=True), True),
        (Evidence(unlocked=True), True),
        (Evidence(unlocked=True, announced=True), True),
        (Evidence(earlier_boot=True), True),
        (Evidence(earlier_boot=True, announced=True), False),
        (Evidence(earlier_boot=True, unlocked=True, announced=True), True),
    ],
    ids=[
        "nothing is known",
        "it announces itself",
        "reaped",
        "reaped a moment ago, its row is still there",
        "its process holds no lock on its file",
        "the same a moment ago",
        "of an earlier boot",
        "of a host of the same name that runs",
        "this host's, of an earlier boot and gone",
    ],
)
def test_only_who_has_surely_ended_is_called_so(evidence: Evidence, ended: bool) -> None:
    """A lock is broken for proof about the very process, or for another boot of a worker that has fallen silent."""
    assert has_ended(evidence) is ended


def test_whoever_announces_itself_is_looked_at_again() -> None:
    """A holder is doubtful exactly when its silence alone would make it one that has ended."""
    for reaped, unlocked, earlier_boot, announced in product([False, True], repeat=4):
        evidence = Evidence(reaped, unlocked, earlier_boot, announced)
        silent = Evidence(reaped, unlocked, earlier_boot, announced=False)

        assert is_doubtful(evidence) is (not has_ended(evidence) and has_ended(silent))
