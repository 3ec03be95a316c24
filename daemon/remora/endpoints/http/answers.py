"""What an answer means, by its status: the only place that decides it. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_tz
from enum import Enum

from remora.policy.lane_steps import SLOW_S


class Verdict(Enum):
    """What a receiver's status says about the record that was posted."""

    ACK = "acknowledged"
    TRANSIENT = "transient"
    POISON = "poison"
    CONFIGURATION = "configuration"


TRANSIENT = frozenset({408, 409, 421, 423, 425, 429, 500, 502, 503, 504, 507, 508, 509, 510, *range(512, 600)})
POISON = frozenset({400, 413, 414, 415, 422, 431})
"""Refusals of the one record that was posted, perhaps; a batch is halved first, until one record is left."""

MOST_RETRY_AFTER_S = 300.0

QUICK_TRIES = 3
QUICK_BASE_S = 0.1
QUICK_WINDOW_S = 10.0
"""A lane tries a transient answer again itself, so often and within this time of the first try."""


def verdict(status: int) -> Verdict:
    """What is done about an answer of this status.

    All that is neither an acknowledgement, nor known to pass, nor about the one record is configuration: redirects are
    not followed, and 410 is not given up.
    """
    if 200 <= status < 300:
        return Verdict.ACK
    if status in TRANSIENT:
        return Verdict.TRANSIENT
    return Verdict.POISON if status in POISON else Verdict.CONFIGURATION


def retry_after_s(text: str, now: float) -> float | None:
    """Seconds that a Retry-After asks for, at most five minutes; None where it says nothing that can be used.

    `now` is seconds since the epoch, for those that name a date.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        asked = float(text)
    else:
        try:
            asked = _epoch_s(text) - now
        except (ValueError, OverflowError, IndexError, TypeError):
            return None
    return min(MOST_RETRY_AFTER_S, asked) if asked > 0 else None


def _epoch_s(text: str) -> float:
    """Seconds since the epoch of a date in any of the forms of RFC 9110, 5.6.7. Raises what its parser raises.

    All of them are UTC, also asctime's, which names no zone, and those with the zone -0000, which names none either.
    """
    found = parsedate_tz(text)
    if found is None:
        raise ValueError("no date")
    second = 59 if found[5] == 60 else found[5]  # a leap second is the one before it
    return (datetime(*found[:5], second, tzinfo=UTC) - timedelta(seconds=found[9] or 0)).timestamp()


def quick_pause_s(tries: int, most: int, asked_s: float | None, spent_s: float) -> float | None:
    """Seconds until a lane tries a record again itself after `tries` tries; None when the engine's pause is due.

    `asked_s` is the answer's Retry-After, `spent_s` the time since the first try.
    """
    if not 1 <= tries <= most:
        return None
    pause_s = asked_s if asked_s is not None else QUICK_BASE_S * 2 ** (tries - 1)
    return pause_s if spent_s + pause_s < QUICK_WINDOW_S else None


BATCHED_LANES = (8, 1024)
"""With which a target of batches begins, and the most: a batch is what a lane has of a listing, and few lanes make
large ones."""


def batched_lanes(lanes: int, mean_s: float, *, has_backlog: bool) -> int:
    """How many lanes the batches of a shard should come from, now that answers take `mean_s` on average.

    By Little's law lanes and latency bound the rate; more of them cost a connection each, so only a backlog gets them.
    It is one when more has been read than all lanes can have under way. They get twice as many at most, since more
    lanes than that would only make smaller batches.
    """
    return min(2 * lanes, BATCHED_LANES[1]) if has_backlog and mean_s > SLOW_S else lanes


PUSH_S = 1.0
MOST_IN_PUSH = 1024
FIRST_IN_PUSH = 4


def push_records(mean_s: float, together: int = 1) -> int:
    """How many records of a lane one push has: what takes about a second, so that a session can end soon.

    `together` of them go in one request, which takes `mean_s` on average; 0 where no answer is known yet.
    """
    if mean_s <= 0:
        return min(MOST_IN_PUSH, together * FIRST_IN_PUSH)
    return min(MOST_IN_PUSH, together * max(1, int(min(MOST_IN_PUSH, PUSH_S / mean_s))))
