"""Kafka's murmur2, which decides the partition of a key for every client that follows the Java one.

aiokafka's own walks over the key byte by byte, and costs more than everything else that is done for a record.
`partitions` is for many keys at once, and then costs a quarter of `partition`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from struct import Struct

_M = 0x5BD1E995
_SEED = 0x9747B28C
_WORDS = [Struct(f"<{count}I").unpack_from for count in range(300)]  # keys up to 1,199 bytes
_WORTHWHILE = 4  # keys of one length, from which on they are quicker together


def murmur2(key: bytes) -> int:
    """The hash as an unsigned number of 32 bits."""
    n = len(key)
    count = n >> 2
    words = _WORDS[count](key) if count < len(_WORDS) else Struct(f"<{count}I").unpack_from(key)
    h = _SEED ^ n
    for k in words:
        # The constants are written out: a global name costs a look-up each time.
        k = k * 0x5BD1E995 & 0xFFFFFFFF
        h = h * 0x5BD1E995 & 0xFFFFFFFF ^ (k ^ k >> 24) * 0x5BD1E995 & 0xFFFFFFFF
    if n & 3:
        h = (h ^ int.from_bytes(key[n & ~3 :], "little")) * _M & 0xFFFFFFFF
    h = (h ^ h >> 13) * _M & 0xFFFFFFFF
    return h ^ h >> 15


def partition(key: bytes, count: int) -> int:
    """The partition of a key among `count`, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def partitions(keys: Sequence[bytes], count: int) -> Sequence[int]:
    """The partition of each key, as `partition` tells it."""
    if count == 1:
        return bytes(len(keys))
    of_length: defaultdict[int, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        of_length[len(key)].append(place)
    found = [0] * len(keys)
    for places in of_length.values():
        alike = [keys[place] for place in places]
        hashes = _hash_side_by_side(alike) if len(alike) >= _WORTHWHILE else map(murmur2, alike)
        for place, hashed in zip(places, hashes, strict=True):
            found[place] = (hashed & 0x7FFFFFFF) % count
    return found


def _hash_side_by_side(keys: Sequence[bytes]) -> Sequence[int]:
    """`murmur2` of keys that have one length.

    The hashes are computed in one large integer, where each has 64 bits: that is room for a product of 32 bits by
    32 bits, which the mask then cuts. One operation on such an integer does the work of as many as there are keys.
    """
    width, size = len(keys), len(keys[0])
    count, rest = divmod(size, 4)
    lanes = Struct(f"<{width}Q")
    ones = int.from_bytes(b"\x01\0\0\0\0\0\0\0" * width, "little")
    mask = ones * 0xFFFFFFFF
    words = Struct(f"<{width * count}I").unpack(b"".join([key[: 4 * count] for key in keys] if rest else keys))
    h = ones * (_SEED ^ size)
    for i in range(count):
        k = int.from_bytes(lanes.pack(*words[i::count]), "little") * _M & mask
        h = h * _M & mask ^ (k ^ k >> 24 & mask) * _M & mask
    if rest:
        tails = [int.from_bytes(key[4 * count :], "little") for key in keys]
        h = (h ^ int.from_bytes(lanes.pack(*tails), "little")) * _M & mask
    h = (h ^ h >> 13 & mask) * _M & mask
    return lanes.unpack((h ^ h >> 15 & mask).to_bytes(8 * width, "little"))
