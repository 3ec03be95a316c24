"""What is admitted: who may read and hold how much, who waits for it, and whose read-ahead makes room for others.

A request goes along limits, narrow to wide, and waits in the first that does not let it pass. It holds what it took of
those behind it, and nothing of the wider ones: a shard that waits for its own topic keeps others from nothing. All who
wait stand in one line. In each limit the highest priority goes first, then who came first: nobody passes by a waiter of
its own or of a higher priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from remora.model.traffic import Priority

_ORDER = tuple(Priority)
_RANKS = {priority: rank for rank, priority in enumerate(_ORDER)}

UNCHARGED = -1
"""The mark of a hold that costs nothing, since its group is disabled."""


class AdmissionLimit(Protocol):
    """A bound on what requests hold at once. Another one is one more node of the tree: these two methods."""

    def take(self, request: Demand) -> Hold | None:
        """Holds what the request wants, or less, which it wants from then on; None where it has to wait."""

    def settle(self, hold: Hold, amount: int) -> Sequence[AdmissionLimit]:
        """Holds this much from now on, more by force; returns the limits in which more may pass by now."""


@dataclass(slots=True, eq=False)
class Hold:
    """What a request holds of a limit; `mark` is the limit's own."""

    limit: AdmissionLimit
    amount: int
    mark: int = 0

    @property
    def is_charged(self) -> bool:
        """Whether the limit counts it."""
        return self.mark != UNCHARGED


@dataclass(slots=True, eq=False)
class Demand:
    """An amount that is wanted of all `limits`, narrow to wide. It shrinks to what the narrowest gives.

    A limit that gives anything gives `least` in any case. `mean` is how many records an entry makes, where that is
    known.
    """

    priority: Priority
    limits: tuple[AdmissionLimit, ...]
    want: int
    least: int = 0
    mean: float | None = None
    holds: list[Hold] = field(default_factory=list)
    wanted: int = field(init=False)
    """What was wanted at first."""

    def __post_init__(self) -> None:
        self.wanted = self.want

    @property
    def is_granted(self) -> bool:
        """Whether all limits let it pass: then `want` is what was granted."""
        return len(self.holds) == len(self.limits)

    @property
    def waits_in(self) -> AdmissionLimit:
        """The limit in which it waits."""
        return self.limits[len(self.holds)]


class WaitingLine:
    """All who wait, in the limit where each of them does."""

    def __init__(
        self, rank: Callable[[AdmissionLimit], int] = lambda _: 0, on_wait: Callable[[Demand], None] = lambda _: None
    ) -> None:
        """Of several limits those of a lower `rank` are looked at first. `on_wait` is called when a request begins to
        wait in a limit."""
        self._rank = rank
        self._on_wait = on_wait
        self._lanes: dict[AdmissionLimit, list[Demand]] = {}
        self.freed: dict[AdmissionLimit, None] = {}
        """Where more may pass since the last look."""

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._lanes)

    @property
    def waited_in(self) -> Iterable[AdmissionLimit]:
        """The limits in which somebody waits."""
        return self._lanes.keys()

    def waiting(self, limit: AdmissionLimit) -> Sequence[Demand]:
        """Who waits in a limit, the next one first."""
        return self._lanes.get(limit, ())

    def first(self, limit: AdmissionLimit) -> Demand | None:
        """Whose turn in a limit is next."""
        return self._lanes[limit][0] if limit in self._lanes else None

    def ask(self, request: Demand) -> bool:
        """Whether the request is granted at once; else it waits, and `look` returns it when it is."""
        return self._go_on(request)

    def ask_now(self, request: Demand) -> bool:
        """Whether the request is granted without waiting and without passing anybody by; else it holds nothing."""
        for limit in request.limits:
            hold = None if limit in self._lanes else limit.take(request)
            if hold is None:
                self._keep(request, 0)
                return False
            request.holds.append(hold)
        self._keep(request, request.want)
        return True

    def cancel(self, request: Demand) -> None:
        """Gives up a request, granted or not, and gives back what it holds. Doing so again is no error."""
        if not request.is_granted and request in self._lanes.get(limit := request.waits_in, ()):
            self._lanes[limit].remove(request)
            self._drop_empty(limit)
            self.freed[limit] = None
        self._keep(request, 0)

    def settle(self, hold: Hold, amount: int) -> None:
        """Lets a hold be this much; who may go on by that is found by `look`."""
        self.free(hold.limit.settle(hold, amount))

    def free(self, limits: Iterable[AdmissionLimit]) -> None:
        """More may pass in these limits; who may go on by that is found by `look`."""
        if self._lanes:
            self.freed.update(dict.fromkeys(limits))

    def look(self) -> list[Demand]:
        """Lets go on who can where something was freed, limit by limit; returns the requests that are granted."""
        done: list[Demand] = []
        while self.freed:
            freed = sorted((each for each in self.freed if each in self._lanes), key=self._rank)
            self.freed.clear()
            for limit in freed:
                self._look_in(limit, done)
        return done

    def _look_in(self, limit: AdmissionLimit, done: list[Demand]) -> None:
        while (request := self.first(limit)) is not None and (hold := limit.take(request)) is not None:
            del self._lanes[limit][0]
            self._drop_empty(limit)
            request.holds.append(hold)
            if self._go_on(request):
                done.append(request)

    def _go_on(self, request: Demand) -> bool:
        while not request.is_granted:
            limit = request.waits_in
            hold = None if self._is_behind(limit, request) else limit.take(request)
            if hold is None:
                self._wait(limit, request)
                return False
            request.holds.append(hold)
        self._keep(request, request.want)
        return True

    def _is_behind(self, limit: AdmissionLimit, request: Demand) -> bool:
        """Whether somebody waits who is not to be passed by."""
        first = self.first(limit)
        return first is not None and _RANKS[first.priority] <= _RANKS[request.priority]

    def _wait(self, limit: AdmissionLimit, request: Demand) -> None:
        lane = self._lanes.setdefault(limit, [])
        place = len(lane)
        while place and _RANKS[lane[place - 1].priority] > _RANKS[request.priority]:
            place -= 1
        lane.insert(place, request)
        self._on_wait(request)

    def _drop_empty(self, limit: AdmissionLimit) -> None:
        if not self._lanes[limit]:
            del self._lanes[limit]

    def _keep(self, request: Demand, amount: int) -> None:
        """Gives back what a request holds beyond an amount, of each limit; of nothing it forgets its holds."""
        for hold in request.holds:
            if hold.amount > amount:
                self.settle(hold, amount)
        if not amount and not request.is_granted:
            request.holds.clear()


# ------------------------------------------------------------------------------------------- turning back


@dataclass(frozen=True, slots=True)
class Shortage:
    """A bound of `limit` bytes with `held` taken, where a shard of this priority needs `need` more."""

    limit: int
    held: int
    need: int
    priority: Priority


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """A shard's unsent pages: their bytes, the oldest first."""

    priority: Priority
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TurnBack:
    """How many bytes are to be freed; how many of its newest pages each shard turns back, and what that frees."""

    to_free: int
    pages: Mapping[str, int]
    freed: int


def pages_to_turn_back(shards: Mapping[str, ReadAhead], short: Shortage, watermark: Fraction) -> TurnBack:
    """Plans which pages are turned back, from the lowest priority up, never of the asker's own or a higher one.

    Down to the watermark, a part of the limit, so that not each request turns something back. Less than is to be freed
    may come of it: then the asker waits.
    """
    missing = short.held + short.need - short.limit
    if missing <= 0:
        return TurnBack(0, {}, 0)
    to_free = max(missing, short.held - int(watermark * short.limit))
    chosen: dict[str, int] = {}
    freed = 0
    for lower in reversed(_ORDER[_RANKS[short.priority] + 1 :]):
        if freed >= to_free:
            break
        these = {name: each.pages for name, each in shards.items() if each.priority is lower and each.pages}
        counts = _of_one_priority(these, to_free - freed)
        chosen.update(counts)
        freed += sum(sum(these[name][-count:]) for name, count in counts.items())
    return TurnBack(to_free, chosen, freed)


def _of_one_priority(shards: Mapping[str, Sequence[int]], to_free: int) -> dict[str, int]:
    """How many pages the largest shards turn back, which have at least half of all bytes; each by its part."""
    sizes = {name: sum(pages) for name, pages in shards.items()}
    whole = sum(sizes.values())
    taken: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if 2 * sum(taken.values()) >= whole:
            break
        taken[name] = sizes[name]
    most = sum(taken.values())
    counts = {name: _newest(shards[name], to_free * size // most) for name, size in taken.items()}
    return {name: count for name, count in counts.items() if count}


def _newest(pages: Sequence[int], least: int) -> int:
    """How many of the newest pages have at least `least` bytes together."""
    count = freed = 0
    while freed < least and count < len(pages):
        count += 1
        freed += pages[-count]
    return count
