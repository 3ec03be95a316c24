"""The generic cell rate algorithm: a budget of things per second, kept as one time.

Source: ITU-T I.371, the virtual scheduling form.
"""

from __future__ import annotations

from math import inf


class CellRate:
    """`_due` is when all that was charged would be over at the budget's rate; what was not used is not saved up."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = 0.0

    def charge(self, cost_s: float, now: float, most_s: float = inf) -> float:
        """Charge one thing that takes `cost_s` at the budget's rate; returns how many seconds the budget is overdrawn.

        It is never overdrawn by more than `most_s`.
        """
        self._due = min(max(self._due, now) + cost_s, now + most_s)
        return self._due - now

    def overdrawn_s(self, now: float) -> float:
        """How many seconds the budget is overdrawn, with nothing charged."""
        return max(0.0, self._due - now)
