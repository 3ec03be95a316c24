"""Numbers and names as people read them: with units, no more digits than their clock has, nothing invisible."""

from __future__ import annotations

import math
from datetime import UTC, datetime

US, MS = 1, 1_000
"""What clocks count in, in microseconds: those of the generator, and that of a Kafka broker."""

_UNITS = (("s", 1_000_000), ("ms", 1_000), ("µs", 1))
_DIGITS = 4
_MINUS = "−"


def count(number: int) -> str:
    """A whole number: `40,627`."""
    return f"{number:,}".replace("-", _MINUS)


def change(difference: int) -> str:
    """A difference of whole numbers, with its sign: `+12` and `0`."""
    return count(difference) if difference <= 0 else f"+{count(difference)}"


def latency(us: int, clock_us: int = US) -> str:
    """A duration, given in microseconds, in up to four digits, and no finer than the clock: `12.35 ms`, `<1 ms`."""
    if abs(us) < clock_us:
        return f"<{latency(clock_us, clock_us)}" if clock_us > US else "0 µs"
    name, unit = next((name, unit) for name, unit in _UNITS if abs(us) >= unit)
    digits = _DIGITS - 1 - math.floor(math.log10(abs(us) / unit))
    shown = f"{us / unit:,.{max(0, min(digits, round(math.log10(unit / clock_us))))}f} {name}"
    return shown.replace("-", _MINUS)


def latency_change(us: int, clock_us: int = US) -> str:
    """A difference of two durations, with its sign; `0` for one that the clock cannot tell."""
    if abs(us) < clock_us:
        return "0"
    return latency(us, clock_us) if us < 0 else f"+{latency(us, clock_us)}"


def tick(us: float) -> str:
    """A round duration on an axis: `200 µs`, `10 s`, `10 min`."""
    for name, unit in (("h", 3.6e9), ("min", 6e7), *_UNITS):
        if us >= unit and (unit < 6e7 or math.isclose(us % unit, 0)):
            return f"{us / unit:,.4g} {name}"
    return f"{us:.4g} µs"


def rate(per_s: float) -> str:
    """Events in a second, in three digits where it is small: `0.0127/s`, `25,310/s`."""
    digits = 0 if per_s >= 100 or per_s == 0 else 2 - math.floor(math.log10(per_s))
    return f"{per_s:,.{digits}f}/s"


def moment(us: int) -> str:
    """A time in UTC, to the second."""
    return f"{datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def offset(us: int) -> str:
    """A time within a run, after its beginning, to the millisecond: `12.040 s`, `1 h 02 min 03 s`."""
    if abs(us) < 600_000_000:
        return f"{us / 1_000_000:.3f} s".replace("-", _MINUS)
    hours, rest = divmod(abs(us) // 1_000_000, 3600)
    sign = _MINUS if us < 0 else ""
    return f"{sign}{hours} h {rest // 60:02} min {rest % 60:02} s"


def visible(text: str) -> str:
    r"""A name on one line, in which nothing hides: what does not print is escaped (`\n`, `\u202e`, `\udcff`)."""
    return "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int) -> str:
    """A name, shortened in its middle to the given number of characters."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[head + 1 - most :]}"
