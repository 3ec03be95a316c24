"""What one worker knows of the others, and what it has announced to them.

Every second or so each worker writes a row and reads the rows of all. A shard moves in three steps:

1. its owner offers it in its row, and goes on delivering;
2. the receiver sees the offer, expects the shard in its own row, and asks for the lock again and again;
3. the owner sees that, finishes what is in flight, releases the lock, and withdraws the offer.

So a shard rests only from its last removal to the receiver's next try. No step gives a right: only the lock does, and
a row that is old or wrong costs at worst a needless move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from remora.model.member import Member, Offer
from remora.model.shard import Shard
from remora.policy.balance import targets

POLL_S, POLL_OFTEN_S = 1.0, 0.25
"""The pause between two readings of the rows: usually, and while shards move or workers begin."""

STEADY_S = 1.0
"""Nothing is offered before the workers have been the same for this long: those that start together come one by one."""

PATIENCE_S = 3.0
"""A draining worker transfers a shard after this long although its receiver has not said that it expects it."""

EXPECT_S = 2.0
"""A shard is expected for this long after its offer was last seen: then it is free, or another worker's."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A shard on offer to one worker since a moment; `begun` when it is being released, which nothing stops."""

    to: str
    since: float
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """One worker's view of the workers. `others` are the rows of the other live ones, by cookie.

    `offers` are this worker's shards on offer, `expects` those offered to this one with the time at which the offer was
    last seen, `promised` those on their way between any two workers, likewise. `steady_since` is when the workers
    last changed. `fair` is this worker's fair number of shards; `target` is the same, or None while the worker is alone
    and may take all. `known` is how many shards all workers share. `leaving`: this worker ends and releases all.
    """

    cookie: str
    host: str = ""
    others: Mapping[str, Member] = field(default_factory=dict)
    offers: Mapping[Shard, Outgoing] = field(default_factory=dict)
    expects: Mapping[Shard, float] = field(default_factory=dict)
    promised: Mapping[Shard, float] = field(default_factory=dict)
    steady_since: float = 0.0
    fair: int = 0
    target: int | None = None
    known: int = 0
    draining: bool = False
    leaving: bool = False

    @property
    def active(self) -> Sequence[Member]:
        """The other workers that take shards."""
        return [each for each in self.others.values() if not each.draining]

    @property
    def workers(self) -> set[tuple[str, bool]]:
        """The cookies of the other workers, each with whether it drains."""
        return {(each.cookie, each.draining) for each in self.others.values()}

    @property
    def rank(self) -> tuple[int, int]:
        """This worker's place among those that take shards, in an order that all of them know, and their number."""
        cookies = sorted([self.cookie, *(each.cookie for each in self.active)])
        return cookies.index(self.cookie), len(cookies)

    def has_room(self, owned: int, asking: int = 0) -> bool:
        """Whether a worker that owns so many shards, and asks for so many more, may take another one at once."""
        if self.draining:
            return False
        return self.target is None or owned + asking < self.target

    def is_promised(self, shard: Shard, now: float) -> bool:
        """Whether a shard is on its way to another worker, which a free lock is left to.

        A receiver that does not come for it, because it is frozen, keeps other workers away for a moment only.
        """
        seen_at = self.promised.get(shard)
        if seen_at is None or shard in self.expects:
            return False
        return now - seen_at <= EXPECT_S

    def is_steady(self, now: float) -> bool:
        """Whether the workers have been the same for long enough to move shards between them."""
        return now - self.steady_since >= STEADY_S

    def poll_again_s(self, now: float) -> float:
        """The pause before the rows are read again."""
        is_moving = bool(self.offers or self.expects or self.draining)
        return POLL_OFTEN_S if is_moving or now - self.steady_since < 2 * STEADY_S else POLL_S

    def row(self, owned: Collection[Shard]) -> Member:
        """The row that this worker announces, for the shards that it owns."""
        offers: defaultdict[str, list[Shard]] = defaultdict(list)
        for shard, outgoing in self.offers.items():
            offers[outgoing.to].append(shard)
        grouped = tuple(Offer(to, tuple(shards)) for to, shards in offers.items())
        count = len(owned) - sum(shard in owned for shard in self.expects)
        return Member(self.cookie, self.host, count, self.draining, grouped, tuple(self.expects))

    def rows(self, owned: Collection[Shard]) -> list[Member]:
        """The rows of all workers, this one included."""
        return [*self.others.values(), self.row(owned)]

    def shared(self, rows: Sequence[Member]) -> int:
        """How many shards all workers share: those known here, or those owned by all rows' account, if more."""
        return max(self.known, sum(each.shards for each in rows))

    def without_offers(self, shards: Collection[Shard]) -> Membership:
        """The same, with these shards not on offer."""
        if self.offers.keys().isdisjoint(shards):
            return self
        return replace(self, offers={shard: out for shard, out in self.offers.items() if shard not in shards})

    def aimed(self, owned: Collection[Shard], known: int) -> Membership:
        """The same with this worker's share worked out anew, where `known` shards are shared as far as it knows."""
        now_known = replace(self, known=known)
        rows = now_known.rows(owned)
        fair = targets(rows, now_known.shared(rows))[self.cookie]
        return replace(now_known, fair=fair, target=fair if self.active or self.draining else None)


def updated(view: Membership, rows: Sequence[Member], now: float) -> Membership:
    """The view once these rows were read."""
    others = {each.cookie: each for each in rows if each.cookie != view.cookie}
    offered = [shard for each in others.values() for offer in each.offers for shard in offer.shards]
    expected = [shard for each in others.values() for shard in each.expects]
    promised = {shard: view.promised.get(shard, now) for shard in expected} | dict.fromkeys(offered, now)
    new = replace(view, others=others, promised=promised)
    return new if new.workers == view.workers else replace(new, steady_since=now)


def expecting(view: Membership, owned: Collection[Shard], wanted: Collection[Shard], now: float) -> Membership:
    """The view with the shards that this worker expects: those offered to it that it owns already, or wants.

    A shard stays expected until it is here and its offer is gone, or for a moment after the offer was last seen.
    """
    offered = offered_to(view)
    expects = dict(view.expects)
    if not view.draining:
        expects.update((shard, now) for shard in offered if shard in owned or shard in wanted)
    kept = {
        shard: seen_at
        for shard, seen_at in expects.items()
        if not (shard in owned and shard not in offered)
        and now - seen_at <= EXPECT_S
        and not (view.draining and shard not in owned)
    }
    return replace(view, expects=kept)


def offered_to(view: Membership) -> dict[Shard, None]:
    """The shards that other workers offer to this one, in the order of the rows."""
    return {
        shard: None
        for each in view.others.values()
        for offer in each.offers
        if offer.to == view.cookie
        for shard in offer.shards
    }
