"""Balances by load: measures what this worker does, and plans which of its shards go to others for it.

Each worker plans for itself from the rows of all, `policy.shedding` decides, and the rebalancer carries out the moves
as it does those that even out numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from remora.engine.ownership.situation import Situation
from remora.engine.ownership.worker_info import Meters
from remora.metrics import Telemetry
from remora.model.shard import Shard
from remora.policy.ownership.loads import Due, Mean, Own, Round, Said, is_news, next_offers, round_of
from remora.policy.ownership.membership import POLL_S, Announced, Membership, Outgoing
from remora.policy.ownership.shedding import next_history, usage_of
from remora.policy.ownership.view import View

SAMPLE_S = 10.0
"""The pause between two samples; not more than that between two rounds."""


class Shedder:
    """See the module."""

    def __init__(self, situation: Situation, meters: Meters, telemetry: Telemetry) -> None:
        self._situation = situation
        self._meters = meters
        self._telemetry = telemetry
        self._percents: Mapping[str, float] = {}
        self._usage = 0.0
        self._history: float | None = None
        self._means: dict[Shard, Mean] = {}
        self._due: dict[Shard, Due] = {}
        self._is_round_due = False
        now = asyncio.get_running_loop().time()
        self._sampled_at = self._planned_at = now
        self._taken_in = meters.taken_in()
        self._said = Said(Announced(), now, 0)

    async def run(self) -> None:
        """Sample and plan again and again."""
        now = asyncio.get_running_loop().time
        while True:
            settings = self._meters.settings
            await asyncio.sleep(min(SAMPLE_S, settings.interval_s))
            self.sample(now())
            if self._meters.settings.by_load and now() - self._planned_at >= self._meters.settings.interval_s:
                self._is_round_due = True  # at the next look, which is soon, or one of many that must stay rare

    def offers(self, view: View, on_offer: Mapping[Shard, Outgoing]) -> Mapping[Shard, Outgoing]:
        """What to offer now for its load, or because a command asks for it, beside what is on offer already.

        Called right after the rows were read: a round that is due is done then, so that it knows what others have on
        offer, and they read of what it offers before they plan.
        """
        members, now = view.members, view.now
        if self._is_round_due:
            self._is_round_due = False
            self.plan(now)
        self._due = {shard: due for shard, due in self._due.items() if self._may_give(view, shard)}
        if members.draining or members.leaving:
            return {}
        takers = {each.cookie for each in members.active}
        asked = {shard: self._asked(shard, to) for shard, to in members.asked.items() if self._may_give(view, shard)}
        offers = {
            shard: Outgoing(each.to, now, load=each.load, bytes=each.bytes)
            for shard, each in asked.items()
            if shard not in on_offer and each.to in takers
        }
        if members.is_steady(now):
            offers |= next_offers(self._due, {**on_offer, **offers}, takers, now)
        return offers

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The destinations that this worker leaves to others."""
        return self._meters.quarantined()

    def sample(self, now: float) -> None:
        """Measure, and have the row say so where that is news."""
        meters, settings, members = self._meters, self._meters.settings, self._members
        elapsed_s, self._sampled_at = now - self._sampled_at, now
        passed, taken_in = meters.traffic.take(), meters.taken_in()
        came, self._taken_in = taken_in - self._taken_in, taken_in
        if not settings.by_load:
            self._forget()
            return
        if elapsed_s <= 0:
            return
        limits = meters.limits(settings)
        network = limits.network * elapsed_s
        self._percents = {
            **meters.probe(limits),
            "held": 100 * meters.held(),
            "network_in": 100 * (passed.read + came) / network if network else 0.0,
            "network_out": 100 * passed.acknowledged / network if network else 0.0,
        }
        self._usage = usage_of(self._percents, settings.weights)
        owned = self._situation.roster.owned
        self._means = {
            shard: self._means.get(shard, Mean()).with_sample(passed.shards.get(shard, 0) / elapsed_s)
            for shard in {**self._means, **passed.shards}
            if shard in owned
        }
        self._history = self._usage if self._history is None else self._history
        self._telemetry.usage(self._percents, self._history)
        load = Announced(self._usage, self._history, sum(each.value for each in self._means.values()))
        said = Said(load, now, len(owned))
        if is_news(replace(self._said, load=members.load), said):  # shards that came have raised what the row says
            self._said = said
            self._situation.members = replace(members, load=load)
            if members.look_s <= POLL_S:
                self._situation.poll_soon.set()

    def plan(self, now: float) -> None:
        """Do a round: history goes on, and what it moves is offered from now on."""
        self._planned_at = now
        if self._history is None or self._members.draining or self._members.leaving:
            return
        self._history = next_history(self._history, self._usage, self._meters.settings.options.history)
        done = self._round(self._history, now)
        self._due = dict(done.moves)
        if done.skipped:
            self._telemetry.balance_skipped(done.skipped)
        if done.moves:
            self._telemetry.sheds(len(done.moves), done.needed, self._usage, done.average)

    def status(self) -> dict[str, Any]:
        """What this worker does, and what a round would have it do now; changes nothing."""
        settings, now = self._meters.settings, asyncio.get_running_loop().time()
        status: dict[str, Any] = {"strategy": settings.strategy, "skew": self._members.row(()).skew}
        if not settings.by_load or self._history is None:
            return status
        history = next_history(self._history, self._usage, settings.options.history)
        done = self._round(history, now)
        return status | {
            "limits": asdict(self._meters.limits(settings)),
            "resources": {name: round(percent / 100, 4) for name, percent in self._percents.items()},
            "usage": round(self._usage, 4),
            "history": round(history, 4),
            "average": round(done.average, 4),
            "bytes_per_second": round(sum(each.value for each in self._means.values())),
            "needed_bytes_per_second": round(done.needed),
            "skipped": done.skipped,
            "moves": [
                {"queue": shard.queue, "origin": str(shard.origin), "to": due.to, "bytes_per_second": round(due.bytes)}
                for shard, due in done.moves.items()
            ],
        }

    @property
    def _members(self) -> Membership:
        return self._situation.members

    def _round(self, history: float, now: float) -> Round:
        members, owned = self._members, self._situation.roster.owned
        shards = {
            shard: self._means[shard].value if shard in self._means else 0.0
            for shard, each in owned.items()
            if not each.is_leaving and shard not in members.offers
        }
        gone = [each for shard, each in members.offers.items() if each.load is not None and shard not in self._means]
        nbytes = sum(each.value for each in self._means.values()) + sum(each.bytes for each in gone)
        own = Own(members.cookie, self._usage, history, shards, members.moved, nbytes)
        return round_of(own, members.rows(owned), self._meters.settings.options, now)

    def _may_give(self, view: View, shard: Shard) -> bool:
        owned = view.owned.get(shard)
        return owned is not None and not owned.is_leaving

    def _asked(self, shard: Shard, to: str) -> Due:
        """A shard that a command moves; the part of the load that goes with it is as last measured."""
        nbytes, total = self._means.get(shard, Mean()).value, sum(each.value for each in self._means.values())
        return Due(to, nbytes / total * self._usage if total else 0.0, nbytes)

    def _forget(self) -> None:
        """Load counts no more: the row says nothing of it."""
        if self._history is not None:
            self._telemetry.usage_unknown()
        self._percents, self._history, self._means, self._due = {}, None, {}, {}
        if self._members.load.usage is not None:
            self._situation.members = replace(self._members, load=Announced())
