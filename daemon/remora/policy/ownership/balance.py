"""Who should hold how many shards, and who gives some to whom.

Every worker computes this for itself from what all of them announced, and acts on its own part only. Equal views give
equal plans, so two owners never give to the same gap; a worker with an old view can give a shard too many at worst,
which a later plan corrects. A shard on its way counts for the one who is to have it, so a plan that is being carried
out asks for nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from remora.model.member import Member
from remora.model.shard import Shard

T = TypeVar("T")

BUSY_AT_ONCE = 8
IDLE_AT_ONCE = 256
"""Shards that an owner has on offer at most: those with entries, whose delivery pauses for a moment, and others."""


def counts(members: Collection[Member]) -> dict[str, int]:
    """How many shards each live worker holds once everything that is on its way has arrived."""
    incoming = {each.cookie: set(each.expects) for each in members}
    outgoing = dict.fromkeys(incoming, 0)
    for each in members:
        for offer in each.offers:
            if offer.to in incoming:
                incoming[offer.to].update(offer.shards)
                outgoing[each.cookie] += len(offer.shards)
    return {each.cookie: each.shards - outgoing[each.cookie] + len(incoming[each.cookie]) for each in members}


def skews(members: Collection[Member]) -> dict[str, int]:
    """How many shards each worker has received for their load, without those given, once all have arrived.

    A receiver counts a shard from when it expects it, its owner from the offer on. One that drains has no skew.
    """
    known = {each.cookie: frozenset(each.expects) for each in members}
    skew = {each.cookie: each.skew for each in members}
    for each in members:
        for offer in each.offers:
            if offer.load is not None and offer.to in skew:
                skew[offer.to] += sum(shard not in known[offer.to] for shard in offer.shards)
    return skew | {each.cookie: 0 for each in members if each.draining}


def targets(members: Collection[Member], shards: int) -> dict[str, int]:
    """How many of the `shards` each worker should hold: the fair share, rounded down or up; those that drain nothing.

    A worker that holds either number keeps it where possible; else the first in the order of cookies changes.
    Shards that were moved for their load stand beside that: the fair share is of the others, and a worker's skew joins
    its own. So evening out numbers never takes such a move back.
    """
    skew = skews(members)
    held = {cookie: number - skew[cookie] for cookie, number in counts(members).items()}
    shards = max(0, shards - sum(skew.values()))
    active = sorted(each.cookie for each in members if not each.draining)
    if not active:
        return dict.fromkeys(held, 0)
    least, rest = divmod(shards, len(active))
    most = least + (rest > 0)
    shares = {cookie: min(max(held[cookie], least), most) for cookie in active}
    missing = shards - sum(shares.values())
    change = 1 if missing > 0 else -1
    for cookie in [each for each in active if shares[each] == (least if missing > 0 else most)][: abs(missing)]:
        shares[cookie] += change
    return {cookie: max(0, shares[cookie] + skew[cookie]) if cookie in shares else 0 for cookie in held}


def transfer_plan(giver: str, members: Collection[Member], shards: int) -> list[tuple[str, int]]:
    """To whom one worker should offer how many more of its shards: only its excess, and only what others lack."""
    held, wanted = counts(members), targets(members, shards)
    gaps = {cookie: wanted[cookie] - held[cookie] for cookie in sorted(held) if wanted[cookie] > held[cookie]}
    given: list[tuple[str, int]] = []
    for cookie in sorted(held):
        excess = held[cookie] - wanted[cookie]
        for to in list(gaps):
            if excess <= 0:
                break
            count = min(excess, gaps[to])
            excess -= count
            gaps[to] -= count
            if cookie == giver and count:
                given.append((to, count))
    return given


def choose(shards: Sequence[Shard], busy: Collection[Shard], count: int, *, on_offer: Collection[Shard]) -> list[Shard]:
    """Which of the shards to offer next, when `count` more are to go: taken evenly from them all.

    So of each topic, whose shards have neighbouring names, a like part goes. How many are on offer at once is bounded.
    """
    room_busy = BUSY_AT_ONCE - sum(each in busy for each in on_offer)
    room_idle = IDLE_AT_ONCE - sum(each not in busy for each in on_offer)
    chosen: list[Shard] = []
    for shard in evenly([each for each in shards if each not in on_offer], count):
        if shard in busy and room_busy > 0:
            room_busy -= 1
            chosen.append(shard)
        elif shard not in busy and room_idle > 0:
            room_idle -= 1
            chosen.append(shard)
    return chosen


def deal(shards: Sequence[Shard], to: Sequence[tuple[str, int]]) -> dict[Shard, str]:
    """Which worker is to have which shard: one each in turn, no worker more than its number."""
    hands = [[cookie] * count for cookie, count in to]
    turns = [hand[place] for place in range(max(map(len, hands), default=0)) for hand in hands if place < len(hand)]
    return dict(zip(shards, turns, strict=False))


def evenly(items: Sequence[T], count: int) -> list[T]:
    """`count` of the items, at equal distances; all of them when there are no more."""
    if count >= len(items):
        return list(items)
    return [items[place * len(items) // count] for place in range(count)]


def own_part_first(shards: Sequence[Shard], places: Mapping[Shard, int], rank: int, of: int) -> list[Shard]:
    """The same shards, in the same order but for those first whose place has the worker's rank, then the next rank's.

    All workers know the same places, so that those which try at the same time are not in each other's way.
    """
    if of == 1:
        return list(shards)
    return sorted(shards, key=lambda shard: (places.get(shard, 0) - rank) % of)


def is_short(others: Collection[Member], seen: int) -> bool:
    """Whether the others hold fewer shards by their own account than they were `seen` to hold: then some are free."""
    return seen > 0 and seen > sum(each.shards + len(each.expects) for each in others)
