"""How much of a disk a file reserves, and when new events have to wait."""

from __future__ import annotations

import pytest

from remora.policy.ingest.disk_room import Disk, has_room_for_ballast, is_full, reserve

MIB, GIB = 1 << 20, 1 << 30
PAGE = 16384


@pytest.mark.parametrize(
    ("disk", "files", "largest", "log"),
    [
        (100 * GIB, 16, None, 12 * MIB),  # enough
        (GIB, 16, None, 8 * MIB),  # an eighth of the disk, divided
        (32 * MIB, 1, None, 4 * MIB),
        (16 * MIB, 16, None, MIB),  # never less
        (100 * GIB, 1, 6 * MIB, 6 * MIB),  # what a file may have
    ],
)
def test_what_is_reserved(disk: int, files: int, largest: int | None, log: int) -> None:
    """A log has what the disk allows; it is copied before it is full, and some pages of the file are kept."""
    kept = reserve(disk, files, largest, PAGE)

    assert kept.log_bytes == log
    assert 0 < kept.checkpoint_frames * (PAGE + 24) < 0.7 * log
    assert 0 < kept.ballast_pages * PAGE <= log / 12


@pytest.mark.parametrize(
    ("free_bytes", "free_pages", "has_ballast", "full"),
    [
        (GIB, 0, False, False),  # the file can grow
        (0, 1000, True, False),  # what was delivered has left room
        (0, 3, True, True),
        (0, 95, False, True),  # delivery has needed the ballast, of 64 pages
        (0, 96, False, False),  # the next event can take it, and has room behind it
        (63 * MIB, 3, True, True),  # the last part of the disk is not for events
    ],
)
def test_when_events_find_no_room(free_bytes: int, free_pages: int, has_ballast: bool, full: bool) -> None:
    """It is when the file can neither grow nor use pages again that are nobody's."""
    disk, kept = Disk(100 * GIB, free_bytes), reserve(100 * GIB, 16, None, PAGE)

    assert is_full(disk, kept, free_pages, has_ballast=has_ballast) is full


def test_a_small_disk_has_a_small_last_part() -> None:
    """An eighth of a small disk is left to others."""
    assert Disk(32 * MIB, 5 * MIB).may_be_filled
    assert not Disk(32 * MIB, 3 * MIB).may_be_filled


@pytest.mark.parametrize(
    ("free_bytes", "most", "used", "may_be_filled", "lack"),
    [
        (50 * GIB, 0, 9 * GIB, True, "the disk is full"),
        (50 * GIB, 10 * GIB, 9 * GIB, True, "sqlite.directory_bytes"),
        (50 * GIB, 10 * GIB, 10 * GIB - 63 * MIB, False, "sqlite.directory_bytes"),
        (50 * GIB, 10 * GIB, 11 * GIB, False, "sqlite.directory_bytes"),
        (50 * GIB, 80 * GIB, 1 * GIB, True, "the disk is full"),  # the disk ends before the bound does
        (20 * MIB, 64 * MIB, 9 * MIB, False, "the disk is full"),  # its own last part is not taken for a small bound
    ],
)
def test_a_bound_of_the_directory(free_bytes: int, most: int, used: int, may_be_filled: bool, lack: str) -> None:
    """Files that may take less than the disk has leave a last part of that; what they lack names the option, or the
    disk."""
    disk = Disk(100 * GIB, free_bytes).within(most, used)

    assert disk.may_be_filled is may_be_filled
    assert lack in disk.lack


def test_the_ballast_leaves_something_for_events() -> None:
    """It is taken once there are more free pages than it has, or the next event would be refused for it."""
    kept = reserve(100 * GIB, 1, None, PAGE)

    assert not has_room_for_ballast(kept, kept.ballast_pages)
    assert has_room_for_ballast(kept, 2 * kept.ballast_pages)
