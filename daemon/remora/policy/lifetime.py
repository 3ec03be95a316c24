"""When an entry is given up: radosgw's time_to_live and max_retries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often an entry is tried; 0 stands for ever and without limit, as in radosgw."""

    time_to_live_s: int = 0
    max_retries: int = 0
    retry_sleep_s: int = 0

    def __bool__(self) -> bool:
        """Whether anything at all is limited."""
        return bool(self.time_to_live_s or self.max_retries)

    def expires_before_ns(self, now_ns: int) -> int:
        """Entries created before this have outlived their time; 0 when nothing does."""
        return now_ns - self.time_to_live_s * 1_000_000_000 if self.time_to_live_s else 0

    def is_exhausted(self, attempts: int) -> bool:
        """Whether an entry that failed `attempts` times is given up.

        max_retries = n allows n + 1 attempts in radosgw, whatever the option's text says, and so here.
        """
        return bool(self.max_retries) and attempts > self.max_retries
