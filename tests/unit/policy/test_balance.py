"""Fair shares, and the moves that lead to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.member import Member, Offer
from remora.model.shard import Shard
from remora.policy.ownership.balance import (
    BUSY_AT_ONCE,
    IDLE_AT_ONCE,
    choose,
    counts,
    deal,
    evenly,
    is_short,
    own_part_first,
    targets,
    transfer_plan,
)


def a_member(number: int, shards: int = 0, *, draining: bool = False) -> Member:
    return Member(f"w{number:02}", "h", shards, draining)


crews = st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=9).map(
    lambda drawn: [a_member(number, held, draining=drains) for number, (held, drains) in enumerate(drawn)]
)


@given(crews, st.integers(0, 100))
def test_shares_are_fair(members: list[Member], free: int) -> None:
    """Those who take part get all the shards, no two of them differing by more than one; those who drain get none."""
    shards = sum(each.shards for each in members) + free

    wanted = targets(members, shards)

    active = [wanted[each.cookie] for each in members if not each.draining]
    assert all(wanted[each.cookie] == 0 for each in members if each.draining)
    assert not active or (sum(active) == shards and max(active) - min(active) <= 1)


@given(crews)
def test_no_more_is_moved_than_must_be(members: list[Member]) -> None:
    """All transfers together are as few as lead to fair shares: those where who has the most keeps the larger ones."""
    shards = sum(each.shards for each in members)
    active = [each.shards for each in members if not each.draining]
    given = {each.cookie: transfer_plan(each.cookie, members, shards) for each in members}
    moved = sum(count for each in given.values() for _, count in each)

    if not active:
        assert moved == 0
        return
    least, rest = divmod(shards, len(active))
    larger_first = sorted(active, reverse=True)
    leaving = shards - sum(active)
    assert moved == leaving + sum(max(0, held - least - (n < rest)) for n, held in enumerate(larger_first))
    after = {each.cookie: each.shards for each in members}
    for giver, transfer in given.items():
        for to, count in transfer:
            after[giver] -= count
            after[to] += count
    assert after == targets(members, shards)


@given(crews)
def test_a_plan_that_is_carried_out_asks_for_nothing_more(members: list[Member]) -> None:
    """Once a worker has offered what it is to give, the same view of the others has it give nothing more."""
    shards = sum(each.shards for each in members)
    for each in members:
        transfer = transfer_plan(each.cookie, members, shards)
        offers = tuple(Offer(to, tuple(Shard(f"{each.cookie}-{to}-{n}") for n in range(n_of))) for to, n_of in transfer)
        offering = Member(each.cookie, "h", each.shards, each.draining, offers)

        assert transfer_plan(each.cookie, [offering if m is each else m for m in members], shards) == []


def test_a_shard_on_its_way_counts_once() -> None:
    """From the offer to the arrival a shard counts for its receiver, whichever two rows are read together."""
    s = Shard("s")
    before, offering, given = Member("a", "h", 3), Member("a", "h", 3, offers=(Offer("b", (s,)),)), Member("a", "h", 2)
    unaware, expecting, arrived = Member("b", "h", 0), Member("b", "h", 0, expects=(s,)), Member("b", "h", 1)

    assert counts([before, unaware]) == {"a": 3, "b": 0}
    for rows in ([offering, unaware], [offering, expecting], [given, expecting], [given, arrived]):
        assert counts(rows) == {"a": 2, "b": 1}


def test_an_offer_to_nobody_does_not_count() -> None:
    """What is offered to a worker that is gone is still its owner's."""
    assert counts([Member("a", "h", 3, offers=(Offer("gone", (Shard("s"),)),))]) == {"a": 3}


# ---------------------------------------------------------------------------------------- a model of workers


@dataclass
class Worker:
    """What `policy.assignment` plans, without time: each `step` sees the others as they were some steps ago."""

    cookie: str
    held: set[Shard]
    draining: bool = False
    offers: dict[Shard, str] = field(default_factory=dict)
    expects: dict[Shard, int] = field(default_factory=dict)
    given: int = 0

    def row(self) -> Member:
        offers = tuple(Offer(to, (shard,)) for shard, to in self.offers.items())
        held = len(self.held) - len(self.held & self.expects.keys())
        return Member(self.cookie, "h", held, self.draining, offers, tuple(self.expects))

    def step(self, rows: Sequence[Member], free: set[Shard], shards: int) -> None:
        others = {each.cookie: each for each in rows if each.cookie != self.cookie}
        offered = {s for each in others.values() for o in each.offers if o.to == self.cookie for s in o.shards}
        self.expects |= dict.fromkeys(offered, 3)
        for shard in self.expects.keys() & free:
            free.remove(shard)
            self.held.add(shard)
        for shard in self.expects.keys() - offered:
            self.expects[shard] -= 1
        self.expects = {
            s: left for s, left in self.expects.items() if left > 0 and not (s in self.held and s not in offered)
        }
        for shard, to in list(self.offers.items()):
            if shard in others[to].expects and shard in self.held:
                self.held.remove(shard)
                free.add(shard)
                del self.offers[shard]
                self.given += 1
        plan = transfer_plan(self.cookie, [*others.values(), self.row()], shards)
        chosen = choose(sorted(self.held), self.held, sum(n for _, n in plan), on_offer=self.offers.keys())
        self.offers |= deal(chosen, plan)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=8),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.integers(0, 2),
)
def test_shares_become_fair_also_by_old_views(held: list[int], delays: list[int], draining: int) -> None:
    """From any start, with views that are some steps old, shares become fair in bounded steps, by nearly as few moves
    as can be; then nothing moves any more, and at no time is a shard held twice."""
    shards = [Shard(f"s{number:03}") for number in range(sum(held))]
    start = iter(shards)
    workers = [
        Worker(f"w{n}", {next(start) for _ in range(count)}, n < draining < len(held)) for n, count in enumerate(held)
    ]
    history, free, least = [[each.row() for each in workers]], set[Shard](), 0
    for each in workers:
        least += sum(count for _, count in transfer_plan(each.cookie, history[0], len(shards)))

    for _ in range(4 * len(shards) // BUSY_AT_ONCE + 30):
        for worker, delay in zip(workers, delays, strict=False):
            worker.step(history[max(0, len(history) - 1 - delay)], free, len(shards))
            assert sum(len(each.held) for each in workers) + len(free) == len(shards)
        history.append([each.row() for each in workers])

    active = [len(each.held) for each in workers if not each.draining]
    assert max(active) - min(active) <= 1
    assert not free
    assert all(not each.held and not each.offers for each in workers if each.draining)
    assert sum(each.given for each in workers) <= least + 2 * len(workers)
    settled = sum(each.given for each in workers)
    for _ in range(20):
        rows = [each.row() for each in workers]
        for worker in workers:
            worker.step(rows, free, len(shards))
    assert sum(each.given for each in workers) == settled


# --------------------------------------------------------------------------------------------- choosing


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 40), st.integers(0, 300))
def test_few_are_on_offer_at_once(held: int, count: int, busy: int, on_offer: int) -> None:
    """What is chosen is not on offer yet, is no more than is to go, and leaves the bounds of both kinds."""
    shards = [Shard(f"s{number:04}") for number in range(held)]
    working, offered = set(shards[:busy]), set(shards[-on_offer:] if on_offer else [])

    chosen = choose(shards, working, count, on_offer=offered)

    assert len(set(chosen)) == len(chosen) <= count
    assert not offered.intersection(chosen)
    new_busy = [each for each in chosen if each in working]
    assert len(new_busy) <= max(0, BUSY_AT_ONCE - len(offered & working))
    assert len(chosen) - len(new_busy) <= max(0, IDLE_AT_ONCE - len(offered - working))


def test_a_like_part_of_each_topic_goes() -> None:
    """Of two topics with ten shards each that one worker holds, a half of each is chosen."""
    shards = [Shard(f"{topic}.{number}") for topic in "ab" for number in range(10)]

    chosen = evenly(shards, 10)

    assert [sum(each.queue.startswith(topic) for each in chosen) for topic in "ab"] == [5, 5]


@given(st.lists(st.integers(), max_size=50), st.integers(0, 60))
def test_evenly_takes_so_many(items: list[int], count: int) -> None:
    """This many are taken as were asked for and are there, in their order, none twice."""
    taken = evenly(list(enumerate(items)), count)

    assert len(taken) == min(count, len(items))
    assert taken == sorted(set(taken))


@given(st.integers(0, 60), st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9)), unique_by=lambda g: g[0]))
def test_nobody_is_dealt_more_than_its_number(count: int, to: list[tuple[str, int]]) -> None:
    """Each shard goes to one receiver, nobody gets more than was planned, and none is kept while somebody lacks."""
    shards = [Shard(f"s{number}") for number in range(count)]

    dealt = deal(shards, to)

    got = {cookie: sum(each == cookie for each in dealt.values()) for cookie, _ in to}
    assert all(got[cookie] <= most for cookie, most in to)
    assert len(dealt) == min(count, sum(most for _, most in to))


@given(st.integers(0, 50), st.integers(1, 8))
def test_workers_begin_with_different_shards(count: int, of: int) -> None:
    """Every worker has all the shards in its list, and no two begin with the same until their parts are through."""
    places = {Shard(f"s{number:02}"): number for number in range(count)}
    lists = [own_part_first(list(places), places, rank, of) for rank in range(of)]

    assert all(set(each) == set(places) for each in lists)
    part = count // of
    firsts = [shard for each in lists for shard in each[:part]]
    assert len(firsts) == len(set(firsts))


def test_what_the_others_do_not_own_up_to_is_free() -> None:
    """Something is free when the others hold less than was seen; what is on its way to them counts as theirs."""
    others = [Member("a", "h", 3), Member("b", "h", 1, expects=(Shard("s"),))]

    assert not is_short(others, 5)
    assert is_short(others, 6)
