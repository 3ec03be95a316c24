"""A simulated host: shaper, shared memory, credit and waiting in one process; workers and settings come and go."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from remora.config import ShapingSettings
from remora.model.traffic import BUCKETS, Priority, limit_of
from remora.policy.admission.limits import CreditLimit
from remora.policy.admission.line import Demand, WaitingLine
from remora.policy.shaping.cells import PRIORITIES, MemberAccount
from support.credit import Host, a_host, a_meter, shaping

SEEDS = int(os.environ.get("REMORA_DEALING_SEEDS", "20"))
"""How many schedules are tried."""

PLACES = 4
STEPS = 150
TICK_S = 0.01
GROUP = "uplink"

LEAST = 1_000
"""The rate of each priority in the end, so that all of them are to be served then."""

PATIENCE_S = 5
"""In this time everybody is served whose priority has a rate, once nothing happens any more."""


@dataclass
class Worker:
    """A worker's part: who waits, what is granted and not given back, and what it was granted in all."""

    line: WaitingLine
    limits: dict[str, CreditLimit]
    granted: list[tuple[str, int]] = field(default_factory=list)
    asked: int = 0


class Schedule:
    """One run: everything that happens is drawn from a seed, and the sum is checked after each step."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.settings = self.some_settings()
        self.host = Host(self.settings, PLACES, seed=seed)
        self.workers: dict[int, Worker] = {place: self.a_worker(place) for place in range(PLACES)}
        self.begin_account()

    def some_settings(self) -> ShapingSettings:
        """Rates, bursts and maxima of any size; at times disabled, adaptive, or without any scope."""
        chance = self.chance

        def meter() -> tuple[int, int, int | None]:
            rate = chance.choice((0, LEAST, 40_000, 3_000_000))
            return rate, chance.choice((1, 500, 10_000, 200_000)), chance.choice((None, None, rate + 5_000))

        meters = {
            name: a_meter(*meter()) for name in chance.sample([*PRIORITIES, "priority_queue"], chance.randint(1, 7))
        }
        scope = replace(a_host(**meters), enabled=chance.random() < 0.9, adaptive=chance.random() < 0.3)
        return shaping(*([scope] if chance.random() < 0.95 else []), tick_s=chance.choice((0.001, TICK_S, 0.1)))

    def a_worker(self, place: int) -> Worker:
        """A worker that has just come, and knows the groups that there are."""
        accounts: dict[str, MemberAccount] = {}
        if GROUP in self.host.shaper.slots:
            accounts[GROUP] = self.host.account(place)
        return Worker(
            WaitingLine(), {each: CreditLimit(GROUP, each, accounts) for each in PRIORITIES} if accounts else {}
        )

    def begin_account(self) -> None:
        """From now on count what is dealt out, what is granted, and the debts of workers that ended."""
        self.held_before, self.dealt, self.out, self.forgiven = self.held(), 0.0, 0, 0

    def held(self) -> int:
        """All credit that the group has: in its buckets, given back, and left over."""
        found = 0
        for group in self.host.shaper.groups.values():
            for tier in group.tiers.values():
                found += tier.last_over + tier.cur_over + sum(each.level + each.returned for each in tier.purses)
        return found

    # ------------------------------------------------------------------------------ what can happen

    def step(self) -> None:
        """Something happens, and the sum holds."""
        weights = {
            self.ask: 8,
            self.tick: 8,
            self.give_back: 3,
            self.die: 1,
            self.come: 2,
            self.reload: 1,
            self.sleep: 1,
        }
        self.chance.choices([*weights], [*weights.values()])[0]()
        self.check()

    def ask(self, place: int | None = None, priority: str = "", want: int = 0) -> None:
        """A listing wants credit."""
        if not self.workers or GROUP not in self.host.shaper.slots:
            return
        place = self.chance.choice([*self.workers]) if place is None else place
        worker = self.workers[place]
        worker.asked += 1
        want = want or self.chance.choice((1, 500, 40_000, 1_000_000))
        chosen = Priority(priority or self.chance.choice(PRIORITIES))
        request = Demand(chosen, (worker.limits[chosen],), want, self.chance.randint(1, want))
        if worker.line.ask(request):
            self.grant(worker, request)

    def grant(self, worker: Worker, request: Demand) -> None:
        if any(each.is_charged for each in request.holds):
            worker.granted.append((request.priority, request.want))
            self.out += request.want

    def give_back(self) -> None:
        """What was granted turns out to be worth less, or more."""
        for place, worker in self.workers.items():
            if worker.granted and GROUP in self.host.shaper.slots:
                priority, nbytes = worker.granted.pop()
                account = self.host.account(place)
                if not account.enabled:
                    continue
                if self.chance.random() < 0.5:
                    account.release(priority, nbytes)
                    self.out -= nbytes
                else:
                    account.charge(priority, more := self.chance.choice((0, nbytes)))
                    self.out += more

    def tick(self) -> None:
        """Time goes by, and who can go on does."""
        self.pass_by(self.chance.choice((1, 1, 5)))

    def sleep(self) -> None:
        """So much time that groups fall asleep."""
        self.pass_by(200)

    def pass_by(self, ticks: int) -> None:
        self.host.tick(ticks)
        limit = sum(limit_of(each.by_bucket) for each in self.settings.scope)
        self.dealt += ticks * (limit * self.settings.tick_s + len(BUCKETS))  # a remainder may begin anew in each tick
        self.release()

    def release(self) -> None:
        for worker in self.workers.values():
            worker.line.free(list(worker.line.waited_in))
            for request in worker.line.look():
                self.grant(worker, request)

    def die(self) -> None:
        """A worker ends, with whatever it holds; at times all of them do."""
        for place in self.chance.sample(
            [*self.workers], self.chance.choice((1, 1, 1, len(self.workers))) if self.workers else 0
        ):
            del self.workers[place]
            for name in self.host.shaper.groups:
                self.forgiven += sum(max(0, -self.host.level(place, priority, name)) for priority in PRIORITIES)
            self.host.shaper.remove(place)

    def come(self) -> None:
        """A worker comes into an empty place."""
        away = [place for place in range(PLACES) if place not in self.workers]
        if away:
            place = self.chance.choice(away)
            self.host.shaper.add(place)
            self.workers[place] = self.a_worker(place)

    def reload(self, settings: ShapingSettings | None = None) -> None:
        """Other settings: what waits in a group that is no more is let go, as the workers do it."""
        self.settings = settings or self.some_settings()
        had = GROUP in self.host.shaper.slots
        self.host.shaper.configure(self.settings)
        if had != (GROUP in self.host.shaper.slots):
            self.workers = {place: self.a_worker(place) for place in self.workers}
        self.begin_account()
        self.release()

    # -------------------------------------------------------------------------------- what must hold

    def check(self) -> None:
        """What workers see is what the buckets hold, and all of it, with all that was granted, was dealt out."""
        shaper = self.host.shaper
        assert sorted(shaper._places) == sorted(self.workers)
        assert {*shaper.slots} == {each.name for each in self.settings.scope}
        for name, group in shaper.groups.items():
            for priority in PRIORITIES:
                seen = [self.host.level(place, priority, name) for place in shaper._places]
                assert seen == group.tiers[priority].levels, priority
        assert self.out + self.held() <= self.held_before + self.dealt + self.forgiven

    def comes_to_rest(self) -> None:
        """In the end all workers are there, every priority has a rate, and nothing changes any more: everybody who asks
        is served again and again, and together they get the whole rate."""
        while len(self.workers) < PLACES:
            self.come()
        self.reload(shaping())
        self.reload(shaping(a_host(**dict.fromkeys(PRIORITIES, a_meter(LEAST, 10_000))), tick_s=TICK_S))
        served: Counter[tuple[int, str]] = Counter()
        for _ in range(round(PATIENCE_S / TICK_S)):
            for place, worker in self.workers.items():
                for priority in PRIORITIES:
                    if not worker.line.waiting(worker.limits[priority]):
                        self.ask(place, priority, want=50)
                        served[place, priority] += 1
            self.pass_by(1)
            self.check()
        assert min(served[place, priority] for place in self.workers for priority in PRIORITIES) > PATIENCE_S
        assert self.out + self.held() >= LEAST * len(PRIORITIES) * (PATIENCE_S - 0.1)


@pytest.mark.parametrize("part", range(4))
def test_the_sum_holds_and_nobody_stalls(part: int) -> None:
    """Whatever workers and settings do, what workers see is what was dealt, and in the end everybody is served."""
    for seed in range(part, SEEDS, 4):
        schedule = Schedule(seed)
        try:
            for _ in range(STEPS):
                schedule.step()
            schedule.comes_to_rest()
        except Exception as exc:
            exc.add_note(f"seed {seed}")
            raise
