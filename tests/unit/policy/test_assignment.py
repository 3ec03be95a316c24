"""What a worker acquires, releases, offers and transfers, by what it sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.member import Member, Offer
from remora.model.shard import LockHolder, Shard
from remora.policy.ownership.assignment import (
    PORTION,
    acquisitions,
    concerned,
    in_order,
    judged,
    next_try_at,
    plan,
    transfers,
    tried,
)
from remora.policy.ownership.attempt import Step, may_evict, postponed, ran_out, step, wants
from remora.policy.ownership.balance import BUSY_AT_ONCE, IDLE_AT_ONCE
from remora.policy.ownership.membership import EXPECT_S, PATIENCE_S, STEADY_S, Membership, Outgoing, expecting, updated
from remora.policy.ownership.not_owned import (
    Broken,
    Damaged,
    Deferred,
    Elsewhere,
    Errored,
    Foreign,
    GivenBack,
    NotOwned,
    Released,
    deferred,
    transferred,
)
from remora.policy.ownership.view import View

ME, OTHER, GATEWAY = "remora/h/b/w1", "remora/h/b/w2", "gateway"
NOW = 1000.0
S = Shard("s")


@dataclass(frozen=True)
class Owned:
    is_idle: bool = False
    is_leaving: bool = False
    has_work: bool = False


def lock(cookie: str, lease_s: float = 60.0) -> LockHolder:
    return LockHolder("client.1", cookie, lease_s)


def crew(*others: Member, target: int | None = None, **changes: Any) -> Membership:
    known = Membership(ME, others={each.cookie: each for each in others}, target=target)
    return replace(known, **changes)


def a_view(members: Membership | None = None, **changes: Any) -> View:
    known = View(NOW, {S: 0}, {}, {}, members or crew())
    return replace(known, **changes)


reasons = st.one_of(
    st.builds(lambda settled: Foreign(reason="http", settled=settled), st.booleans()),
    st.builds(lambda until: Released(until=until), st.sampled_from([0.0, NOW + 5])),
    st.builds(
        lambda cookie, lease_s, seen_at: Elsewhere(holder=lock(cookie, lease_s), seen_at=seen_at),
        st.sampled_from([OTHER, GATEWAY, "remora/h/b/unknown"]),
        st.sampled_from([0.0, 10.0, 90.0]),
        st.sampled_from([NOW - 80, NOW - 3, NOW]),
    ),
    st.builds(lambda until: Broken(until=until), st.sampled_from([NOW - 1, NOW + 40])),
    st.builds(lambda until: Damaged(reason="bad disk", until=until), st.sampled_from([NOW - 1, NOW + 30])),
    st.builds(
        lambda until, promised: Deferred(reason="later", until=until, promised=promised),
        st.sampled_from([NOW - 1, NOW + 1]),
        st.booleans(),
    ),
    st.just(GivenBack()),
)


@st.composite
def views(draw: st.DrawFn) -> View:
    names = [Shard(f"s{number:02}") for number in range(draw(st.integers(0, 24)))]
    kinds = {shard: draw(st.sampled_from(["owned", "observed", "unknown", "gone"])) for shard in names}
    mine = {
        shard: Owned(draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))
        for shard in names
        if kinds[shard] == "owned"
    }
    others = [
        Member(
            f"remora/h/b/w{number}",
            "h",
            draw(st.integers(0, 24)),
            draw(st.booleans()),
            expects=tuple(draw(st.lists(st.sampled_from(names), unique=True, max_size=3))) if names else (),
        )
        for number in range(2, 2 + draw(st.integers(0, 3)))
    ]
    offered = draw(st.lists(st.sampled_from(names), unique=True, max_size=6)) if names and others else []
    members = crew(
        *others,
        target=draw(st.none() | st.integers(0, 24)),
        offers={
            shard: Outgoing(draw(st.sampled_from(others)).cookie, NOW - draw(st.sampled_from([0.0, 9.0])))
            for shard in offered
        },
        steady_since=NOW - draw(st.sampled_from([0.0, 9.0])),
        draining=draw(st.booleans()),
        leaving=False,
        known=len(names),
    )
    return View(
        NOW,
        {shard: place for place, shard in enumerate(names) if kinds[shard] != "gone"},
        mine,
        {shard: draw(reasons) for shard in names if kinds[shard] == "observed"},
        members,
        released=frozenset(draw(st.lists(st.sampled_from(names), max_size=4))) if names else frozenset(),
        foreign=dict.fromkeys(draw(st.lists(st.sampled_from(names), max_size=4)) if names else [], "http"),
        changed=draw(st.booleans()),
        short_readings=draw(st.integers(0, 3)),
    )


@settings(max_examples=400)
@given(views())
def test_equal_views_give_equal_plans(view: View) -> None:
    """A plan depends on the view alone, also where the view's mappings were filled in another order."""
    same = replace(view, foreign=dict(reversed(list(view.foreign.items()))))

    assert plan(view) == plan(replace(view))
    assert transfers(view) == transfers(same)
    assert acquisitions(view).acquire == acquisitions(same).acquire


@settings(max_examples=400)
@given(views())
def test_a_plan_does_not_contradict_itself(view: View) -> None:
    """No shard is acquired that is owned, released by command or foreign; none is released twice or not owned."""
    made = plan(view)
    acquired = {*made.acquisitions.acquire, *made.acquisitions.further}
    released = made.acquisitions.release.keys() | made.transfers.release.keys() | made.transfers.transfer.keys()

    assert not acquired & view.owned.keys()
    assert not acquired & view.released
    assert not acquired & set(made.acquisitions.look)
    assert not (view.changed and acquired & view.foreign.keys())
    assert not acquired & released
    assert released <= view.owned.keys()
    assert not made.transfers.release.keys() & made.transfers.transfer.keys()
    assert not made.transfers.offer.keys() & (released - made.acquisitions.release.keys())
    assert made.transfers.offer.keys() <= view.owned.keys()
    assert len(made.acquisitions.acquire) == len(set(made.acquisitions.acquire))


@settings(max_examples=400)
@given(views(), st.integers(1, 8))
def test_shards_may_be_judged_in_parts(view: View, size: int) -> None:
    """Whatever the portions are, together they say what is said of all shards at once."""
    shards, whole = concerned(view), acquisitions(view)
    parts = [judged(view, shards[first : first + size]) for first in range(0, len(shards), size)]

    acquire, further = tried(view, [shard for each in parts for shard in each.acquire])

    assert len(shards) == len(set(shards))
    assert (acquire, further) == (whole.acquire, whole.further)
    assert [shard for each in parts for shard in each.look] == whole.look
    assert [shard for each in parts for shard in each.activate] == whole.activate
    assert {shard: why for each in parts for shard, why in each.leave.items()} == whole.leave
    assert {shard: why for each in parts for shard, why in each.release.items()} == whole.release


@settings(max_examples=400)
@given(views())
def test_only_active_workers_get_offers_and_only_a_few_at_once(view: View) -> None:
    """Each offer goes to a live worker that does not drain, and as many are open at once as the bounds allow."""
    made = transfers(view)
    takers = {each.cookie for each in view.members.active}
    still = {shard for shard in view.members.offers if shard not in made.withdraw}
    is_busy = {shard: shard in view.owned and view.owned[shard].has_work for shard in still | made.offer.keys()}

    assert set(made.offer.values()) <= takers
    if made.offer:
        assert sum(is_busy.values()) <= max(BUSY_AT_ONCE, sum(is_busy[shard] for shard in still))
        assert sum(not each for each in is_busy.values()) <= IDLE_AT_ONCE


@settings(max_examples=400)
@given(views())
def test_a_draining_worker_acquires_nothing(view: View) -> None:
    """Neither at once nor later, and with no other worker to transfer to it releases all that it owns."""
    draining = replace(view, members=replace(view.members, draining=True))
    made = plan(draining)

    assert not made.acquisitions.acquire
    assert not made.acquisitions.further
    assert not draining.has_room
    if not draining.members.active:
        staying = {shard for shard, each in view.owned.items() if not each.is_leaving}
        assert staying <= made.transfers.release.keys() | made.transfers.transfer.keys()


@settings(max_examples=200)
@given(st.integers(0, 50), st.integers(1, 5))
def test_a_worker_tries_its_own_part_first(count: int, others: int) -> None:
    """Workers that see the same free shards begin with different ones."""
    free = [Shard(f"s{number:02}") for number in range(count)]
    view = a_view(shards={shard: place for place, shard in enumerate(free)})
    cookies = [f"remora/h/b/w{number}" for number in range(1, others + 2)]
    orders = []
    for cookie in cookies:
        rows = {each: Member(each, "h") for each in cookies if each != cookie}
        orders.append(in_order(replace(view, members=Membership(cookie, others=rows)), free))

    assert all(sorted(each) == sorted(free) for each in orders)
    part = len(free) // len(cookies)
    firsts = [shard for each in orders for shard in each[:part]]
    assert len(firsts) == len(set(firsts))


@pytest.mark.parametrize(
    ("known", "changes", "is_tried"),
    [
        (None, {}, True),
        (None, {"changed": False}, False),
        (GivenBack(), {"changed": False}, True),
        (Errored(reason="defect", until=NOW + 1), {}, False),
        (Errored(reason="defect", until=NOW), {}, True),
        (Foreign(reason="http", settled=True), {"changed": False}, False),
        (Foreign(reason="http", settled=True), {}, True),
        (Foreign(reason="unknown"), {"changed": False}, True),
        (Elsewhere(holder=lock(OTHER), seen_at=NOW - 9), {}, False),
        (Elsewhere(holder=lock(OTHER), seen_at=NOW - 60), {}, True),
        (Elsewhere(holder=lock(OTHER), seen_at=NOW - 9), {"short_readings": 1}, False),
        (Elsewhere(holder=lock(OTHER), seen_at=NOW - 9), {"short_readings": 2}, True),
        (Elsewhere(holder=lock(GATEWAY), seen_at=NOW - 1), {}, True),
        (Elsewhere(holder=lock(GATEWAY), seen_at=NOW - 0.5), {}, False),
        (transferred(OTHER, NOW + 3), {}, False),
        (transferred(OTHER, NOW), {}, True),
        (deferred(None, NOW + 1, promised=False), {}, True),
        (Damaged(reason="bad disk", until=NOW + 30), {}, False),
        (Released(), {}, True),
        (None, {"released": frozenset({S})}, False),
        (Broken(until=NOW + 40), {}, False),
        (Broken(until=NOW), {}, True),
    ],
)
def test_which_shards_are_tried(known: NotOwned | None, changes: dict[str, Any], is_tried: bool) -> None:
    """A shard is tried when nothing is known of it, or when what is known says that it may be free by now."""
    observed = {} if known is None else {S: known}
    view = a_view(crew(Member(OTHER, "h", 1)), **{"observed": observed, **changes})

    assert (S in acquisitions(view).acquire) is is_tried


@pytest.mark.parametrize(
    ("owned", "changes", "why"),
    [
        (Owned(is_idle=True), {"foreign": {S: "http"}}, Foreign(reason="http")),
        (Owned(), {"foreign": {S: "http"}}, None),
        (Owned(), {"released": frozenset({S})}, Released()),
        (Owned(is_leaving=True), {"released": frozenset({S})}, None),
        (Owned(), {"released": frozenset({S}), "changed": False}, None),
    ],
)
def test_which_owned_shards_are_given_up(owned: Owned, changes: dict[str, Any], why: NotOwned | None) -> None:
    """An idle foreign shard is released at once; the dispatcher of an active one notices by itself."""
    made = acquisitions(a_view(owned={S: owned}, **changes))

    assert made.release == ({} if why is None else {S: why})


def test_an_idle_shard_that_no_catalogue_lists_is_activated() -> None:
    """Its dispatcher finds out whether the queue is gone, or the registry is wrong."""
    assert acquisitions(a_view(shards={}, owned={S: Owned(is_idle=True)})).activate == [S]
    assert acquisitions(a_view(shards={}, owned={S: Owned()})).activate == []


def test_of_very_many_that_others_own_some_are_tried() -> None:
    """An eighth of them, at least a portion, and the others only if one of the first was free."""
    shards = [Shard(f"s{number:05}") for number in range(4000)]
    observed = {shard: Elsewhere(holder=lock(GATEWAY), seen_at=0) for shard in shards}
    view = a_view(shards={shard: n for n, shard in enumerate(shards)}, observed=observed)
    late = replace(view, now=5.0)

    made = acquisitions(late)

    assert len(made.acquire) == max(PORTION, 500)
    assert {*made.acquire, *made.further} == set(shards)


def test_when_to_try_again() -> None:
    """At once where there is room for a deferred shard, else when a lease ends, and within a minute."""
    ends = {S: Elsewhere(holder=lock(OTHER, 20), seen_at=NOW - 5)}
    waits = {S: deferred(None, NOW + 1, promised=False)}
    others = Member(OTHER, "h", 1)

    assert next_try_at(a_view(crew(others), observed=ends)) == NOW + 15
    assert next_try_at(a_view(crew(others), observed=waits)) == NOW
    assert next_try_at(a_view(crew(others, target=0), observed=waits)) == NOW + 1
    assert next_try_at(a_view(crew(others, target=0, draining=True), observed=waits)) == NOW + 60
    assert next_try_at(a_view()) == NOW + 60


@pytest.mark.parametrize(
    ("known", "members", "released", "first"),
    [
        (None, crew(), True, Step.LOOK_FOR_HOLDER),
        (None, crew(), False, Step.ACQUIRE),
        (Broken(until=NOW + 1), crew(), False, Step.LOOK_FOR_CLAIM),
        (Broken(until=NOW), crew(), False, Step.ACQUIRE),
        (Damaged(reason="bad disk", until=NOW + 1), crew(), False, Step.SKIP),
        (transferred(OTHER, NOW + 1), crew(), False, Step.SKIP),
        (transferred(OTHER, NOW + 1), crew(expects={S: NOW}), False, Step.ACQUIRE),
        (deferred(None, NOW + 1, promised=False), crew(), False, Step.ACQUIRE),
        (deferred(None, NOW + 1, promised=False), crew(target=0), False, Step.SKIP),
        (Released(until=NOW + 1), crew(), False, Step.ACQUIRE),
    ],
)
def test_the_first_step_with_a_shard(known: NotOwned | None, members: Membership, released: bool, first: Step) -> None:
    """A shard is acquired once its reason is over, or sooner where another worker transfers it here."""
    observed = {} if known is None else {S: known}

    assert step(a_view(members, observed=observed, released=frozenset({S} if released else ())), S) is first


def test_a_worker_takes_no_more_than_its_share_at_once() -> None:
    """Beyond its share a shard is left to other workers for a second; then the first worker to come takes it."""
    full = a_view(crew(Member(OTHER, "h"), target=1), owned={Shard("mine"): Owned()})
    [first, second] = [postponed(full, S, 0), postponed(replace(full, owned={}), S, 1)]

    assert isinstance(first, Deferred)
    assert first == second
    assert postponed(replace(full, owned={}), S, 0) is None
    assert postponed(replace(full, observed={S: first}), S, 0) is first
    assert postponed(replace(full, observed={S: first}, now=NOW + 1), S, 0) is None
    assert postponed(replace(full, members=replace(full.members, expects={S: NOW})), S, 0) is None


def test_a_shard_on_its_way_to_another_worker_is_left_to_it_for_a_moment() -> None:
    """A receiver that does not come for a shard keeps other workers away for two seconds at most."""
    promised = a_view(crew(Member(OTHER, "h"), promised={S: NOW}))
    why = postponed(promised, S, 0)

    assert isinstance(why, Deferred)
    assert why.promised
    assert postponed(replace(promised, now=NOW + EXPECT_S + 0.1), S, 0) is None


def test_what_is_known_of_a_deferred_shard_stays_known() -> None:
    """The reason, the holder and the damage outlast that a shard is left to another worker, once or twice."""
    damaged = Damaged(reason="bad disk", until=NOW)
    again = deferred(deferred(damaged, NOW + 1, promised=False), NOW + 2, promised=True)

    assert (again.reason, again.was_damaged, again.former) == ("bad disk", True, damaged)
    assert deferred(Foreign(reason="http", settled=True), NOW, promised=False).former is None


@pytest.mark.parametrize(
    ("cookie", "from_radosgw", "may"),
    [(GATEWAY, False, False), (GATEWAY, True, True), (OTHER, True, False), ("remora/claim/1", False, True)],
)
def test_whose_lock_may_be_broken(cookie: str, from_radosgw: bool, may: bool) -> None:
    """A claim's always, a gateway's by the settings, another worker's never."""
    assert may_evict(lock(cookie), from_radosgw=from_radosgw) is may


def test_whose_lease_ran_out() -> None:
    """A free lock was let run out where its lease had ended by the time of the next reading, and else released."""
    held = Elsewhere(holder=lock(OTHER, 10), seen_at=NOW)

    assert ran_out(held, NOW + 8, 2)
    assert not ran_out(held, NOW + 7.9, 2)
    assert not ran_out(None, NOW, 2)
    assert not ran_out(Released(holder=lock(OTHER, 0), seen_at=NOW), NOW, 2)


def test_what_a_worker_wants() -> None:
    """An offered shard is wanted that the catalogue lists, unless something keeps this worker from it."""
    assert wants(a_view(), S)
    assert not wants(a_view(shards={}), S)
    for why, wanted in [
        (transferred(OTHER, NOW + 3), True),
        (Elsewhere(holder=lock(OTHER), seen_at=NOW), True),
        (Broken(until=NOW + 1), False),
        (Released(), False),
        (Foreign(reason="http", settled=True), False),
        (Foreign(reason="unknown"), True),
    ]:
        assert wants(a_view(observed={S: why}), S) is wanted, why


# ------------------------------------------------------------------------------------- transferring


def an_owner(count: int, *others: Member, **changes: Any) -> View:
    shards = [Shard(f"s{number}") for number in range(count)]
    members = replace(crew(*others, known=count, steady_since=NOW - 2 * STEADY_S), **changes)
    return a_view(members, shards={shard: n for n, shard in enumerate(shards)}, owned={s: Owned() for s in shards})


def test_what_is_beyond_the_share_is_offered_and_then_transferred() -> None:
    """First offered, then given up when the receiver expects it; a draining owner gives it up after a while."""
    first = transfers(an_owner(4, Member(OTHER, "h")))
    assert list(first.offer.values()) == [OTHER, OTHER]

    offers = {shard: Outgoing(OTHER, NOW) for shard in first.offer}
    [one, two] = first.offer
    waiting = an_owner(4, Member(OTHER, "h"), offers=offers)
    assert transfers(waiting).offer == {}
    assert transfers(waiting).transfer == {}

    seen = an_owner(4, Member(OTHER, "h", expects=(one,)), offers=offers)
    assert list(transfers(seen).transfer) == [one]
    begun = an_owner(4, Member(OTHER, "h", expects=(one,)), offers={**offers, one: Outgoing(OTHER, NOW, begun=True)})
    assert transfers(begun).transfer == {}
    late = replace(an_owner(4, Member(OTHER, "h"), offers=offers, draining=True), now=NOW + PATIENCE_S + 1)
    assert set(transfers(late).transfer) == {one, two}


def test_numbers_are_evened_out_with_shards_that_did_not_move_for_their_load() -> None:
    """Shards that came for their load stay as long as the others are enough; where all have to go, they go as well."""
    moved = {Shard("s0"): NOW, Shard("s3"): NOW - 5000}

    some = transfers(an_owner(4, Member(OTHER, "h"), moved=moved))
    more = transfers(an_owner(4, Member(OTHER, "h"), moved={Shard(f"s{number}"): NOW for number in range(3)}))
    all_of_them = transfers(an_owner(4, Member(OTHER, "h"), moved=moved, draining=True))

    assert set(some.offer) == {Shard("s1"), Shard("s2")}
    assert len(more.offer) == 2
    assert len(all_of_them.offer) == 4


def test_offers_are_withdrawn_when_nobody_would_take_them() -> None:
    """With the receiver gone or draining, or the shard gone, an offer is withdrawn; one that has begun stays."""
    shard, gone = Shard("s0"), Shard("gone")
    offers = {shard: Outgoing(OTHER, NOW), gone: Outgoing(OTHER, NOW, begun=True)}

    assert transfers(an_owner(1, offers=offers)).withdraw == [shard, gone]
    assert transfers(an_owner(1, Member(OTHER, "h", draining=True), offers=offers)).withdraw == [shard, gone]
    begun = {shard: Outgoing(OTHER, NOW, begun=True)}
    assert transfers(an_owner(1, offers=begun)).withdraw == []


def test_nothing_is_offered_before_the_workers_have_been_the_same_for_a_moment() -> None:
    """Workers that start together come one by one, and what the first takes need not move twice."""
    assert transfers(an_owner(4, Member(OTHER, "h"), steady_since=NOW)).offer == {}


def test_a_shard_is_expected_until_it_is_here_and_its_offer_is_gone() -> None:
    """An offer is followed from when it is seen; without the shard it is forgotten a moment after it has gone."""
    offering = Member(OTHER, "h", 1, offers=(Offer(ME, (S,)),))
    seen = expecting(updated(crew(), [offering], NOW), {}, {S}, NOW)
    assert dict(seen.expects) == {S: NOW}

    gone = updated(seen, [Member(OTHER, "h")], NOW + 1)
    assert S not in expecting(gone, {S: Owned()}, (), NOW + 1).expects
    assert S in expecting(gone, {}, (), NOW + EXPECT_S).expects
    assert S not in expecting(gone, {}, (), NOW + EXPECT_S + 0.1).expects
    assert S not in expecting(replace(seen, draining=True), {}, {S}, NOW).expects
