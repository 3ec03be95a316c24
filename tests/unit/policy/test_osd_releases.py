"""Which releases of OSDs leak room."""

from __future__ import annotations

import pytest

from remora.storage.rados.cluster.osds import OsdReleases, Release, leaks, parse_releases


@pytest.mark.parametrize(
    ("release", "leaky"),
    [
        ((16, 2, 15), True),
        ((17, 2, 9), True),
        ((18, 2, 7), True),
        ((19, 1, 9), True),
        ((19, 2, 3), True),
        ((19, 2, 4), False),
        ((19, 3, 0), False),
        ((20, 2, 2), True),
        ((20, 2, 3), False),
        ((20, 2, 4), False),
        ((21, 0, 0), False),
    ],
)
def test_which_releases_leak(release: Release, leaky: bool) -> None:
    """All before 19.2.4, and of the series 20 those before 20.2.3."""
    assert leaks(release) is leaky


def test_what_the_monitors_say() -> None:
    """OSDs of one release are added up, whatever they were built from; those without a release are counted."""
    found = parse_releases(
        {
            "ceph version 16.2.15 (618f440892) pacific (stable)": 2,
            "ceph version 16.2.15 (fffffffff) pacific (stable)": 1,
            "ceph version 20.2.4 (1b) tentacle (stable)": 4,
            "unknown": 1,
            "ceph version Development (no_version) main (dev)": 1,
        }
    )

    assert (found.counts, found.unknown) == ({(16, 2, 15): 3, (20, 2, 4): 4}, 2)


@pytest.mark.parametrize(
    ("counts", "unknown", "may_be_fixed", "mixed", "said"),
    [
        ({}, 0, True, False, "OSDs of unknown release"),
        ({}, 2, True, True, "OSDs of unknown release"),
        ({(16, 2, 15): 3}, 0, False, False, "OSDs 16.2.15, whose queues leak room"),
        ({(16, 2, 15): 3}, 1, True, True, "OSDs 16.2.15, whose queues leak room, 1 of unknown release"),
        ({(20, 2, 4): 3}, 0, True, False, "OSDs 20.2.4"),
        ({(20, 2, 4): 3}, 1, True, True, "OSDs 20.2.4, 1 of unknown release"),
        ({(20, 2, 4): 3, (19, 2, 3): 1}, 0, True, True, "OSDs 19.2.3, whose queues leak room, 20.2.4"),
        ({(18, 2, 7): 3, (16, 2, 15): 1}, 0, False, False, "OSDs 16.2.15, 18.2.7, whose queues leak room"),
    ],
)
def test_what_a_cluster_has(
    counts: dict[Release, int], unknown: int, may_be_fixed: bool, mixed: bool, said: str
) -> None:
    """Where the monitors say nothing of an OSD, it may be fixed or not; a cluster is mixed that may have both kinds."""
    found = OsdReleases(counts, unknown)

    assert (found.may_be_fixed, found.are_mixed, str(found)) == (may_be_fixed, mixed, said)
