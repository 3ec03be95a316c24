"""One worker of a fleet: it announces itself, reads the rows, and does its part of what the policies decide.

It follows `engine/ownership`, with the same policies in the same order. What a policy would decide from rows in which
nothing changed for this worker is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from remora.model.shard import Shard
from remora.policy.ownership import loads, shedding
from remora.policy.ownership.assignment import transfers
from remora.policy.ownership.balance import own_part_first
from remora.policy.ownership.loads import Due, Mean, Own, Said
from remora.policy.ownership.membership import Announced, Membership, Outgoing, expecting, offered_to
from remora.policy.ownership.view import View
from remora_pipeline.simulate.fleet.board import Board, Others

ROW_TTL_S = 10.0
LOOKS_IN_TTL = 4
"""A row counts for this time and at least for this many looks."""

NOTHING_MEASURED = Mean()
SAMPLE_S = 10.0
NEAR = 1e-3
"""A running mean that is so near to what is offered has reached it."""

CLEARLY = 1e-6
"""So far from an edge that the order in which fractions are added cannot matter."""


@dataclass(slots=True)
class Held:
    """A shard that a worker owns; `mean` is of its bytes per second."""

    offered: float
    mean: Mean = NOTHING_MEASURED
    is_leaving: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing comes in."""
        return not self.offered

    @property
    def has_work(self) -> bool:
        """Whether something comes in."""
        return bool(self.offered)

    @property
    def is_settled(self) -> bool:
        """Whether further samples change nothing."""
        return self.mean.value == self.offered and self.mean.samples > 0


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What all workers of a fleet have in common. `balance` is None where shards move by their number only.

    With `is_thrifty` a worker does not ask a policy again whose answer is known; without it every look asks all.
    """

    balance: shedding.Options | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    interval_s: float = 60.0
    worker_bytes: float = 100_000_000.0
    is_thrifty: bool = True


class Surroundings(Protocol):
    """What a worker does to the store, and what is counted."""

    now: float
    board: Board
    places: Mapping[Shard, int]

    def take(self, worker: FleetWorker, shard: Shard) -> bool:
        """Ask for a lock; whether it was free."""
        ...

    def free(self, shards: Mapping[Shard, None]) -> list[Shard]:
        """The shards of these whose locks are free."""
        ...

    def release(self, worker: FleetWorker, shard: Shard, to: str | None) -> None:
        """Finish what is under way and release the lock; for one worker, or for all."""
        ...

    def unpromised(self) -> list[Shard]:
        """The shards that are free for any worker."""
        ...

    def skipped(self, reason: str) -> None:
        """A round of balance by load gave nothing."""
        ...

    def has_drained(self, worker: FleetWorker) -> None:
        """A worker that drains owns nothing any more."""
        ...


class FleetWorker:
    """See the module."""

    def __init__(self, around: Surroundings, settings: FleetSettings, cookie: str, host: str) -> None:
        self.cookie = cookie
        self.host = host
        self.owned: dict[Shard, Held] = {}
        self.announced_at = around.now
        self.is_dead = False
        self.is_round_due = False
        """Whether the next look does a round of balance by load: right after the rows were read, so that others read of
        what it offers before they plan."""
        self.bytes = 0.0
        """What its shards are offered in a second."""
        self.planned_ratio = 0.0
        """What they were offered, as a part of what it can do, when a round last moved some of them."""
        self._around = around
        self._settings = settings
        self.members = Membership(cookie, host, Others(around.board, cookie), known=len(around.places))
        self._usage = 0.0
        self._history: float | None = None
        self._due: dict[Shard, Due] = {}
        self._crowd = -1
        self._version = -1
        self._has_changed = True
        self._said = Said(Announced(), around.now, 0)
        self._room = 0

    # ------------------------------------------------------------------------------ what it does, and what comes in

    @property
    def offered_ratio(self) -> float:
        """What its shards are offered, as a part of what it can do: above 1 it falls behind."""
        return self.bytes / self._settings.worker_bytes

    @property
    def is_settled(self) -> bool:
        """Whether further samples change nothing."""
        return all(each.is_settled for each in self.owned.values())

    def own(self, shard: Shard, offered: float) -> None:
        """A shard is this worker's from now on."""
        self.owned[shard] = Held(offered)
        self._shards_changed()

    def offer(self, shard: Shard, offered: float) -> None:
        """One of its shards is offered other bytes from now on."""
        self.owned[shard].offered = offered
        self._shards_changed()

    def sample(self) -> bool:
        """Measure what it does; whether its row is to say so at once."""
        for each in self.owned.values():
            if not each.is_settled:
                mean = each.mean.with_sample(each.offered)
                is_near = abs(mean.value - each.offered) < NEAR * each.offered
                each.mean = Mean(each.offered, mean.samples) if is_near else mean
        if self._settings.balance is None:
            return False
        # A processor is never busier than all the time, however much is offered.
        self._usage = shedding.usage_of({"cpu": min(100.0, 100 * self.offered_ratio)}, self._settings.weights)
        self._history = self._usage if self._history is None else self._history
        load = Announced(self._usage, self._history, sum(each.mean.value for each in self.owned.values()))
        said = Said(load, self._around.now, len(self.owned))
        if not loads.is_news(replace(self._said, load=self.members.load), said):
            return False
        self._said = said
        self.members = replace(self.members, load=load)
        self._has_changed = True
        return True

    # ------------------------------------------------------------------------------------- a look at the rows

    def begin(self) -> None:
        """Announce itself as one that has been there for long."""
        self.sample()
        self._crowd = self._around.board.crowd
        self.members = replace(self.members, steady_since=-1000.0)
        self._announce()

    def look(self) -> None:
        """Announce itself, read the rows, and do what follows from them."""
        around = self._around
        self._announce()
        if around.board.crowd != self._crowd:
            self._crowd = around.board.crowd
            self.members = replace(self.members, steady_since=around.now)
        self._receive()
        if self.is_round_due:
            self.is_round_due = False
            self._round()
        self._transfer()
        self._announce()
        self._aim()
        if self.members.draining and not self.owned and not self.members.offers:
            around.has_drained(self)

    def pause_s(self) -> float:
        """The pause before the next look."""
        return self.members.poll_again_s(self._around.now)

    def row_ttl_s(self) -> float:
        """How long its row counts."""
        return max(ROW_TTL_S, LOOKS_IN_TTL * self.members.look_s)

    def drain(self) -> None:
        """Give all shards away."""
        self.members = replace(self.members, draining=True, skew=0)
        self._has_changed = True

    def try_free(self) -> None:
        """Take what no worker has and no worker is promised, as far as there is room."""
        if self._room <= 0 or self.members.draining:
            return
        for shard in own_part_first(self._around.unpromised(), self._around.places, *self.members.rank):
            if self._room <= 0:
                break
            self._room -= self._around.take(self, shard)

    def released(self, shard: Shard) -> None:
        """What was under way for a shard is done, and its lock has been released."""
        del self.owned[shard]
        self._shards_changed()

    def _announce(self) -> None:
        """Write the row, with other figures where they are news."""
        around = self._around
        self.announced_at = around.now
        if self._settings.balance is not None and around.now - self._said.at > shedding.NEWS_AFTER_S:
            self.sample()
        if self._has_changed:
            self._has_changed = False
            around.board.write(self.members.row(self.owned))

    def _receive(self) -> None:
        """Expect what others offer, and ask for the locks of it."""
        board, now = self._around.board, self._around.now
        if self._settings.is_thrifty and not self.members.expects and not board.is_offered_something(self.cookie):
            return
        others = self.members.others
        seen = replace(self.members, others=board.offering_to(self.cookie))
        expected = expecting(seen, self.owned, set(offered_to(seen)), now)
        self.members = replace(expected, others=others)
        for shard in self._around.free(dict.fromkeys(expected.expects)):
            self._around.take(self, shard)
        self._has_changed = True

    def is_for_load(self, shard: Shard) -> bool:
        """Whether a shard that it expects comes for its load."""
        return shard in self.members.for_load

    def _transfer(self) -> None:
        """Offer, withdraw and release as planned."""
        if self._settings.is_thrifty and not self._has_to_plan():
            return
        around, members = self._around, self.members
        plan = transfers(View(around.now, around.places, self.owned, {}, members))
        offers, skew = dict(members.offers), members.skew
        for shard in plan.withdraw:
            withdrawn = offers.pop(shard)
            skew -= withdrawn.begun and withdrawn.load is not None
        for shard in plan.transfer:
            offers[shard] = replace(offers[shard], begun=True)
        offers |= {shard: members.outgoing(shard, to, around.now) for shard, to in plan.offer.items()}
        offers |= self._load_offers(offers)
        self.members = members.with_offers(offers, skew)
        for shard in (*plan.transfer, *plan.release):
            self.owned[shard].is_leaving = True
            around.release(self, shard, offers[shard].to if shard in offers else None)
        self._has_changed = True

    def _load_offers(self, offers: Mapping[Shard, Outgoing]) -> dict[Shard, Outgoing]:
        """Some of the shards that the last round moves."""
        staying = {
            shard: due for shard, due in self._due.items() if shard in self.owned and not self.owned[shard].is_leaving
        }
        takers = {each.cookie for each in self.members.active} if staying else set()
        offered = loads.next_offers(staying, offers, takers, self._around.now)
        self._due = {shard: due for shard, due in staying.items() if shard not in offered and shard not in offers}
        return offered

    def _has_to_plan(self) -> bool:
        """Whether a plan can say anything: where not, the rows hold nothing that moves a shard of this worker."""
        members, now, board = self.members, self._around.now, self._around.board
        if members.draining or self._due:
            return True
        for shard, out in members.offers.items():
            receiver = board.rows.get(out.to)
            if shard not in self.owned or receiver is None or receiver.draining:
                return True
            if not out.begun and (shard in receiver.expects or members.is_unheard(out, now)):
                return True
        fair = board.fair()
        return fair.counts[self.cookie] > fair.targets[self.cookie]

    def _aim(self) -> None:
        """How many shards it may still take."""
        board = self._around.board
        if board.version != self._version:
            self._version = board.version
            fair = board.fair()
            self._room = fair.targets[self.cookie] - fair.counts[self.cookie]

    def _shards_changed(self) -> None:
        self.bytes = sum(each.offered for each in self.owned.values())
        self._has_changed = True

    # ------------------------------------------------------------------------------------- a round by load

    def _round(self) -> None:
        """Plan which shards move for their load; looks offer them, some at a time."""
        options = self._settings.balance
        if options is None or self.members.draining:
            return
        self._history = shedding.next_history(self._history, self._usage, options.history)
        if reason := self._known_reason(self._history, options):
            self._due = {}
            self._around.skipped(reason)
            return
        shards = {
            shard: each.mean.value
            for shard, each in self.owned.items()
            if not each.is_leaving and shard not in self.members.offers
        }
        gone = [
            each for shard, each in self.members.offers.items() if each.load is not None and shard not in self.owned
        ]
        nbytes = sum(each.mean.value for each in self.owned.values()) + sum(each.bytes for each in gone)
        own = Own(self.cookie, self._usage, self._history, shards, self.members.moved, nbytes)
        done = loads.round_of(own, self.members.rows(self.owned), options, self._around.now)
        self._due = dict(done.moves)
        if self._due:
            self.planned_ratio = self.offered_ratio
        if done.skipped:
            self._around.skipped(done.skipped)

    def _known_reason(self, history: float, options: shedding.Options) -> str:
        """Why the round is sure to find that this worker gives nothing; empty where it has to be asked."""
        board, members = self._around.board, self.members
        if not self._settings.is_thrifty or options.lower_boundary:
            return ""
        if members.offers or board.is_offered_something(self.cookie):
            return ""
        means, row = board.means(), board.rows.get(self.cookie)
        if row is None or row.usage is None or means.workers < 2:
            return ""
        mean_usage = (means.usage - row.usage + self._usage) / means.workers
        mean_history = (means.history - row.history + history) / means.workers
        nbytes = sum(each.mean.value for each in self.owned.values())
        load = shedding.Load(self.cookie, self._usage, history, {}, nbytes)
        reasons = {
            shedding.need(load, mean_history + near, mean_usage + near, options)[1] for near in (-CLEARLY, CLEARLY)
        }
        return reasons.pop() if len(reasons) == 1 else ""
