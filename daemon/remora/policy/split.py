"""A limit of the whole store, divided among the workers by what each of them wants.

Every worker computes all shares from the same rows, so that they add up to the limit without anybody deciding.
"""

from __future__ import annotations

from collections.abc import Mapping

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
