"""Re-sharding: which shards of the former layout a new shard waits for, and when a layout may be changed.

The hash of an event's key names its shard: x mod n before a change from n to m shards, and x mod m after it. So a new
shard j holds later events of exactly those old shards i for which some x has x mod n = i and x mod m = j. There is one
only where i and j are alike modulo d, the greatest common divisor of n and m: docs/guarantees.md has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from remora.model.topic import Topic, TopicLayout
from remora.model.words import several


def parents(old: int, new: int, number: int) -> range:
    """The numbers of the old shards that a new shard of this number waits for."""
    return range(number % step(old, new), old, step(old, new))


def step(old: int, new: int) -> int:
    """Modulo this the numbers of an old and of a new shard are alike that may share a key."""
    return gcd(old, new)


def are_sent_alike(one: Topic | None, other: Topic | None) -> bool:
    """Whether entries of a topic are sent alike by these attributes of it, so that what is under way goes on.

    Its layouts, its room and whether it is closed decide only about events that come in.
    """
    if one is None or other is None or one == other:
        return one == other
    intake = replace(
        one,
        shards=other.shards,
        generation=other.generation,
        former=other.former,
        coming=other.coming,
        closed=other.closed,
        capacity_bytes=other.capacity_bytes,
    )
    return intake == other


def still_held(former: Sequence[TopicLayout], entries: int, *, is_counted: bool = True) -> str:
    """Why a topic cannot be changed while so many entries wait in its former layouts."""
    what = _entries(entries, is_counted)
    return "; ".join(
        f"generation {each.generation} still holds {what} of {several(each.shards, 'shard')}" for each in former
    )


def waits_for(name: str, generation: int, entries: int, others: int, *, is_counted: bool = True) -> str:
    """Why a shard is not delivered yet: the first of its parents that has entries, and how many others have some."""
    return _waits(name, generation, _entries(entries, is_counted), others)


def _entries(entries: int, is_counted: bool) -> str:
    return f"{'' if is_counted else 'about '}{several(entries, 'entry', 'entries')}"


def waits_for_commits(name: str, generation: int, reservations: int, others: int) -> str:
    """Why a shard is not delivered yet: a parent has no entries, but may get some; how many others hold it back."""
    what = f"{reservations} open {'reservation' if reservations == 1 else 'reservations'}"
    return _waits(name, generation, what if reservations else "its end", others)


def _waits(name: str, generation: int, what: str, others: int) -> str:
    return f"waits for {name} of generation {generation}: {what}{f', and {others} more' if others else ''}"
