"""Which listings that were read ahead are turned back, when a shard of a higher priority finds no room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from remora.model.traffic import Priority

_ORDER = tuple(Priority)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A bound of `limit` bytes, of which `held` are taken, where a shard of this priority needs `need` more."""

    limit: int
    held: int
    need: int
    priority: Priority


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """A shard's listings of which nothing was sent: their bytes, the oldest first."""

    priority: Priority
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TurnBack:
    """How many bytes are to be freed; how many of its newest listings each shard turns back, and what that frees."""

    to_free: int
    pages: Mapping[str, int]
    freed: int


def turn_back(
    shards: Mapping[str, ReadAhead], *, limit: int, held: int, need: int, priority: Priority, watermark: Fraction
) -> TurnBack:
    """Make room for `need` bytes, from the lowest priority up, and never from the asker's own or a higher one.

    Down to the watermark, a part of the limit, so that not each request turns something back. Less than is to be freed
    may come of it: then the asker waits.
    """
    short = held + need - limit
    if short <= 0:
        return TurnBack(0, {}, 0)
    to_free = max(short, held - int(watermark * limit))
    chosen: dict[str, int] = {}
    freed = 0
    for lower in reversed(_ORDER[_ORDER.index(priority) + 1 :]):
        if freed >= to_free:
            break
        these = {name: each.pages for name, each in shards.items() if each.priority is lower and each.pages}
        counts = _of_one_priority(these, to_free - freed)
        chosen.update(counts)
        freed += sum(sum(these[name][-count:]) for name, count in counts.items())
    return TurnBack(to_free, chosen, freed)


def _of_one_priority(shards: Mapping[str, Sequence[int]], to_free: int) -> dict[str, int]:
    """How many listings the largest shards turn back, which have at least half of all bytes; each by its part."""
    sizes = {name: sum(pages) for name, pages in shards.items()}
    whole = sum(sizes.values())
    taken: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if 2 * sum(taken.values()) >= whole:
            break
        taken[name] = sizes[name]
    most = sum(taken.values())
    counts = {name: _newest(shards[name], to_free * size // most) for name, size in taken.items()}
    return {name: count for name, count in counts.items() if count}


def _newest(pages: Sequence[int], least: int) -> int:
    """How many of the newest listings have at least `least` bytes together."""
    count = freed = 0
    while freed < least and count < len(pages):
        count += 1
        freed += pages[-count]
    return count
