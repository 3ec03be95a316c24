"""What this worker sees at a moment: its shards, the catalogue, and the other workers; and signals of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from remora.engine.catalogue import Catalogue
from remora.engine.ownership.roster import Roster
from remora.engine.ownership.worker_info import WorkerInfo
from remora.model.shard import Shard
from remora.policy.assignment import seems_short
from remora.policy.membership import Membership
from remora.policy.not_owned import reason_to_leave
from remora.policy.view import View

MOST_NAMED = 100
"""Queues that are named in the log one by one when they are acquired and released."""


class Situation:
    """Makes the views that plans are made of. `members` is replaced as a whole."""

    def __init__(
        self, roster: Roster, catalogue: Catalogue, members: Membership, worker: WorkerInfo, interval_s: float
    ) -> None:
        """`interval_s` is between two readings of the catalogue."""
        self.roster = roster
        self.members = members
        self.reaped: set[Shard] = set()
        """Shards whose locks were broken because their owner had ended, until the next plan."""
        self.plan_soon = asyncio.Event()
        """Something may be free."""
        self.poll_soon = roster.transferred
        """The other workers wait to see something in this one's row, or this one in theirs."""
        self._catalogue = catalogue
        self._worker = worker
        self._interval_s = interval_s
        self._seen: tuple[object, object, object] = (None, None, None)
        self._shards: Mapping[Shard, int] = {}
        self._foreign: Mapping[Shard, str] = {}
        self._short_readings = 0
        self._asked_for: tuple[object, ...] = (None,) * 5
        self._quarantined: Mapping[Shard, str] = {}
        self._is_stale = True

    def view(self, *, changed: bool = False) -> View:
        """What this worker sees now."""
        return View(
            now=asyncio.get_running_loop().time(),
            shards=self._shards,
            owned=self.roster.owned,
            observed=self.roster.observed,
            members=self.members,
            released=self._catalogue.released,
            foreign=self._foreign,
            changed=changed,
            short_readings=self._short_readings,
            quarantined=self._in_quarantine(),
            interval_s=self._interval_s,
        )

    @property
    def has_news(self) -> bool:
        """Whether the catalogue says something else than it did at the last `review`."""
        return any(new is not old for new, old in zip(self._reading, self._seen, strict=True))

    def reap(self, shards: Iterable[Shard]) -> None:
        """The locks of these shards were broken because their owner has ended: plan anew, for all."""
        for shard in shards:
            self.roster.observed.pop(shard, None)
            self.reaped.add(shard)
        self.judge_anew()

    def judge_anew(self) -> None:
        """Which shards are this worker's to own is no more what it was: plan anew, for all."""
        self._is_stale = True
        self.plan_soon.set()

    def review(self) -> bool:
        """Take over what the catalogue says now; returns whether anything has changed since the last time."""
        changed = self._is_stale or self.has_news
        self._seen, self._is_stale = self._reading, False
        if changed:
            self._shards = {shard: place for place, shard in enumerate(self._catalogue.shards)}
            self._foreign = {shard: why for shard in self._shards if (why := self._reason(shard)) is not None}
            self.roster.named = len(self._shards) <= MOST_NAMED
        for shard in [each for each in self.roster.observed if each not in self._shards]:
            del self.roster.observed[shard]
        return changed

    def count_short_reading(self) -> None:
        """Note whether the other workers own less than was seen, reading after reading: then something was released."""
        self._short_readings = self._short_readings + 1 if seems_short(self.view()) else 0

    def _in_quarantine(self) -> Mapping[Shard, str]:
        """The shards whose destination some worker has in quarantine; worked out anew when either changes."""
        members, seen = self.members, (self.members.others, self.members.quarantined, *self._seen)
        if any(new is not old for new, old in zip(seen, self._asked_for, strict=True)):
            self._asked_for = seen
            rows = (members.quarantined, *(each.quarantined for each in members.others.values()))
            names = frozenset(name for row in rows for name in row)
            topics = {shard: self._catalogue.topic(shard) for shard in self._shards} if names else {}
            places = {shard: topic.target.redacted for shard, topic in topics.items() if topic is not None}
            self._quarantined = {shard: place for shard, place in places.items() if place in names}
        return self._quarantined

    @property
    def _reading(self) -> tuple[object, object, object]:
        return self._catalogue.shards, self._catalogue.topics, self._catalogue.released

    def _reason(self, shard: Shard) -> str | None:
        topic = self._catalogue.topic(shard)
        return reason_to_leave(topic, self._worker.schemes) if topic is not None else None
