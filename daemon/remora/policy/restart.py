"""When a worker process that ended is started again, and when one that is silent has hung."""

from __future__ import annotations

from dataclasses import dataclass, field

SERVED_WELL_S = 10.0
"""Who served this long has shown that it can: what ended it was not its start."""

BASE_S = 0.5
CAP_S = 30.0


def failures_in_a_row(before: int, served_s: float) -> int:
    """How many ends in a row this one makes, after a service of `served_s` seconds."""
    return 1 if served_s >= SERVED_WELL_S else before + 1


def restart_pause_s(failures: int) -> float:
    """Seconds to wait after `failures` ends in a row: none after the first, then doubled each time, capped."""
    return 0.0 if failures <= 1 else min(CAP_S, BASE_S * 2.0 ** min(failures - 2, 63))


@dataclass(slots=True)
class Watchdog:
    """Who was heard when, and who has been silent for too long.

    Its owner looks often. A gap between two looks means that the owner itself was frozen, most likely together with
    those that it watches: then all of them are given their whole time again. So a host that was suspended, or a control
    group that was frozen, kills no worker when it is thawed.
    """

    limit_s: float
    looked_at: float
    _heard_at: dict[int, float] = field(default_factory=dict)

    @property
    def gap_s(self) -> float:
        """The longest time between two looks that is no gap; those who look must be quicker by far."""
        return self.limit_s / 4

    def watch(self, number: int, now: float, *, patience_s: float = 0.0) -> None:
        """Begin with a new process, whose first sign of life may take `patience_s` longer."""
        self._heard_at[number] = now + patience_s

    def heard(self, number: int, now: float) -> None:
        """The process showed progress."""
        if number in self._heard_at:
            self._heard_at[number] = max(now, self._heard_at[number])

    def forget(self, number: int) -> None:
        """The process ended."""
        self._heard_at.pop(number, None)

    def look(self, now: float) -> list[int]:
        """Those who have been silent for longer than the limit."""
        if now - self.looked_at > self.gap_s:
            self._heard_at = {number: max(now, heard) for number, heard in self._heard_at.items()}
        self.looked_at = now
        return [number for number, heard in self._heard_at.items() if now - heard > self.limit_s]

    def silent_s(self, number: int, now: float) -> float:
        """For how long the process has been silent."""
        return now - self._heard_at.get(number, now)
