"""Re-sharding: which shards of the former layout a new shard waits for, and when a layout may be changed.

The hash of an event's key names its shard: x mod n before a change from n to m shards, and x mod m after it. So a new
shard j holds later events of exactly those old shards i for which some x has x mod n = i and x mod m = j. There is one
only where i and j are alike modulo d, the greatest common divisor of n and m: docs/guarantees.md has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from remora.model.layout import TopicLayout


def step(old: int, new: int) -> int:
    """Modulo this the numbers of an old and of a new shard are alike that may share a key."""
    return gcd(old, new)


def still_held(former: Sequence[TopicLayout], entries: int) -> str:
    """Why a topic cannot be changed while so many entries wait in its former layouts."""
    return "; ".join(
        f"generation {each.generation} still holds {entries:,} {'entry' if entries == 1 else 'entries'} of "
        f"{each.shards} {'shard' if each.shards == 1 else 'shards'}"
        for each in former
    )


def waits_for(name: str, generation: int, entries: int, others: int) -> str:
    """Why a shard is not delivered yet: the first of its parents that has entries, and how many others have some."""
    more = f", and {others} more" if others else ""
    return f"waits for {name} of generation {generation}: {entries:,} {'entry' if entries == 1 else 'entries'}{more}"
