"""The virtual time of a fleet: hosts that come and go, locks and their leases, and what is counted over a while."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from remora.model.shard import Shard
from remora.policy.ownership.assignment import TRANSFERRED_S
from remora.policy.ownership.lease import LeaseTimes
from remora_pipeline.simulate.fleet.board import Board
from remora_pipeline.simulate.fleet.offered import Offered
from remora_pipeline.simulate.fleet.outages import FleetOutages, QuarantineTally, Troubles
from remora_pipeline.simulate.fleet.worker import SAMPLE_S, FleetSettings, FleetWorker

HAND_OVER_S = 0.05
"""From the decision to release a lock until what was under way is done."""

CATALOGUE_S = 2.0
LEASE = LeaseTimes()


@dataclass(slots=True)
class FleetTally:
    """What was counted since a run began."""

    by_number: int = 0
    by_load: int = 0
    twice_in_grace: int = 0
    beyond_giver: int = 0
    read_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Lock:
    """Who holds a shard, or for whom it is kept until when."""

    holder: FleetWorker | None = None
    promised_to: str | None = None
    promised_until: float = 0.0
    giver_usage: float = 0.0
    moved_at: float | None = None


class World:
    """All workers, and the events to come in the order of their times."""

    def __init__(
        self,
        shards: Sequence[Shard],
        settings: FleetSettings,
        offered: Offered,
        troubles: Troubles,
        chance: random.Random,
    ) -> None:
        self.now = 0.0
        self.places: Mapping[Shard, int] = {shard: place for place, shard in enumerate(shards)}
        self.board = Board(len(shards))
        self.workers: dict[str, FleetWorker] = {}
        self.hosts: dict[str, list[FleetWorker]] = {}
        self.tally = FleetTally()
        self.outages = FleetOutages(self, troubles, len(shards), chance)
        self.chance = chance
        self._settings = settings
        self._offered = offered
        self._bytes = dict.fromkeys(shards, 0.0)
        self._factors: dict[Shard, float] = {}
        self._locks = {shard: Lock() for shard in shards}
        self._free: dict[Shard, None] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self._looks: dict[str, int] = {}
        self._sampled: set[str] = set()
        self._phase: dict[str, float] = {}

    # ------------------------------------------------------------------------------------------ time

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Let something happen, never before now."""
        self._made += 1
        heappush(self._events, (max(self.now, time), self._made, event))

    def run(self, seconds: float) -> FleetTally:
        """Let `seconds` go by; returns what was counted meanwhile."""
        self.tally = FleetTally()
        self.outages.tally = QuarantineTally()
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heappop(self._events)
            event()
        self.now = end
        return self.tally

    # ------------------------------------------------------------------------------------------ hosts

    def begin(self, hosts: int, workers: int) -> None:
        """All workers are up, and share the shards evenly."""
        made = [worker for _ in range(hosts) for worker in self._host(workers)]
        self._load()
        for shard, place in self.places.items():
            if made:
                worker = made[place % len(made)]
                self._locks[shard].holder = worker
                worker.own(shard, self._rate(shard))
        for worker in made:
            worker.begin()
        for worker in made:
            look_s = worker.pause_s()
            self._start(worker, self.chance.random() * look_s)
        if not made:
            self._set_free(list(self.places))

    def add(self, hosts: int, workers: int) -> None:
        """Further hosts, which begin with nothing."""
        for _ in range(hosts):
            for worker in self._host(workers):
                self._start(worker, 0.0)

    def remove(self, hosts: int) -> None:
        """Hosts end without a word: their rows count for a while, and their leases run out."""
        for worker in self._some_hosts(hosts):
            worker.is_dead = True
            del self.workers[worker.cookie]
            self.at(worker.announced_at + worker.row_ttl_s(), partial(self.board.remove, worker.cookie))
            since = (self.now - self._phase[worker.cookie]) % LEASE.renew_s
            shards = list(worker.owned)
            self.at(self.now - since + LEASE.lease_s, partial(self._lapse, worker, shards))

    def drain(self, hosts: int) -> None:
        """Hosts give their shards to the others, and end then."""
        for worker in self._some_hosts(hosts):
            worker.drain()
            self._look_soon(worker)

    def has_drained(self, worker: FleetWorker) -> None:
        """A worker that drains owns nothing any more: it ends, and takes its row with it."""
        worker.is_dead = True
        self.workers.pop(worker.cookie, None)
        self.board.remove(worker.cookie)

    def _host(self, workers: int) -> list[FleetWorker]:
        host = f"h{len(self.hosts):05}"
        made = [FleetWorker(self, self._settings, f"remora/{host}/{number:03}", host) for number in range(workers)]
        self.hosts[host] = made
        for worker in made:
            self.workers[worker.cookie] = worker
            self._phase[worker.cookie] = self.now - self.chance.random() * LEASE.renew_s
        return made

    def _some_hosts(self, count: int) -> list[FleetWorker]:
        """The workers of `hosts` hosts that are up and do not drain, drawn by chance."""
        up = [
            host
            for host, workers in self.hosts.items()
            if any(not each.is_dead and not each.members.draining for each in workers)
        ]
        drawn = sorted(self.chance.sample(up, min(count, len(up))))
        return [each for host in drawn for each in self.hosts[host] if not each.is_dead]

    def _start(self, worker: FleetWorker, first_look_s: float) -> None:
        self._look_at(worker, self.now + first_look_s)
        if self._settings.balance is not None:
            self.at(self.now + self.chance.random() * self._settings.interval_s, partial(self._round, worker))
        if self._free:
            self._try_free(worker)

    # ------------------------------------------------------------------------------------------ looks and rounds

    def _look_at(self, worker: FleetWorker, time: float) -> None:
        """Look then, and not at the time that was set before."""
        number = self._looks[worker.cookie] = self._looks.get(worker.cookie, 0) + 1
        self.at(time, partial(self._look, worker, number))

    def _look_soon(self, worker: FleetWorker) -> None:
        self._look_at(worker, self.now)

    def _look(self, worker: FleetWorker, number: int) -> None:
        if worker.is_dead or self._looks[worker.cookie] != number:
            return
        worker.look()
        self.tally.read_bytes += self.board.bytes
        if not worker.is_dead:
            self._look_at(worker, self.now + worker.pause_s())

    def _round(self, worker: FleetWorker) -> None:
        if worker.is_dead:
            return
        worker.is_round_due = True
        self._look_soon(worker)
        self.at(self.now + self._settings.interval_s, partial(self._round, worker))

    def skipped(self, reason: str) -> None:
        """A round of balance by load gave nothing."""
        self.tally.skipped[reason] += 1

    # ------------------------------------------------------------------------------------------ locks

    def take(self, worker: FleetWorker, shard: Shard) -> bool:
        """Ask for a lock; whether it was free, and kept for no other worker."""
        lock = self._locks[shard]
        if lock.holder is not None or (lock.promised_to not in (None, worker.cookie) and shard not in self._free):
            return False
        if lock.promised_to == worker.cookie:
            self._arrived(worker, shard, lock)
        lock.holder, lock.promised_to = worker, None
        self._free.pop(shard, None)
        worker.own(shard, self._rate(shard))
        self._sample_soon(worker)
        self.outages.came(worker, shard, self.places[shard])
        return True

    def free(self, shards: Mapping[Shard, None]) -> list[Shard]:
        """The shards of these whose locks are free."""
        return [shard for shard in shards if self._locks[shard].holder is None]

    def unpromised(self) -> list[Shard]:
        """The shards that are free for any worker."""
        return list(self._free)

    def release(self, worker: FleetWorker, shard: Shard, to: str | None) -> None:
        """Release a lock once what is under way is done."""
        self.at(self.now + HAND_OVER_S, partial(self._release, worker, shard, to))

    def _release(self, worker: FleetWorker, shard: Shard, to: str | None) -> None:
        if worker.is_dead:
            return
        lock = self._locks[shard]
        lock.giver_usage = worker.planned_ratio
        worker.released(shard)
        self._sample_soon(worker)
        lock.holder, lock.promised_to = None, to
        self._look_soon(worker)
        if to is None:
            self._set_free([shard])
        else:
            self.at(self.now + TRANSFERRED_S, partial(self._was_not_taken, shard, to))

    def _arrived(self, worker: FleetWorker, shard: Shard, lock: Lock) -> None:
        """A shard has moved from one worker to another."""
        if not worker.is_for_load(shard):
            self.tally.by_number += 1
            return
        self.tally.by_load += 1
        options = self._settings.balance
        if options is not None and lock.moved_at is not None and self.now - lock.moved_at < options.grace_s:
            self.tally.twice_in_grace += 1
        lock.moved_at = self.now
        usage = worker.offered_ratio + self._rate(shard) / self._settings.worker_bytes
        self.tally.beyond_giver += usage > lock.giver_usage + 1e-9

    def _was_not_taken(self, shard: Shard, to: str) -> None:
        lock = self._locks[shard]
        if lock.holder is None and lock.promised_to == to:
            self._set_free([shard])

    def _lapse(self, worker: FleetWorker, shards: Sequence[Shard]) -> None:
        """The leases of a worker that has ended run out."""
        lapsed = [shard for shard in shards if self._locks[shard].holder is worker]
        for shard in lapsed:
            self._locks[shard].holder = None
        self._set_free(lapsed)

    def _set_free(self, shards: Sequence[Shard]) -> None:
        """Locks that any worker may take; all try at their next reading of the catalogue."""
        was_empty = not self._free
        self._free.update(dict.fromkeys(shards))
        if was_empty and self._free:
            for worker in list(self.workers.values()):
                self.at(self.now + self.chance.random() * CATALOGUE_S, partial(self._try_free, worker))

    def _try_free(self, worker: FleetWorker) -> None:
        if worker.is_dead or not self._free:
            return
        worker.try_free()
        self.at(self.now + CATALOGUE_S, partial(self._try_free, worker))

    # ------------------------------------------------------------------------------------------ bytes

    def burst(self, shards: int, factor: float, seconds: float) -> None:
        """Some shards are offered a multiple for a while."""
        drawn = self.chance.sample(list(self.places), min(shards, len(self.places)))
        self._multiply(drawn, factor)
        self.at(self.now + seconds, partial(self._multiply, drawn, 1 / factor))

    def fail(self, destinations: int, seconds: float) -> None:
        """Some destinations fail for a while."""
        self.outages.fail(destinations, seconds, self.workers, self.places)

    def rates(self) -> Mapping[Shard, float]:
        """What each shard is offered in a second now."""
        return {shard: self._rate(shard) for shard in self.places}

    def unowned(self) -> int:
        """The shards that no live worker owns."""
        return len(self.places) - sum(len(each.owned) for each in self.workers.values())

    def _rate(self, shard: Shard) -> float:
        return self._bytes[shard] * self._factors.get(shard, 1.0)

    def _multiply(self, shards: Sequence[Shard], factor: float) -> None:
        for shard in shards:
            self._factors[shard] = self._factors.get(shard, 1.0) * factor
            self._offer(shard)

    def _load(self) -> None:
        """What is offered changes now, and again when the law or the trace says so."""
        for shard, rate in self._offered.at(self.now):
            self._bytes[shard] = rate
            self._offer(shard)
        again = self._offered.next_change(self.now)
        if again is not None:
            self.at(again, self._load)

    def _offer(self, shard: Shard) -> None:
        holder = self._locks[shard].holder
        if holder is None or holder.is_dead:
            return
        holder.offer(shard, self._rate(shard))
        self._sample_soon(holder)
        self.outages.came(holder, shard, self.places[shard])

    def _sample_soon(self, worker: FleetWorker) -> None:
        """Something has changed that the worker's next sample finds; while nothing does, none is taken."""
        if worker.cookie not in self._sampled:
            self._sampled.add(worker.cookie)
            since_s = (self.now - self._phase[worker.cookie]) % SAMPLE_S
            self.at(self.now + SAMPLE_S - since_s, partial(self._sample, worker))

    def _sample(self, worker: FleetWorker) -> None:
        self._sampled.discard(worker.cookie)
        if worker.is_dead:
            return
        if worker.sample():
            self._look_soon(worker)
        if not worker.is_settled:
            self._sample_soon(worker)
