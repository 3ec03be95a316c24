"""A limit of the whole store, divided among the workers by what each of them wants.

Every worker computes all shares from the same rows, so that they add up to the limit without anybody deciding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from zlib import crc32

from remora.model.traffic import BUCKETS, UNMETERED, Meter, limit_of


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
