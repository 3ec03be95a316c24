"""Regular expressions of RE2, which take linear time whatever the key is, and patterns of buckets."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate

MOST_PATTERN = 1024
"""Characters of a regular expression, which is the most that a key may have."""


def regex_matcher(pattern: str) -> Callable[[bytes], bool]:
    """What tells whether a whole key fits. ValueError with the reason for what RE2 does not take.

    Keys and pattern are compared byte by byte, since a key may be any bytes.
    """
    import re2  # which hosts without such a filter need not load

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    try:
        found = re2.compile(pattern.encode(errors="surrogateescape"), options)
    except re2.error as exc:
        reason = exc.args[0] if exc.args else b""
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from exc
    fullmatch = found.fullmatch
    return lambda key: fullmatch(key) is not None


def fits_bucket(pattern: str, bucket: str) -> bool:
    """Whether a bucket's name fits a pattern, in which each `*` stands for anything, or for nothing."""
    first, *rest = pattern.split("*")
    if not rest:
        return bucket == pattern
    if not bucket.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = bucket.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(bucket) - at >= len(rest[-1]) and bucket.endswith(rest[-1])


@lru_cache(maxsize=1024)
def may_both_fit(one: str, other: str) -> bool:
    """Whether some bucket's name fits both patterns."""
    # Nearly all pairs are told apart by what stands before the first `*` of each, or behind the last.
    head, tail = one.partition("*")[0], one.rpartition("*")[2]
    other_head, other_tail = other.partition("*")[0], other.rpartition("*")[2]
    if not (head.startswith(other_head) or other_head.startswith(head)):
        return False
    if not (tail.endswith(other_tail) or other_tail.endswith(tail)):
        return False
    # Row by row: which beginnings of `other` have a name in common with the beginning of `one` read so far.
    row = list(accumulate(other, lambda fits, char: fits and char == "*", initial=True))
    for char in one:
        below = [row[0] and char == "*"]
        for at, against in enumerate(other, 1):
            if char == "*" or against == "*":
                below.append(row[at] or below[at - 1])
            else:
                below.append(row[at - 1] and char == against)
        row = below
    return row[-1]
