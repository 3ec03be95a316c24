"""The bytes per second that each shard is offered: by a law, or as a prepared trace has them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remora.model.shard import Shard


class Offered(Protocol):
    """What comes into the shards."""

    def at(self, now: float) -> Sequence[tuple[Shard, float]]:
        """The shards whose bytes per second change now, with what they are then."""
        ...

    def next_change(self, now: float) -> float | None:
        """When they change next; None when they never do again."""
        ...


@dataclass(slots=True)
class Zipf:
    """Constant: of `nbytes`, the shard of rank k has a part proportional to 1 / k ** exponent.

    The ranks are dealt to the shards by chance.
    """

    shards: Sequence[Shard]
    bytes: float
    exponent: float
    chance: random.Random

    def at(self, now: float) -> Sequence[tuple[Shard, float]]:
        """All of them at first, and none later."""
        if now > 0 or not self.bytes:
            return []
        weights = [1 / rank**self.exponent for rank in range(1, len(self.shards) + 1)]
        total = sum(weights)
        self.chance.shuffle(weights)
        return [(shard, self.bytes * weight / total) for shard, weight in zip(self.shards, weights, strict=True)]

    def next_change(self, now: float) -> float | None:
        """Never."""
        return None


@dataclass(slots=True)
class Recorded:
    """As a trace has them: for each of its steps of `step_s` seconds, the bytes of each shard that has some."""

    shards: Sequence[Shard]
    step_s: float
    steps: Sequence[dict[int, float]]
    _busy: set[int] = field(default_factory=set)

    def at(self, now: float) -> Sequence[tuple[Shard, float]]:
        """Those of the step that begins now, and those that had some in the one before."""
        place = round(now / self.step_s)
        step = self.steps[place] if place < len(self.steps) else {}
        changed = sorted(self._busy | step.keys())
        self._busy = set(step)
        return [(self.shards[number], step.get(number, 0.0) / self.step_s) for number in changed]

    def next_change(self, now: float) -> float | None:
        """At the next step, and at the end of the last one."""
        place = round(now / self.step_s) + 1
        return place * self.step_s if place <= len(self.steps) else None
