"""How much later than due events were sent: counted to three digits, so that any number of them takes little room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def rounded(us: int) -> int:
    """A latency cut to its three leading digits; below 0 is 0."""
    if us < 1000:
        return max(us, 0)
    step: int = 10 ** (len(str(us)) - 3)
    return us - us % step


def merged(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Counts of several tasks as one."""
    found: dict[int, int] = {}
    for each in counts:
        for us, count in each.items():
            found[us] = found.get(us, 0) + count
    return found


def percentile_us(counts: Mapping[int, int], share: float) -> int | None:
    """The smallest latency that at least this share of all does not exceed, to three digits; None without any."""
    needed, seen = share * sum(counts.values()), 0
    for us in sorted(counts):
        seen += counts[us]
        if seen >= needed:
            return us
    return None
