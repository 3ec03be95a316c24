"""How long to wait after a failure, and how much to try then."""

from __future__ import annotations

from dataclasses import dataclass

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


def read_limit(successes: int, most: int) -> int:
    """How many entries to read after a failure and that many rounds without one.

    The first attempt after a failure is a probe: what is read and held while an endpoint is down stays small,
    so that many broken topics do not use up the worker's bytes. It then grows eightfold a round.
    """
    limit = PROBE_ENTRIES
    for _ in range(min(successes, 8)):
        if limit >= most:
            break
        limit *= GROWTH
    return min(limit, most)
