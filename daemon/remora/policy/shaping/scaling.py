"""The adaptive priority queue: the spare is scaled down while ever more lies unacknowledged at the endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from remora.model.traffic import Meter

FULL = 1000
LEAST = 100
RISE = 50
GROWING_WINDOWS = 3
CALM_WINDOWS = 5
NOTEWORTHY_BYTES = 256 * 1024
GROWTH_BYTES = 64 * 1024
GROWTH_PERCENT = 5


@dataclass(slots=True)
class Scale:
    """How much of the spare there is, in thousandths, from what was unacknowledged second by second."""

    thousandths: int = FULL
    growing: int = 0
    calm: int = 0
    unacked: int = 0

    def window(self, unacked: int) -> None:
        """One second has passed; `unacked` bytes are granted and not yet acknowledged."""
        former, self.unacked = self.unacked, unacked
        change = unacked - former
        is_noteworthy = unacked >= NOTEWORTHY_BYTES
        if is_noteworthy and change > GROWTH_BYTES and change * 100 > former * GROWTH_PERCENT:
            self.calm = 0
            self.growing += 1
            if self.growing == GROWING_WINDOWS:
                self.thousandths = max(LEAST, self.thousandths * 500 // FULL)
                self.growing = 0
        elif change <= 0 or not is_noteworthy:
            self.growing = 0
            self.calm += 1
            if self.calm >= CALM_WINDOWS:
                self.thousandths = min(FULL, self.thousandths + RISE)
        else:
            self.growing = self.calm = 0

    def of(self, meter: Meter, limit: int) -> Meter:
        """The spare's meter at this scale, in a group whose guaranteed rates add up to `limit`."""
        if self.thousandths == FULL:
            return meter
        most = limit if meter.max is None else meter.max
        return Meter(
            guaranteed=meter.guaranteed * self.thousandths // FULL,
            burst=meter.burst * self.thousandths // FULL,
            max=most * self.thousandths // FULL,
        )
