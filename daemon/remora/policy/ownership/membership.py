"""What one worker knows of the others, and what it has announced to them.

Every second or so each worker writes a row and reads the rows of all; where they are very many, each does so less
often, so that the rows read in a second grow with the workers and not with their square. A shard moves in three steps:

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

from remora.model.member import COMMAND_COOKIE, Member, Offer
from remora.model.shard import Shard
from remora.policy.ownership import row_room
from remora.policy.ownership.balance import targets
from remora.policy.ownership.hosts import MOST_NAME
from remora.policy.shaping.split import Wants

POLL_S, POLL_OFTEN_S = 1.0, 0.25
"""The pause between two readings of the rows: usually, and while shards move or workers begin."""

ROWS_PER_SECOND = 100
"""Rows that a worker reads in a second, at most, while it moves no shard: among more workers its pauses are longer."""

STEADY_S = 1.0
"""Nothing is offered before the workers have been the same for this long: those that start together come one by one."""

PATIENCE_S = 3.0
"""A draining worker transfers a shard after this long although its receiver has not said that it expects it."""

EXPECT_S = 2.0
"""A shard is expected for this long after its offer was last seen: then it is free, or another worker's."""

UNHEARD_S = 30.0
"""An offer for a shard's load is withdrawn after this long if its receiver does not expect the shard."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A shard on offer to one worker since a moment; `begun` when it is being released, which nothing stops.

    `load`, `bytes` and `moved_s` are those of `model.member.Offer`, for this shard alone.
    """

    to: str
    since: float
    begun: bool = False
    load: float | None = None
    bytes: float = 0.0
    moved_s: float | None = None

    @property
    def group(self) -> row_room.Group:
        """What stands in one `model.member.Offer` with it."""
        return self.to, self.load is not None, self.moved_s is not None


@dataclass(frozen=True, slots=True)
class Announced:
    """What a worker's row says of its load; see `model.member.Member`."""

    usage: float | None = None
    history: float = 0.0
    bytes: float = 0.0

    def with_more(self, load: float) -> Announced:
        """The same, where shards with that part of a worker's usage have come: until its usage is measured again."""
        return self if self.usage is None or not load else replace(self, usage=self.usage + load)


@dataclass(frozen=True, slots=True)
class Membership:
    """One worker's view of the workers. `others` are the rows of the other live ones, by cookie.

    `offers` are this worker's shards on offer, `expects` those offered to this one with the time at which the offer was
    last seen, `promised` those on their way between any two workers, likewise. `steady_since` is when the workers
    last changed.

    `load` is what this worker says of its own. `for_load` are the shards among `expects` that come for their load, each
    with that part of it, `moved` those that are here since they came so, with the time of it, and `skew` counts these,
    without those that this worker gave for their load. Of those that came to an earlier owner so, and come to this one
    to even out numbers, `moved` has the time too, and `moved_before` while they are expected.

    `asked` are the shards that commands want moved, each with the cookie of its receiver. `quarantined` are the
    destinations that this worker leaves to others, and `wants` what it wants of groups of traffic, the most first.

    `fair` is this worker's fair number of shards; `target` is the same, or None while the worker is alone and may take
    all. `known` is how many shards all workers share. `leaving`: this worker ends and releases all.
    """

    cookie: str
    host: str = ""
    others: Mapping[str, Member] = field(default_factory=dict)
    offers: Mapping[Shard, Outgoing] = field(default_factory=dict)
    expects: Mapping[Shard, float] = field(default_factory=dict)
    promised: Mapping[Shard, float] = field(default_factory=dict)
    steady_since: float = 0.0
    load: Announced = field(default_factory=Announced)
    for_load: Mapping[Shard, float] = field(default_factory=dict)
    moved: Mapping[Shard, float] = field(default_factory=dict)
    moved_before: Mapping[Shard, float] = field(default_factory=dict)
    skew: int = 0
    asked: Mapping[Shard, str] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()
    wants: Wants = ()
    fair: int = 0
    target: int | None = None
    known: int = 0
    draining: bool = False
    leaving: bool = False
    hostname: str = ""
    release: str = ""

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
        active = self.active
        return sum(each.cookie < self.cookie for each in active), len(active) + 1

    def has_room(self, owned: int, asking: int = 0) -> bool:
        """Whether a worker that owns `owned` shards, and asks for `asking` more, may take another one at once."""
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

    @property
    def look_s(self) -> float:
        """The usual pause between two readings of the rows, by their number."""
        return max(POLL_S, (len(self.others) + 1) / ROWS_PER_SECOND)

    @property
    def patience_s(self) -> float:
        """How long a draining worker waits for a receiver to say that it expects a shard."""
        return max(PATIENCE_S, 2 * self.look_s)

    def poll_again_s(self, now: float) -> float:
        """The pause before the rows are read again."""
        if self.offers or self.expects or self.draining:
            return POLL_OFTEN_S
        return self.look_s * POLL_OFTEN_S / POLL_S if now - self.steady_since < 2 * STEADY_S else self.look_s

    def is_unheard(self, offer: Outgoing, now: float) -> bool:
        """Whether an offer for a shard's load is to be withdrawn, since its receiver does not want the shard."""
        return offer.load is not None and now - offer.since > max(UNHEARD_S, 4 * self.look_s)

    def with_offers(self, offers: Mapping[Shard, Outgoing], skew: int) -> Membership:
        """The same with these shards on offer, the first ones, as far as the row has room; the others stay."""
        fitting = row_room.offered({shard: each.group for shard, each in offers.items()}, self.expects)
        return replace(self, offers={each: offers[each] for each in fitting}, skew=0 if self.draining else skew)

    def outgoing(self, shard: Shard, to: str, now: float) -> Outgoing:
        """A shard that is offered from now on to even out numbers."""
        moved_at = self.moved.get(shard)
        return Outgoing(to, now, moved_s=None if moved_at is None else now - moved_at)

    def row(self, owned: Collection[Shard]) -> Member:
        """The row that this worker announces, for the shards that it owns."""
        offers: defaultdict[row_room.Group, list[tuple[Shard, Outgoing]]] = defaultdict(list)
        for shard, outgoing in self.offers.items():
            offers[outgoing.group].append((shard, outgoing))
        given = sum(each.load is not None for each in self.offers.values())
        return Member(
            self.cookie,
            self.host,
            len(owned) - sum(shard in owned for shard in self.expects),
            self.draining,
            tuple(_offer(to, each) for (to, _, _), each in offers.items()),
            tuple(self.expects),
            usage=self.load.with_more(sum(self.for_load.values())).usage,
            history=self.load.history,
            bytes=self.load.bytes,
            skew=self.skew + len(self.for_load) - given,
            quarantined=self.quarantined,
            wants=row_room.wanted(self.wants, {shard: each.group for shard, each in self.offers.items()}, self.expects),
            hostname=self.hostname[:MOST_NAME],
            release=self.release[:MOST_NAME],
        )

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


def _offer(to: str, given: Sequence[tuple[Shard, Outgoing]]) -> Offer:
    """Shards on offer to one worker, which move all for their load, or all to even out numbers."""
    loads = [each.load for _, each in given if each.load is not None]
    load = sum(loads) if loads else None
    moved_s = min((each.moved_s for _, each in given if each.moved_s is not None), default=None)
    return Offer(to, tuple(shard for shard, _ in given), load, sum(each.bytes for _, each in given), moved_s)


def updated(view: Membership, rows: Sequence[Member], now: float) -> Membership:
    """The view once these rows were read."""
    commands = [each for each in rows if each.cookie.startswith(COMMAND_COOKIE)]
    asked = {ask.shard: ask.to for each in commands for ask in each.asks}
    others = {each.cookie: each for each in rows if each.cookie != view.cookie and each not in commands}
    offered = [shard for each in others.values() for offer in each.offers for shard in offer.shards]
    expected = [shard for each in others.values() for shard in each.expects]
    promised = {shard: view.promised.get(shard, now) for shard in expected} | dict.fromkeys(offered, now)
    new = replace(view, others=others, promised=promised, asked=asked)
    return new if new.workers == view.workers else replace(new, steady_since=now)


def expecting(view: Membership, owned: Collection[Shard], wanted: Collection[Shard], now: float) -> Membership:
    """The view with the shards that this worker expects: those offered to it that it owns already, or wants.

    A shard stays expected until it is here and its offer is gone, or for a moment after the offer was last seen. One
    that came for its load is noted then.
    """
    offered = offered_to(view)
    new = {} if view.draining else {shard: now for shard in offered if shard in owned or shard in wanted}
    expects = row_room.expected(view.expects, new, {shard: each.group for shard, each in view.offers.items()})
    kept = {
        shard: seen_at
        for shard, seen_at in expects.items()
        if not (shard in owned and shard not in offered)
        and now - seen_at <= EXPECT_S
        and not (view.draining and shard not in owned)
    }
    loads = {shard: offered.get(shard, view.for_load.get(shard)) for shard in kept}
    came = [shard for shard in view.for_load if shard not in kept and shard in owned]
    load = view.load.with_more(sum(view.for_load[shard] for shard in came))
    before = {**_moved_before(view, now), **view.moved_before}
    moved = {shard: at for shard, at in {**view.moved, **view.moved_before}.items() if shard in owned}
    moved |= dict.fromkeys(came, now)
    return replace(
        view,
        expects=kept,
        for_load={shard: load for shard, load in loads.items() if load is not None},
        load=load,
        moved=moved,
        moved_before={shard: at for shard, at in before.items() if shard in kept},
        skew=view.skew + len(came),
    )


def _moved_before(view: Membership, now: float) -> dict[Shard, float]:
    """When the shards that others offer to this one have moved for their load, those that have."""
    return {
        shard: now - offer.moved_s
        for each in view.others.values()
        for offer in each.offers
        if offer.to == view.cookie and offer.moved_s is not None
        for shard in offer.shards
    }


def offered_to(view: Membership) -> dict[Shard, float | None]:
    """The shards that other workers offer to this one, in the order of the rows.

    Each has its part of the load, or None where it is to even out numbers.
    """
    return {
        shard: None if offer.load is None else offer.load / len(offer.shards)
        for each in view.others.values()
        for offer in each.offers
        if offer.to == view.cookie
        for shard in offer.shards
    }
