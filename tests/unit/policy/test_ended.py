from __future__ import annotations

from itertools import product

import pytest

from remora.policy.ended import Evidence, has_ended, is_doubtful


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
