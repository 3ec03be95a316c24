"""In which order ticks visit the members."""

from __future__ import annotations

import random
from collections.abc import Sequence

from remora.model.errors import ConfigError

WORDS = ("fixed", "rotate", "shuffle")


class Orders:
    """Orders of visits, one for each tick: fixed, rotating, shuffled by a seed, or a list that is used in turn."""

    def __init__(self, order: str | Sequence[Sequence[int]], seed: int, members: int) -> None:
        if isinstance(order, str):
            if order not in WORDS:
                raise ConfigError("order", f"must be one of {', '.join(WORDS)}, or a list of orders")
        elif not order:
            raise ConfigError("order", "must have an order")
        else:
            for place, each in enumerate(order):
                if sorted(each) != list(range(members)):
                    raise ConfigError(f"order[{place}]", f"must name each member once, 0 to {members - 1}")
        self._order = order
        self._random = random.Random(seed)  # noqa: S311  (a script's own chance, which is to repeat)
        self._ticks = 0

    def skip(self, ticks: int) -> None:
        """Ticks have passed in which the order made no difference; shuffles go on where they were."""
        self._ticks += ticks

    def next(self, members: int) -> list[int]:
        """The order of the next tick. Members that came after a list of orders was made are visited last."""
        tick, self._ticks = self._ticks, self._ticks + 1
        everybody = list(range(members))
        if not isinstance(self._order, str):
            listed = [each for each in self._order[tick % len(self._order)] if each < members]
            return [*listed, *(each for each in everybody if each not in listed)]
        if self._order == "rotate":
            return [(tick + each) % members for each in everybody]
        if self._order == "shuffle":
            self._random.shuffle(everybody)
        return everybody
