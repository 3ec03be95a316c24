"""Destinations that fail: attempts at each shard's own back-off, errors in windows, and who leaves them alone.

An attempt at a destination that is down ends at once, as where its brokers are unavailable. The first one that
succeeds ends the outage for all shards of that destination in the worker, as the daemon's news of it does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from remora.model.shard import Shard
from remora.policy.delivery.retry import Backoff
from remora.policy.ownership.quarantine import Quarantine, QuarantineOptions
from remora_pipeline.simulate.fleet.worker import FleetWorker

UNAVAILABLE = "unavailable"
BACKOFF = Backoff(base_s=0.1, cap_s=30.0)
WHOLE_SECOND_S = 1


@dataclass(frozen=True, slots=True)
class Troubles:
    """How many destinations the shards go to, and when workers leave one alone that fails in a window."""

    destinations: int
    options: QuarantineOptions
    interval_s: float


@dataclass(slots=True)
class QuarantineTally:
    """What was counted since a run began: entries into quarantines in all, in each window, and releases by second."""

    entered: int = 0
    by_window: Counter[int] = field(default_factory=Counter)
    released_at: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Trouble:
    """One worker's shards of one destination that fails it, each with its attempts in a row.

    While the worker has the destination in quarantine, the shard `alone` goes on trying, and the others wait.
    """

    failures: dict[Shard, int] = field(default_factory=dict)
    alone: Shard | None = None
    waiting: dict[Shard, None] = field(default_factory=dict)


class Clock(Protocol):
    """The virtual time."""

    now: float

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Let something happen."""
        ...


class FleetOutages:
    """See the module."""

    def __init__(self, clock: Clock, troubles: Troubles, shards: int, chance: random.Random) -> None:
        """The first shards go to the first destination, and so on; all destinations have equally many."""
        self.tally = QuarantineTally()
        self._clock = clock
        self._options = troubles.options
        self._interval_s = troubles.interval_s
        self._destinations = troubles.destinations
        self._shards = shards
        self._chance = chance
        self._down_until: dict[int, float] = {}
        self._quarantines: dict[str, Quarantine] = {}
        self._windows: dict[str, float] = {}
        self._troubles: dict[tuple[str, int], Trouble] = {}

    def fail(self, count: int, seconds: float, workers: Mapping[str, FleetWorker], places: Mapping[Shard, int]) -> None:
        """`count` more destinations fail from now on: the first ones that do not already."""
        up = [each for each in range(self._destinations) if not self.is_down(each)]
        for destination in up[:count]:
            self._down_until[destination] = self._clock.now + seconds
        for worker in workers.values():
            for shard in worker.owned:
                self.came(worker, shard, places[shard])

    def is_down(self, destination: int) -> bool:
        """Whether it fails now."""
        return self._clock.now < self._down_until.get(destination, 0.0)

    def came(self, worker: FleetWorker, shard: Shard, place: int) -> None:
        """A worker has a shard, and sends what is in it, if anything is."""
        destination = place * self._destinations // self._shards
        if not self.is_down(destination) or not worker.owned[shard].has_work:
            return
        trouble = self._troubles.setdefault((worker.cookie, destination), Trouble())
        if shard not in trouble.failures:
            trouble.failures[shard] = 0
            self._attempt(worker, shard, destination, trouble)

    def in_quarantine(self, workers: Mapping[str, FleetWorker]) -> int:
        """How many quarantines there are, of all workers and destinations."""
        now = self._clock.now
        return sum(len(each.until(now)) for cookie, each in self._quarantines.items() if cookie in workers)

    def _attempt(self, worker: FleetWorker, shard: Shard, destination: int, trouble: Trouble) -> None:
        """Try; and after a failure again, unless another shard tries for all."""
        if self._troubles.get((worker.cookie, destination)) is not trouble or shard not in trouble.failures:
            return
        if worker.is_dead or shard not in worker.owned:
            del trouble.failures[shard]
            trouble.waiting.pop(shard, None)
            if trouble.alone == shard:
                self._resume(worker, destination, trouble)
            return
        name, now, quarantine = str(destination), self._clock.now, self._quarantine(worker)
        if not quarantine.is_quarantined(name, now):
            self._resume(worker, destination, trouble)
        elif trouble.alone not in (None, shard):
            trouble.waiting[shard] = None
            return
        else:
            trouble.alone = shard
        if not self.is_down(destination):
            if quarantine.succeeded(name, now):
                self._released(now)
            del self._troubles[worker.cookie, destination]
            return
        trouble.failures[shard] += 1
        quarantine.error(name, UNAVAILABLE)
        pause_s = BACKOFF.delay(trouble.failures[shard], self._chance.random())
        self._clock.at(now + pause_s, partial(self._attempt, worker, shard, destination, trouble))

    def _resume(self, worker: FleetWorker, destination: int, trouble: Trouble) -> None:
        """There is no quarantine any more: shards that waited for its end try again."""
        waiting, trouble.waiting, trouble.alone = list(trouble.waiting), {}, None
        for shard in waiting:
            self._clock.at(self._clock.now, partial(self._attempt, worker, shard, destination, trouble))

    def _quarantine(self, worker: FleetWorker) -> Quarantine:
        """The worker's; its windows follow each other from a moment of its own."""
        if worker.cookie not in self._quarantines:
            self._quarantines[worker.cookie] = Quarantine(self._options)
            self._clock.at(self._clock.now + self._chance.random() * self._interval_s, partial(self._close, worker))
        return self._quarantines[worker.cookie]

    def _close(self, worker: FleetWorker) -> None:
        """A window of a worker ends."""
        if worker.is_dead:
            return
        now, quarantine = self._clock.now, self._quarantines[worker.cookie]
        for until in quarantine.until(now - self._interval_s).values():
            if until <= now:
                self._released(until)
        chance = {str(destination): self._chance.random() for destination in range(self._destinations)}
        closed = quarantine.close(now, chance)
        self.tally.entered += len(closed.entered)
        self.tally.by_window[int(now // self._interval_s)] += len(closed.entered)
        self._clock.at(now + self._interval_s, partial(self._close, worker))

    def _released(self, at: float) -> None:
        self.tally.released_at[int(at // WHOLE_SECOND_S)] += 1
