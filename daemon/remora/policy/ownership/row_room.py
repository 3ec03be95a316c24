"""How much a worker says in its row: a row has one size bound, since all workers read the rows of all.

What does not fit is said later. An offer that waits keeps its shard where it is, and a shard that is not expected yet
stays on offer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from remora.model.shard import Shard

ROW_BYTES = 4096
"""The most bytes of a row as the stores keep it."""

SHARDS_BYTES = 2630
"""Of these what all shards take that are offered or expected."""

LEAST_BYTES = 500
"""Of these, in turn, what neither takes from the other: a shard of a long name, and its receiver."""

QUARANTINED_BYTES = 500
"""What the names of all destinations take."""

WANTS_BYTES = 270
"""What groups take in any case of which the worker says how much it wants; they have what shards leave, too."""

_SHARD_BYTES = 26
"""What a shard takes beside its name."""

_GROUP_BYTES = 64
"""What shards on offer to one worker take, beside its cookie and their names."""

Group = tuple[str, bool, bool]
"""Which offers stand together: the cookie of their receiver first."""

Want = tuple[int, int | None]
"""A group's key, and the bytes per second that are wanted of it, or None for all."""

T = TypeVar("T")


def expected(known: Mapping[Shard, T], new: Mapping[Shard, T], offers: Mapping[Shard, Group]) -> dict[Shard, T]:
    """Those that a worker expects, with as many more as there is room for beside its offers."""
    left = SHARDS_BYTES - max(LEAST_BYTES, _bytes_of_offers(offers)) - sum(map(_bytes_of, known))
    found = dict(known)
    for shard, value in new.items():
        left -= 0 if shard in known else _bytes_of(shard)
        if left >= 0 or shard in known or not found:
            found[shard] = value
    return found


def offered(offers: Mapping[Shard, Group], expects: Iterable[Shard]) -> list[Shard]:
    """As many of the offers as there is room for beside what a worker expects, the first ones."""
    left = SHARDS_BYTES - max(LEAST_BYTES, sum(map(_bytes_of, expects)))
    found: list[Shard] = []
    seen: set[Group] = set()
    for shard, group in offers.items():
        left -= _bytes_of(shard) + (0 if group in seen else _bytes_of_group(group))
        if left < 0 and found:
            break
        seen.add(group)
        found.append(shard)
    return found


def named(destinations: Iterable[str]) -> list[str]:
    """As many destinations as there is room for, the first ones that fit."""
    left = QUARANTINED_BYTES
    found: list[str] = []
    for each in destinations:
        nbytes = len(each.encode()) + 3
        if nbytes <= left:
            left -= nbytes
            found.append(each)
    return found


def wanted(wants: Sequence[Want], offers: Mapping[Shard, Group], expects: Iterable[Shard]) -> tuple[Want, ...]:
    """As many of the groups of which something is wanted as there is room for beside the shards, the first ones."""
    left = WANTS_BYTES + max(0, SHARDS_BYTES - _bytes_of_offers(offers) - sum(map(_bytes_of, expects)))
    found: list[Want] = []
    for each in wants:
        nbytes = each[1]
        left -= 7 if nbytes is None else 11 if nbytes < 1 << 32 else 15
        if left < 0:
            break
        found.append(each)
    return tuple(found)


def _bytes_of_offers(offers: Mapping[Shard, Group]) -> int:
    return sum(map(_bytes_of, offers)) + sum(map(_bytes_of_group, set(offers.values())))


def _bytes_of_group(group: Group) -> int:
    return len(group[0]) + _GROUP_BYTES


def _bytes_of(shard: Shard) -> int:
    return len(shard.queue.encode()) + _SHARD_BYTES
