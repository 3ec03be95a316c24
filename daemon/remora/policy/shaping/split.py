"""A limit of the whole store, divided among the workers by what each of them wants, which is what it sent of late.

Every worker computes all shares from the same rows, so that they add up to the limit without anybody deciding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from zlib import crc32

from remora.model.traffic import BUCKETS, UNMETERED, Meter, limit_of

WINDOW_S = 5
"""Grants of this many seconds count."""

WAITED_S = 1.0
"""A worker asks for all that it can have, until this long after a listing of its had to wait."""

MOST_GROUPS = 64
"""A worker says for at most so many groups what it wants of them. Of all others it wants nothing."""

_DIGITS = 3


class Need:
    """What was granted in one group, second by second, and when a listing last waited there."""

    __slots__ = ("_granted", "_seconds", "_waited_at")

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()
        self._granted = 0
        self._waited_at = float("-inf")

    def grant(self, nbytes: int, now: float) -> None:
        """`nbytes` were granted."""
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += nbytes
        else:
            self._seconds.append([second, nbytes])
        self._granted += nbytes

    def wait(self, now: float) -> None:
        """A listing waits now, or has waited until now."""
        self._waited_at = now

    def want(self, now: float) -> int | None:
        """Bytes per second: a quarter more than was granted over the window; None, for all, where a listing waited.

        Rounded up to three binary digits, so that a row that says it does not change with every second.
        """
        while self._seconds and self._seconds[0][0] <= int(now) - WINDOW_S:
            self._granted -= self._seconds.popleft()[1]
        if now - self._waited_at <= WAITED_S:
            return None
        return rounded_up(self._granted * 5 // (4 * WINDOW_S))


def rounded_up(number: int) -> int:
    """The least number with three binary digits, and then zeros, that is not below this one."""
    shift = max(0, number.bit_length() - _DIGITS)
    return -(-number >> shift) << shift


def busiest(wants: Mapping[str, int | None]) -> list[tuple[str, int | None]]:
    """The groups, by what is wanted of each: all, or else the most, comes first. Unwanted ones are left out."""
    wanted = [(group, want) for group, want in wants.items() if want != 0]
    return sorted(wanted, key=lambda each: (each[1] is not None, -(each[1] or 0), each[0]))[:MOST_GROUPS]


def split(limit: int, wants: Mapping[str, int | None]) -> dict[str, int]:
    """The share of each worker, by the bytes per second that it wants (None: all); shares add up to the limit.

    Each has a small share even where it wants nothing, so that its first event waits for no look at the others.
    """
    if not wants:
        return {}
    floor = limit // (10 * len(wants))
    left = limit
    shares: dict[str, int] = {}
    for name in sorted(wants, key=lambda name: (wants[name] is None, max(wants[name] or 0, floor), name)):
        want = wants[name]
        even = left // (len(wants) - len(shares))
        shares[name] = even if want is None else min(max(want, floor), even)
        left -= shares[name]
    each, rest = divmod(left, len(wants))
    return {name: shares[name] + each + (place < rest) for place, name in enumerate(sorted(wants))}


Wants = tuple[tuple[int, int | None], ...]
"""What a worker wants of some groups, each by its `key_of`: bytes per second, or all (None)."""


def key_of(group: str) -> int:
    """What stands for a group in a worker's row, where names would take too much room.

    Two groups of one key would each be divided by what is wanted of both; each still adds up to its limit.
    """
    return crc32(group.encode())


def shares_of(worker: str, limits: Mapping[str, int], wants: Mapping[str, Wants]) -> dict[str, int]:
    """This worker's share of each group's limit, by what each of the workers wants; a group left out is not wanted."""
    by_key: dict[int, dict[str, int | None]] = {}
    for name, wanted in wants.items():
        for key, want in wanted:
            by_key.setdefault(key, {})[name] = want
    place = sum(name < worker for name in wants)
    return {group: _share_of(worker, limit, by_key.get(key_of(group)), wants, place) for group, limit in limits.items()}


def _share_of(
    worker: str, limit: int, wanted: Mapping[str, int | None] | None, workers: Collection[str], place: int
) -> int:
    if wanted is None:  # what `split` gives where no worker wants anything, which most groups are most of the time
        return limit // len(workers) + (place < limit % len(workers))
    return split(limit, {name: wanted.get(name, 0) for name in workers})[worker]


def scaled(meters: Mapping[str, Meter], share: int) -> dict[str, Meter]:
    """The meters of all seven buckets for a share of their limit, rounded down; a burst never falls to 0 by it.

    Meters without any guaranteed rate have no limit to have a share of, and stay as they are.
    """
    limit = limit_of(meters)
    return {name: _scaled(meters.get(name, UNMETERED), share, limit) for name in BUCKETS}


def _scaled(meter: Meter, share: int, limit: int) -> Meter:
    if not limit:
        return meter
    return Meter(
        guaranteed=meter.guaranteed * share // limit,
        burst=max(1, meter.burst * share // limit) if meter.burst else 0,
        max=None if meter.max is None else meter.max * share // limit,
    )
