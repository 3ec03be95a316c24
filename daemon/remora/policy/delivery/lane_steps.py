"""How many records of a shard one receiver is given at a time, by how long its answers take.

By Little's law that number and the latency bound the rate, so a slow receiver gets more. It gets them step by step:
before each step a round of answers must show that the step before made them no slower.
"""

from __future__ import annotations

GROUPS = 1 << 14
"""Into so many lanes keys are divided where answers are slow, or not known yet: few of those under way share one then.
A lane costs a push of its own for nearly each record, which answers that take 30 ms hide."""

STEPS = ((64, 64), (64, GROUPS), (256, GROUPS), (1024, GROUPS))
"""How many lanes may have a request under way at once, and into how many keys are divided. To divide them finer is a
step of its own, since that alone may do: where this host was short of processor time for a while."""

UNKNOWN = 1
"""The step with which a receiver begins."""

BACK = (0, 0, 0, 2)
"""Where answers that grew lead from each step. Finer lanes cost time of this host, which may be what grew."""

PROOF = 8
"""Lanes that may have one from a failure until the next acknowledgement."""

SLOW_S = 0.03
QUICK_S = 0.01

STEADY = 1.5
"""Answers that take so many times as long after a step as before it do not bring another one."""

IN_VAIN = (0.0, 1.5, 3.0, 3.0)
"""With answers so many times as long as before, a step has brought nothing; with the second one, harm."""

BASE_WEIGHT = 1 / 64
"""Of a round in what its answers are compared with: what takes longer for a minute is no news any more."""

MOST_REFUSED = 1 / 20
"""A receiver that refuses a larger part of a round has too many of them."""

FULL = 7 / 8
"""Of the lanes: so many answers make a round, and with fewer under way at once there is no backlog, or it has too few
keys for more lanes."""

CALM_S = 3.0
AGAIN_S = 30.0
"""When steps may be taken again after one was taken back, and when that one may be, too."""


class LaneSteps:
    """What all routes to one receiver know of its answers."""

    _since: float
    _acks: int
    _refusals: int
    _most: int
    _sum_s: float

    def __init__(self) -> None:
        self._at = UNKNOWN
        self._highest, self._back_at = len(STEPS) - 1, float("-inf")
        self._is_known = False
        self._base_s: float | None = None
        self._begin_round(float("-inf"))

    @property
    def lanes(self) -> int:
        """How many lanes of a shard may have a request under way at once."""
        return STEPS[self._at][0]

    @property
    def groups(self) -> int:
        """Into how many lanes a shard's keys are divided."""
        return STEPS[self._at][1]

    def begun(self, under_way: int) -> None:
        """A request begins, with which a shard has this many under way."""
        self._most = max(self._most, under_way)

    def acked(self, seconds: float, now: float) -> None:
        """A request was acknowledged after so long; one that began before this round shows nothing of the last step."""
        if now - seconds >= self._since:
            self._acks += 1
            self._sum_s += seconds
            if self._acks + self._refusals >= FULL * self.lanes:
                self._end_round(self._sum_s / self._acks, now)

    def refused(self, now: float) -> None:
        """A request was answered with a refusal that may pass."""
        self._refusals += 1
        if not self._is_clean:
            self.failed(now)

    def failed(self, now: float) -> None:
        """Requests are refused, or given up for now: begin with few again, and without the last step for a while."""
        if self.lanes > STEPS[UNKNOWN][0]:
            self._hold(self._at - 1, now)
            self._move(UNKNOWN, None)
            self._begin_round(now)

    @property
    def _is_clean(self) -> bool:
        return self._refusals <= MOST_REFUSED * FULL * self.lanes

    def _begin_round(self, now: float) -> None:
        self._since = now
        self._acks = self._refusals = self._most = 0
        self._sum_s = 0.0

    def _end_round(self, mean_s: float, now: float) -> None:
        """Take the step that a round's answers show to be right."""
        base_s = mean_s if self._base_s is None else self._base_s
        self._highest = len(STEPS) - 1 if now >= self._back_at + AGAIN_S else self._highest
        may_rise = self._at < self._highest and now >= self._back_at + CALM_S
        is_full = self._is_clean and self._most >= FULL * self.lanes
        if mean_s <= (QUICK_S if self._is_known else SLOW_S):
            self._move(0, None)
        elif self._base_s is not None and mean_s > IN_VAIN[self._at] * base_s:
            self._hold(BACK[self._at], now)
            self._move(BACK[self._at], base_s if BACK[self._at] else None)
        elif may_rise and is_full and SLOW_S < mean_s <= STEADY * base_s:
            self._move(self._at + 1, mean_s)
        elif self._at > UNKNOWN or self._base_s is not None:
            self._base_s = base_s + (mean_s - base_s) * BASE_WEIGHT
        self._is_known = True
        self._begin_round(now)

    def _hold(self, highest: int, now: float) -> None:
        self._highest, self._back_at = highest, now

    def _move(self, to: int, base_s: float | None) -> None:
        self._at, self._base_s = to, base_s
