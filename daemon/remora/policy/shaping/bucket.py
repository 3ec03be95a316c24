"""A token bucket in whole numbers, and how a rate is divided among ticks and members to the last unit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

SECOND_US = 1_000_000


@dataclass(slots=True)
class CreditBucket:
    """Credit of one member for one priority.

    `level` may be negative: a debt, which is paid back before anything else passes. `returned` is credit that was
    given back and did not fit. `budget` bounds what may be filled in; None is unlimited, and is then never computed
    with.
    """

    capacity: int = 0
    level: int = 0
    budget: int | None = None
    returned: int = 0

    @property
    def debt(self) -> int:
        """How far the level is below 0."""
        return max(0, -self.level)

    def fill(self, credit: int) -> int:
        """Take up credit as far as budget and capacity go, and answer the rest.

        A level above the capacity, which was made smaller, is cut: the cut is part of the answer, and the budget gets
        it back.
        """
        take = credit if self.budget is None else min(credit, self.budget)
        new = min(self.level + take, self.capacity)
        used = new - self.level
        self.level = new
        if self.budget is not None:
            self.budget -= used
        return credit - used

    def drain(self, cost: int, *, force: bool = False) -> bool:
        """Take the whole cost from a level above 0, however far below 0 it falls; by force from any level."""
        if self.level <= 0 and not force:
            return False
        self.level -= cost
        return True

    def release(self, amount: int) -> int:
        """Return what was not used, and answer what did not fit; that is kept. It asks for no budget."""
        new = max(self.level, min(self.level + amount, self.capacity))
        overflow = amount - (new - self.level)
        self.level = new
        self.returned += overflow
        return overflow

    def take_returned(self) -> int:
        """What did not fit when it was given back, once."""
        amount, self.returned = self.returned, 0
        return amount

    def transfer(self, source: CreditBucket, want: int) -> int:
        """Move credit here from another bucket, which never gets into debt by it; answers how much."""
        amount = min(want, source.level, self.capacity - self.level)
        if self.budget is not None:
            amount = min(amount, self.budget)
        if amount <= 0:
            return 0
        source.level -= amount
        self.level += amount
        if self.budget is not None:
            self.budget -= amount
        return amount


def share_of(rate: int, tick: int, member: int, members: int, tick_us: int) -> int:
    """What one of the members gets of a rate in a tick, both counted from 0.

    Remainders are carried from share to share: any second's worth of ticks gives exactly the rate, over all members.
    """
    place = tick * members + member
    unit = members * SECOND_US
    step = rate * tick_us
    before = step * place
    return (before + step) // unit - before // unit


def shares_of_tick(rate: int, tick: int, members: int, tick_us: int) -> list[int]:
    """What each member gets of a rate in a tick: `share_of` for all of them."""
    unit = members * SECOND_US
    step = rate * tick_us
    if not step % unit:
        return [step // unit] * members
    ends = [step * place // unit for place in range(tick * members, tick * members + members + 1)]
    return [after - before for before, after in pairwise(ends)]


def capacity_of(burst: int, member: int, members: int) -> int:
    """What one of the members may hold of a burst: its part, and at least 1 where there is a burst at all."""
    if not burst:
        return 0
    return max(1, burst // members + (member < burst % members))
