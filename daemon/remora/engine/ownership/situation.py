"""What this worker sees at a moment: its shards, the catalogue, and the other workers; and signals of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from remora.bounded import portions
from remora.engine.catalogue import Catalogue, topic_among
from remora.engine.ownership.roster import Roster
from remora.engine.ownership.worker_info import WorkerInfo
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.policy.ownership.assignment import seems_short
from remora.policy.ownership.membership import Membership
from remora.policy.ownership.not_owned import reason_to_leave
from remora.policy.ownership.view import View

MOST_NAMED = 100
"""Queues that are named in the log one by one when they are acquired and released."""


class CatalogueReading(NamedTuple):
    """What the catalogue said at a moment: the very objects that it had then."""

    shards: Sequence[Shard]
    topics: Mapping[Shard, Topic]
    released: frozenset[Shard]


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
        self._seen: CatalogueReading | None = None
        self._shards: Mapping[Shard, int] = {}
        self._foreign: Mapping[Shard, str] = {}
        self._short_readings = 0
        self._bound: Mapping[str, Sequence[Shard]] = {}
        """The shards of each destination, by the name that quarantines have."""
        self._asked_for: tuple[object, ...] = (None,) * 3
        self._names: frozenset[str] = frozenset()
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
        return self._seen is None or any(new is not old for new, old in zip(self._reading, self._seen, strict=True))

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

    async def review(self) -> bool:
        """Take over what the catalogue says now; returns whether anything has changed since the last time.

        Very many shards take some turns of the event loop. Up to the last of them the views are those of the reading
        before, and whatever changes meanwhile is news after it: each view is of one reading as a whole.
        """
        changed = self._is_stale or self.has_news
        if changed:
            self._is_stale = False
            reading, schemes = self._reading, self._worker.schemes
            shards: dict[Shard, int] = {}
            foreign: dict[Shard, str] = {}
            bound: dict[str, list[Shard]] = {}
            async for some in portions(reading.shards):
                for shard in some:
                    shards[shard] = len(shards)
                    if (topic := topic_among(reading.topics, shard)) is not None:
                        bound.setdefault(topic.target.redacted, []).append(shard)
                        if (why := reason_to_leave(topic, schemes)) is not None:
                            foreign[shard] = why
            self._seen, self._shards, self._foreign, self._bound = reading, shards, foreign, bound
            self.roster.named = len(shards) <= MOST_NAMED
        for shard in [each for each in self.roster.observed if each not in self._shards]:
            del self.roster.observed[shard]
        # Whether the other workers own less than was seen, reading after reading: then something was released.
        self._short_readings = self._short_readings + 1 if seems_short(self.view()) else 0
        return changed

    def _in_quarantine(self) -> Mapping[Shard, str]:
        """The shards whose destination some worker has in quarantine; worked out anew when either changes."""
        members = self.members
        seen = (self._bound, members.others, members.quarantined)
        if any(new is not old for new, old in zip(seen, self._asked_for, strict=True)):
            rows = (members.quarantined, *(each.quarantined for each in members.others.values()))
            names = frozenset(name for row in rows for name in row)
            if names != self._names or self._bound is not self._asked_for[0]:  # the rows are other ones each second
                bound = {name: self._bound.get(name, ()) for name in sorted(names)}
                self._quarantined = {shard: name for name, shards in bound.items() for shard in shards}
            self._names, self._asked_for = names, seen
        return self._quarantined

    @property
    def _reading(self) -> CatalogueReading:
        return CatalogueReading(self._catalogue.shards, self._catalogue.topics, self._catalogue.released)
