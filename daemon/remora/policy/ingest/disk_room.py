"""How much of a disk a file of the embedded store reserves ahead, when it may grow, and when new events have to wait.

Delivery needs room too: removals, renewed locks and dead letters. Others may take the last of the disk at any time, so
that room is allocated while there is some, and no event gets it.
"""

from __future__ import annotations

from dataclasses import dataclass

_LOG_BYTES = 12 << 20
_LEAST_LOG_BYTES = 1 << 20
_SHARE = 8
"""The logs of all files take at most this part of a small disk, and as much is left of it for others."""

_CHECKPOINT_OF_LOG = 2 / 3
_BALLAST_OF_LOG = 1 / 12

_SPARE_BYTES = 64 << 20
"""This much of a large disk is not filled with entries."""

_OF_THE_LOGS = 1 / 2
"""This part of the last room below a bound is for logs that grow beyond their length, not for a file."""

_SLACK_PAGES = 16
"""Beside the ballast itself, what must be free before it is taken: else the next event would be refused for it."""


SCARCE_PAGES = 4 * _SLACK_PAGES
"""With fewer pages left, what was delivered gives its own back: before an event finds none, or delivery does not."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """What a file keeps for itself. The log has `log_bytes` allocated, and is copied into the file from
    `checkpoint_frames` on; `ballast_pages` of the file are used by nothing until delivery finds no other."""

    log_bytes: int
    checkpoint_frames: int
    ballast_pages: int


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system below a file: its size, and what is free of it for this user; less where an option gives the
    files of a directory less, which then `is_bounded`."""

    nbytes: int
    free_bytes: int
    is_bounded: bool = False

    def within(self, most: int, used: int) -> Disk:
        """What is left where files that take `used` bytes may take `most`; 0 for as much as the disk has."""
        if not most or not self.may_be_filled:
            return self
        left = max(0, most - used)
        return Disk(min(most, self.nbytes), min(left, self.free_bytes), is_bounded=left < self.free_bytes)

    @property
    def lack(self) -> str:
        """What keeps the files from growing, where something does."""
        return "the directory holds what sqlite.directory_bytes allows" if self.is_bounded else "the disk is full"

    @property
    def may_be_filled(self) -> bool:
        """Whether there is more than the last part, which is left to others."""
        return self.free_bytes >= _spare(self.nbytes)


def most_of_file(most: int, used: int, file_bytes: int) -> int:
    """How large a file of `file_bytes` may get where all of its directory take `used` bytes and may take `most`."""
    return file_bytes + max(0, most - used - int(_spare(most) * _OF_THE_LOGS))


def _spare(nbytes: int) -> int:
    return min(_SPARE_BYTES, nbytes // _SHARE)


def reserve(disk_bytes: int, files: int, largest_file: int | None, page_bytes: int) -> Reserve:
    """What each of so many files reserves; `largest_file` is the most bytes that a file may have, if there is one."""
    log_bytes = max(_LEAST_LOG_BYTES, min(_LOG_BYTES, disk_bytes // _SHARE // files))
    if largest_file is not None:
        log_bytes = min(log_bytes, largest_file)
    log_pages = log_bytes // page_bytes
    return Reserve(
        log_bytes,
        checkpoint_frames=max(1, int(log_pages * _CHECKPOINT_OF_LOG)),
        ballast_pages=max(1, int(log_pages * _BALLAST_OF_LOG)),
    )


def has_room_for_ballast(kept: Reserve, free_pages: int) -> bool:
    """Whether the ballast can be taken out of so many pages."""
    return free_pages >= kept.ballast_pages + _SLACK_PAGES


def is_full(disk: Disk, kept: Reserve, free_pages: int, *, has_ballast: bool) -> bool:
    """Whether new events find no room, or soon will: the file cannot grow, and has few pages to use again.

    Without the ballast the next event takes it, and finds room behind it: whoever is turned away until the ballast is
    there again would never send that event.
    """
    wanted = _SLACK_PAGES if has_ballast else kept.ballast_pages + 2 * _SLACK_PAGES
    return not disk.may_be_filled and free_pages < wanted
