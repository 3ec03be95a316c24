"""Which shard of a topic an event belongs into, as Ceph's main branch chooses it.

That is `std::hash<std::string>` of `bucket:object`, modulo the number of shards. In libstdc++ on 64 bits it is
MurmurHash64A with a seed of its own. `shards` is for many keys at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

_M = 0xC6A4A7935BD1E995
_SEED = 0xC70F6907
_64 = 0xFFFF_FFFF_FFFF_FFFF
_WORTHWHILE = 4  # keys of one shape, from which on they are quicker together


def shard_hash(key: bytes) -> int:
    """The hash as an unsigned number of 64 bits."""
    whole = len(key) & ~7
    h = _SEED ^ len(key) * _M & _64
    for (k,) in _WORD.iter_unpack(key[:whole]):
        k = k * _M & _64
        h = (h ^ (k ^ k >> 47) * _M & _64) * _M & _64
    if len(key) & 7:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _64
    h = (h ^ h >> 47) * _M & _64
    return h ^ h >> 47


_WORD = Struct("<Q")


def shard(key: bytes, count: int) -> int:
    """The shard of a key among `count`."""
    return shard_hash(key) % count


def shards(keys: Sequence[bytes], count: int) -> Sequence[int]:
    """The shard of each key, as `shard` tells it."""
    if count == 1:
        return bytes(len(keys))
    alike: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        alike[len(key) >> 3, len(key) & 7 != 0].append(place)
    found = [0] * len(keys)
    for places in alike.values():
        group = [keys[place] for place in places]
        hashes = _hash_side_by_side(group) if len(group) >= _WORTHWHILE else map(shard_hash, group)
        for place, hashed in zip(places, hashes, strict=True):
            found[place] = hashed % count
    return found


@lru_cache(maxsize=256)
def _lanes(width: int) -> tuple[Struct, int]:
    """How numbers of 64 bits stand in lanes of 128, and the largest such number in every lane."""
    return Struct("<" + "Q8x" * width), int.from_bytes((b"\xff" * 8 + b"\0" * 8) * width, "little")


def _hash_side_by_side(keys: Sequence[bytes]) -> Sequence[int]:
    """`shard_hash` of keys that have as many whole words, and all a tail or none.

    The hashes are computed in one large integer, where each has 128 bits: that is room for a product of 64 bits by
    64 bits, which the mask then cuts. One operation on such an integer does the work of as many as there are keys.
    """
    width, count = len(keys), len(keys[0]) >> 3
    lanes, mask = _lanes(width)
    h = int.from_bytes(lanes.pack(*[_SEED ^ len(key) * _M & _64 for key in keys]), "little")
    gap = bytes(8)
    for at in range(0, 8 * count, 8):
        k = int.from_bytes(gap.join([key[at : at + 8] for key in keys]), "little") * _M & mask
        h = (h ^ (k ^ k >> 47 & mask) * _M & mask) * _M & mask
    if len(keys[0]) & 7:
        tails = [int.from_bytes(key[8 * count :], "little") for key in keys]
        h = (h ^ int.from_bytes(lanes.pack(*tails), "little")) * _M & mask
    h = (h ^ h >> 47 & mask) * _M & mask
    return lanes.unpack((h ^ h >> 47 & mask).to_bytes(16 * width, "little"))
