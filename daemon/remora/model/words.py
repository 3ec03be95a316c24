"""Times, counts and names as a person reads them, the same in every sentence and table."""

from __future__ import annotations

import re
from datetime import UTC, datetime


def duration(seconds: float | None) -> str:
    """Seconds for a person: `850ms`, `12.3s`, `4m05s`, `3h20m`, `2d04h`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02}m"
    return f"{hours // 24}d{hours % 24:02}h"


def when(seconds: float) -> str:
    """A time to come: `in 4.2s`, and `now` where nothing is left of it."""
    return f"in {duration(seconds)}" if seconds >= 0.001 else "now"


LAST_MOMENT = 253_402_300_799
"""The latest time that a date can say, in Unix seconds: the end of the year 9999."""


def moment(at: float) -> str:
    """A time in UTC; of one that no date can say, the nearest from 1970 on."""
    return datetime.fromtimestamp(min(max(at, 0), LAST_MOMENT), UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def several(count: int, one: str, more: str = "") -> str:
    """A number with its noun; `more` where that is not made with an s."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def agreeing(count: int, sentence: str) -> str:
    """`{n} [record is|records are] new` with the number, and of each pair what agrees with it."""
    return re.sub(r"\[([^|\]]*)\|([^\]]*)\]", r"\1" if count == 1 else r"\2", sentence).replace("{n}", f"{count:,}")


def printable(text: str) -> str:
    """Text on one line, with what a terminal would obey or not show as escapes: names and answers come from outside."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
