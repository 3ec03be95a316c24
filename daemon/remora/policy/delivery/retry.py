"""How long to wait after a failure, and how much to try then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PROBE_ENTRIES = 16
GROWTH = 8


@dataclass(frozen=True, slots=True)
class Backoff:
    """Capped exponential backoff with full jitter.

    Every wait is drawn evenly from nothing up to a bound that doubles with each failure in a row, so that many
    shards behind one broker do not come back together.
    Source: M. Brooker, "Exponential Backoff And Jitter" (full jitter).
    """

    base_s: float
    cap_s: float

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after `failures` (at least 1) in a row; `chance` is uniform in [0, 1)."""
        exponent = min(failures - 1, 63)  # 2.0**1024 overflows, and no cap is that far away
        return chance * min(self.cap_s, self.base_s * 2.0**exponent)


class ShardFailure(StrEnum):
    """What a shard failed at, as far as the next attempt depends on it; also the `kind` of metrics and log lines."""

    TRANSIENT = "transient"
    CONFIGURATION = "configuration"
    FENCED = "fenced"
    STORE = "store"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long a shard waits after a failure, by its kind."""

    backoff: Backoff
    configuration_recheck_s: float
    damage_recheck_s: float

    def pause_s(self, kind: ShardFailure, failures: int, chance: float, pace_s: float) -> float:
        """Seconds from a failure to the next attempt, after `failures` (at least 1) in a row.

        `pace_s` is the topic's retry_sleep_duration. Where it is set it is the pause after each failure of the
        endpoint, also where the back-off or the recheck of a configuration would be longer. What the store failed at
        is no attempt of an entry, and being fenced tells of another owner: there back-off stays, and the pace is a
        least pause after the latter.
        """
        if pace_s and kind in (ShardFailure.TRANSIENT, ShardFailure.CONFIGURATION):
            return pace_s
        least_s = {
            ShardFailure.CONFIGURATION: self.configuration_recheck_s,
            ShardFailure.DAMAGED: self.damage_recheck_s,
            ShardFailure.FENCED: pace_s,
        }.get(kind, 0.0)
        return max(least_s, self.backoff.delay(failures, chance))


def due_in_s(pace_s: float, attempts: int, first_tried: float, now: float) -> float:
    """Seconds until the next attempt at an entry is due which others tried before, where a pace is set.

    They noted how often and since when. The times are this host's and theirs, in seconds since the epoch: where the
    clocks disagree, it is never more than one pause.
    """
    return min(pace_s, max(0.0, first_tried + attempts * pace_s - now))


MOST_LIMITED_S = 240.0
"""How long a request to the ingest API waits for rate limits at most. With the five minutes that a replay may spend on
other failures it stays below the ten for which the server knows a repetition."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client repeats a request: so long while it fails, and so long while a rate limit asks it to wait.

    A limit is no failure: its waits do not count among the seconds of the others.
    """

    failing_s: float
    limited_s: float = MOST_LIMITED_S

    def is_over(self, elapsed_s: float, limited_s: float, wait_s: float, *, is_limited: bool) -> bool:
        """Whether to give up instead of waiting for `wait_s` more.

        `elapsed_s` have passed since the first attempt, and for `limited_s` of them the client waited for limits.
        """
        failing_s = elapsed_s - limited_s
        if is_limited:
            return limited_s + wait_s > self.limited_s or failing_s >= self.failing_s
        return failing_s + wait_s >= self.failing_s


LOOK_EVERY_S = 1.0
LOOKS_PER_SECOND = 20.0
"""How often a worker looks at a destination that shards wait for, and at all of them together: a look costs a
connection and a millisecond here."""


def look_every_s(destinations: int) -> float:
    """Seconds between two looks at each of `destinations` destinations that are waited for."""
    return max(LOOK_EVERY_S, destinations / LOOKS_PER_SECOND)


def read_limit(successes: int, most: int, least: int = PROBE_ENTRIES, growth: int = GROWTH) -> int:
    """How many entries to read after a failure and that many rounds without one.

    The first attempt after a failure is a probe of `least`: what is read and held while an endpoint is down stays
    small, so that many broken topics do not use up the worker's bytes. It then grows `growth`-fold a round.
    """
    limit = least
    while successes > 0 and growth > 1 and limit < most:
        limit *= growth
        successes -= 1
    return min(limit, most)
