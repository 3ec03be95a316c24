"""When an entry is given up: radosgw's time_to_live, max_retries and retry_sleep_duration."""

from __future__ import annotations

from dataclasses import dataclass

from remora.model.topic import Topic


@dataclass(frozen=True, slots=True)
class LifetimeLimits:
    """How long and how often an entry is tried; 0 stands for ever and without limit, as in radosgw."""

    time_to_live_s: float = 0
    max_retries: int = 0
    retry_sleep_s: float = 0

    def __bool__(self) -> bool:
        """Whether anything at all is limited."""
        return bool(self.time_to_live_s or self.max_retries)

    @property
    def counts_attempts(self) -> bool:
        """Whether the number and time of an entry's failed attempts matter, also to the next owner."""
        return bool(self.max_retries or self.retry_sleep_s)

    def of(self, topic: Topic) -> LifetimeLimits:
        """A topic's own limits; these are for those that it leaves open."""
        return LifetimeLimits(
            self.time_to_live_s if topic.time_to_live_s is None else topic.time_to_live_s,
            self.max_retries if topic.max_retries is None else topic.max_retries,
            self.retry_sleep_s if topic.retry_sleep_s is None else topic.retry_sleep_s,
        )

    def expires_before_ns(self, now_ns: int) -> int:
        """Entries created before this have outlived their time; 0 when nothing does."""
        return now_ns - int(self.time_to_live_s * 1_000_000_000) if self.time_to_live_s else 0

    def expires_in_s(self, created_ns: int, now_ns: int) -> float:
        """Seconds until an entry has outlived its time, less than 0 when it has; infinite when it never does."""
        if not self.time_to_live_s:
            return float("inf")
        return (created_ns - self.expires_before_ns(now_ns)) / 1e9

    def is_exhausted(self, attempts: int) -> bool:
        """Whether an entry that failed `attempts` times is given up.

        max_retries = n allows n + 1 attempts in radosgw, whatever the option's text says, and so here.
        """
        return bool(self.max_retries) and attempts > self.max_retries
