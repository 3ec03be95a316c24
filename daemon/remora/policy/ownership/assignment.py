"""Which shards a worker acquires, releases, offers and transfers: the one place where that is decided.

A worker plans for itself from what it sees, and acts on its own part only. Equal views give equal plans. A plan is
made anew whenever something may have changed, so that an action that failed, or that another worker was quicker at,
needs nothing undone.

The two halves of a plan are asked for on their own as well, since a worker acts on them at different times:
`acquisitions` after each reading of the catalogue, `transfers` after each reading of the other workers' rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from remora.model.shard import Shard
from remora.policy.ownership.balance import choose, deal, is_short, own_part_first, transfer_plan
from remora.policy.ownership.membership import Membership
from remora.policy.ownership.not_owned import Broken, Deferred, Foreign, GivenBack, NotOwned, Released, transferred
from remora.policy.ownership.owners import is_unwelcome, leaving, welcome
from remora.policy.ownership.view import View

PORTION = 256
"""The most shards that are acquired together where they are idle then."""

ROUNDS_ELSEWHERE = 8
"""Readings of the catalogue within which each shard that others own is tried once, where these are very many."""

TRANSFERRED_S = 3.0
"""How long a shard is left to the worker that it was transferred to."""

LONGEST_REST_S = 60.0


@dataclass(frozen=True, slots=True)
class Acquisitions:
    """Which shards to try, and which to give up because they are not this worker's to own any more.

    `acquire` those, and `further` ones only if one of the first was free; `in_order` says in which order. `look`:
    shards that stay where they are, whose holder is looked up for the status, or for a claim. `leave`: shards that are
    noted as foreign without a try. `activate`: idle ones that are in no catalogue, so that their dispatcher finds out
    whether the queue is gone.
    """

    acquire: Sequence[Shard] = ()
    further: Sequence[Shard] = ()
    look: Sequence[Shard] = ()
    leave: Mapping[Shard, NotOwned] = field(default_factory=dict)
    release: Mapping[Shard, NotOwned] = field(default_factory=dict)
    activate: Sequence[Shard] = ()


@dataclass(frozen=True, slots=True)
class Transfers:
    """What this worker offers anew and to which worker, takes back, transfers now, and releases for any worker."""

    offer: Mapping[Shard, str] = field(default_factory=dict)
    withdraw: Sequence[Shard] = ()
    transfer: Mapping[Shard, NotOwned] = field(default_factory=dict)
    release: Mapping[Shard, NotOwned] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """Both halves, and when to plan anew though nothing has changed."""

    acquisitions: Acquisitions
    transfers: Transfers
    look_again_s: float


def plan(view: View) -> AssignmentPlan:
    """What a worker with this view does."""
    return AssignmentPlan(acquisitions(view), transfers(view), max(0.0, next_try_at(view) - view.now))


# ------------------------------------------------------------------------------------------ acquiring


def acquisitions(view: View) -> Acquisitions:
    """Which shards to acquire, and which to give up.

    A worker may also ask for it in parts, so that very many shards do not hold up its event loop: it has some of those
    that are `concerned` `judged` at a time, each portion by the view of that moment, and gives up what is to be given
    up before anything else happens. Then `tried` says which of all that are due to try.
    """
    found = judged(view, concerned(view))
    acquire, further = tried(view, found.acquire)
    return replace(found, acquire=acquire, further=further)


def concerned(view: View) -> list[Shard]:
    """The shards to judge. Those that were never tried come first, then those that were tried longest ago.

    While the catalogue says nothing new, what is not known of stays as it is, and so does what is owned.
    """
    if not view.changed:
        return list(view.observed)
    return [shard for shard in {**view.shards, **view.owned} if shard not in view.observed] + list(view.observed)


def judged(view: View, shards: Iterable[Shard]) -> Acquisitions:
    """What becomes of each of these shards by itself. All that are due stand in `acquire`, in the given order."""
    due, look, activate = list[Shard](), list[Shard](), list[Shard]()
    leave, release = dict[Shard, NotOwned](), dict[Shard, NotOwned]()
    for shard in shards:
        owned = view.owned.get(shard)
        if owned is not None:
            if view.changed and not owned.is_leaving:
                if shard in view.released:
                    release[shard] = Released()
                elif owned.is_idle and shard not in view.shards:
                    activate.append(shard)
                elif owned.is_idle and shard in view.foreign:
                    release[shard] = Foreign(reason=view.foreign[shard])
        elif not view.members.draining and shard in view.shards:
            if view.changed and shard in view.foreign and shard not in view.released:
                leave[shard] = Foreign(reason=view.foreign[shard], settled=True)
            elif _is_due(view, shard, view.observed.get(shard)):
                (look if _is_only_looked_at(view, shard) else due).append(shard)
    return Acquisitions(acquire=due, look=look, leave=leave, release=release, activate=activate)


def tried(view: View, due: Iterable[Shard]) -> tuple[list[Shard], list[Shard]]:
    """Which of the shards that are due to try, and which only if one of these was free.

    A worker that ends releases all that it owned, so of very many that another one owns it is enough to try some.
    """
    free, elsewhere = list[Shard](), list[Shard]()
    for shard in due:
        (free if _is_free(view.observed.get(shard), view.now) else elsewhere).append(shard)
    some = max(PORTION, len(elsewhere) // ROUNDS_ELSEWHERE)
    return free + elsewhere[:some], elsewhere[some:]


def next_try_at(view: View) -> float:
    """Time of the next acquisition attempt."""
    has_room, now, times = view.has_room, view.now, []
    if view.members.draining:
        return now + LONGEST_REST_S
    for each in view.observed.values():
        if isinstance(each, Released):
            continue
        if isinstance(each, Deferred):
            times.append(now if has_room and not each.promised else each.until)
        elif _is_members(view, each):
            times.append(max(each.lapses_at, each.until))
    return min(times, default=now + LONGEST_REST_S)


def seems_short(view: View) -> bool:
    """Whether the other workers own fewer shards by their own account than they were seen to own."""
    seen = sum(_is_members(view, each) for each in view.observed.values())
    return is_short(view.members.others.values(), seen)


def _is_due(view: View, shard: Shard, each: NotOwned | None) -> bool:
    """Whether it is time to try a shard, or to try it again.

    While its holder is a live worker that is not before its lease may have ended, unless something is free that is
    not known which; another holder's is tried at every reading, and at once when a worker has gone.
    """
    if each is None or (isinstance(each, Foreign) and each.settled and not view.changed):
        return view.changed
    if isinstance(each, Broken) or isinstance(each, Released) is not (shard in view.released):
        return True
    if isinstance(each, Deferred) and (each.until <= view.now or (not each.promised and view.has_room)):
        return True
    if each.until > view.now or isinstance(each, Deferred):
        return False
    if each.holder is None or view.now >= each.lapses_at:
        return True
    if _is_members(view, each):
        return view.is_short
    return each.seen_at < view.members.steady_since or view.now - each.seen_at >= view.interval_s / 2


def _is_only_looked_at(view: View, shard: Shard) -> bool:
    known = view.observed.get(shard)
    return shard in view.released or (isinstance(known, Broken) and known.until > view.now)


def _is_members(view: View, each: NotOwned) -> bool:
    """Whether it is owned by a live worker."""
    return each.holder is not None and each.holder.cookie in view.members.others


def _is_free(each: NotOwned | None, now: float) -> bool:
    """Whether a shard is to be had, as far as is known."""
    return each is None or isinstance(each, Deferred) or each.holder is None or now >= each.lapses_at


def in_order(view: View, shards: Sequence[Shard], ages: Mapping[Shard, float] | None = None) -> list[Shard]:
    """The order in which to try shards: this worker's part first, in it those whose oldest entry waits the longest.

    `ages` are those of the oldest entries in seconds, without those of empty queues.
    """
    if not shards:
        return []
    if ages:
        shards = sorted(shards, key=lambda shard: -ages.get(shard, -1.0))
    return own_part_first(shards, view.shards, *view.members.rank)


def shared_number(view: View) -> int:
    """How many of the catalogue's shards the workers share."""
    return len(view.shards) - sum(each.is_apart(view.now) for each in view.observed.values())


# ----------------------------------------------------------------------------------------- transferring


def transfers(view: View) -> Transfers:
    """What to offer, withdraw and transfer, so that each worker comes to own its fair number."""
    members = view.members
    withdraw, transfer = _follow_offers(view)
    release: dict[Shard, NotOwned] = {}
    offer: dict[Shard, str] = {}
    if members.draining and not members.active:
        if not members.leaving:
            release = {
                shard: GivenBack()
                for shard, owned in view.owned.items()
                if not owned.is_leaving and shard not in transfer
            }
    elif not members.leaving and (members.draining or members.is_steady(view.now)):
        offer = _new_offers(view, members.without_offers(set(withdraw)), transfer)
        offer |= leaving(view, {*members.offers, *offer})
    return Transfers(offer, withdraw, transfer, release)


def _follow_offers(view: View) -> tuple[list[Shard], dict[Shard, NotOwned]]:
    """The offers to take back, because their shard or receiver has gone; and those whose receiver waits."""
    members, withdraw = view.members, []
    transfer: dict[Shard, NotOwned] = {}
    expected = {cookie: frozenset(each.expects) for cookie, each in members.others.items()}
    for shard, out in members.offers.items():
        receiver = members.others.get(out.to)
        if shard not in view.owned:
            withdraw.append(shard)
        elif out.begun:
            continue
        elif receiver is None or is_unwelcome(view, shard, receiver) or members.is_unheard(out, view.now):
            withdraw.append(shard)
        elif shard in expected[out.to] or (members.draining and view.now - out.since > members.patience_s):
            transfer[shard] = transferred(out.to, view.now + TRANSFERRED_S)
    return withdraw, transfer


def _new_offers(view: View, members: Membership, transfer: Mapping[Shard, NotOwned]) -> dict[Shard, str]:
    """What is beyond this worker's share, some at a time.

    Shards that came for their load stay where others are enough: the next owner would not know that they have moved.
    """
    rows = members.rows(view.owned.keys())
    given = transfer_plan(members.cookie, rows, members.shared(rows))
    count = sum(number for _, number in given)
    if count == 0:
        return {}
    shards = sorted(
        (shard for shard in welcome(view, given) if not view.owned[shard].is_leaving and shard not in transfer),
        key=attrgetter("queue", "origin"),  # as shards compare, in a tenth of the time
    )
    others = [shard for shard in shards if shard not in members.moved]
    shards = others if len(others) >= count else shards
    busy = {shard for shard in shards if view.owned[shard].has_work}
    return deal(choose(shards, busy, count, on_offer=members.offers.keys()), given)
