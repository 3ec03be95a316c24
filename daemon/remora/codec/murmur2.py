"""Kafka's murmur2, which decides the partition of a key for every client that follows the Java one.

aiokafka's own walks over the key byte by byte, and costs more than everything else that is done for a record.
"""

from __future__ import annotations

from struct import Struct

_M = 0x5BD1E995
_SEED = 0x9747B28C
_WORDS = [Struct(f"<{count}I").unpack_from for count in range(300)]  # keys up to 1,199 bytes


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
