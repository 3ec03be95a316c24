"""Balance by load between rows: figures with what is on its way, news, means, and skew beside the fair numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.member import COMMAND_COOKIE, HandOverRequest, Member, Offer
from remora.model.shard import Origin, Shard
from remora.policy.ownership.balance import BUSY_AT_ONCE, counts, skews, targets, transfer_plan
from remora.policy.ownership.loads import SAMPLES, Due, Mean, Own, Said, is_news, loads, next_offers, round_of
from remora.policy.ownership.membership import (
    EXPECT_S,
    POLL_OFTEN_S,
    ROWS_PER_SECOND,
    UNHEARD_S,
    Announced,
    Membership,
    Outgoing,
    expecting,
    updated,
)
from remora.policy.ownership.shedding import Options

NOW = 1000.0
A, B, C = (f"remora/h/b/{name}" for name in "abc")


def shards(count: int, name: str = "t") -> list[Shard]:
    return [Shard(f"{name}.{number}") for number in range(count)]


# --------------------------------------------------------------------------------------- figures


def test_what_is_on_its_way_counts_for_its_receiver() -> None:
    """An offer for load lowers its owner's figures and raises its receiver's at once; one by number changes none."""
    by_load, by_number = Offer(B, tuple(shards(2)), 0.25, 5e6), Offer(B, tuple(shards(1, "u")))
    rows = [
        Member(A, "h", 6, offers=(by_load, by_number), usage=0.75, history=0.5, bytes=2e7),
        Member(B, "h", 6, usage=0.25, history=0.125, bytes=1e6),
    ]

    a, b = loads(rows)

    assert (a.usage, a.history, a.bytes) == (0.5, 0.25, 1.5e7)
    assert (b.usage, b.history, b.bytes) == (0.5, 0.375, 6e6)
    assert len(a.shards) >= 2


def test_a_shard_counts_for_its_receiver_all_the_way() -> None:
    """In all rows that a third worker may read, from the offer on until the receiver has measured what came, the
    receiver does at least what it did before and the shard's part; and never both twice."""
    shard = Shard("t.0")
    giver = Membership(A, load=Announced(0.75, 0.75, 0.0), offers={shard: Outgoing(B, NOW, load=0.5)})
    offering, withdrawn = giver.row({shard}), replace(giver, offers={}, skew=-1).row(())
    idle = Membership(B, load=Announced(0.25, 0.25, 0.0))
    expects = expecting(updated(idle, [offering], NOW), (), {shard}, NOW)
    waits = expecting(updated(expects, [withdrawn], NOW + 0.1), (), (), NOW + 0.1)
    here = expecting(updated(waits, [withdrawn], NOW + 0.2), {shard}, (), NOW + 0.2)

    for theirs, ours in (
        (offering, idle.row(())),
        (offering, expects.row(())),
        (withdrawn, expects.row(())),
        (withdrawn, waits.row(())),
        (withdrawn, here.row({shard})),
    ):
        assert loads([theirs, ours])[1].usage == 0.75


def test_who_takes_part() -> None:
    """Workers that drain, that say nothing of their load, or that have no row are in no round."""
    rows = [
        Member(A, "h", 2, usage=0.5, offers=(Offer("remora/h/b/gone", tuple(shards(1)), 0.125, 1.0),)),
        Member(B, "h", 2, draining=True, usage=0.5),
        Member(C, "h", 2),
    ]

    assert [each.name for each in loads(rows)] == [A]


@pytest.mark.parametrize(("number", "reason"), [(0, "no_shards"), (1, "only_shard"), (2, "")])
def test_a_worker_with_one_shard_keeps_it(number: int, reason: str) -> None:
    """Of a busy worker's shards one goes to an idle one, but never its only one."""
    held = dict.fromkeys(shards(number), 3e7)
    rows = [Member(A, "h", number, usage=0.9, history=0.9), Member(B, "h", 1, usage=0.1, history=0.1)]
    own = Own(A, 0.9, 0.9, held, {}, sum(held.values()))

    done = round_of(own, rows, Options(minimum=0), NOW)

    assert done.skipped == reason
    assert list(done.moves.values()) == ([Due(B, 0.45, 3e7)] if number == 2 else [])


@given(st.integers(1, 5), st.integers(0, 70))
def test_shards_that_wait_for_others_are_no_load(busy: int, waiting: int) -> None:
    """Shards of a new layout, which deliver nothing yet, neither move for their load nor change which others do."""
    parents, children = dict.fromkeys(shards(busy), 3e7), dict.fromkeys(shards(waiting, "t@1"), 0.0)

    def moves(held: dict[Shard, float]) -> dict[Shard, Due]:
        rows = [Member(A, "h", len(held), usage=0.9, history=0.9), Member(B, "h", 1, usage=0.1, history=0.1)]
        own = Own(A, 0.9, 0.9, held, {}, sum(held.values()))
        return dict(round_of(own, rows, Options(minimum=0), NOW).moves)

    assert moves(parents | children) == moves(parents)
    assert bool(moves(parents)) is (busy > 1)


def test_what_is_on_offer_is_given_once() -> None:
    """A worker that has part of its load on offer needs to give what is left, by the bytes that are left."""
    given, kept = shards(1, "given")[0], shards(4, "kept")
    offer = Offer(B, (given,), 0.3, 3e7)
    rows = [
        Member(A, "h", 5, offers=(offer,), usage=0.9, history=0.9, bytes=9e7),
        Member(B, "h", 1, expects=(given,), usage=0.3, history=0.3),
        Member(C, "h", 1, usage=0.1, history=0.1),
    ]

    done = round_of(Own(A, 0.9, 0.9, dict.fromkeys(kept, 1.5e7), {}, 9e7), rows, Options(minimum=0), NOW)

    over = 0.6 - (0.6 + 0.3 + 0.1) / 3 - 0.1
    assert done.needed == pytest.approx((over + 0.05) * 6e7)
    assert [due.load for due in done.moves.values()] == [pytest.approx(0.15)]


def test_queues_of_one_name_are_two_shards() -> None:
    """A queue of radosgw's and one of remora's own with the same name move apart from each other."""
    held = {Shard("t", Origin.RADOSGW): 3e7, Shard("t", Origin.REMORA): 3.5e7}
    rows = [Member(A, "h", 2, usage=0.9, history=0.9), Member(B, "h", 1, usage=0.1, history=0.1)]

    done = round_of(Own(A, 0.9, 0.9, held, {}, sum(held.values())), rows, Options(minimum=0), NOW)
    moved = dict.fromkeys(done.moves, NOW)
    later = round_of(Own(A, 0.9, 0.9, held, moved, sum(held.values())), rows, Options(minimum=0), NOW + 1)

    assert list(done.moves) == [Shard("t", Origin.REMORA)]
    assert list(later.moves) == [Shard("t", Origin.RADOSGW)]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40))
def test_a_mean_is_that_of_the_samples_at_first(values: list[float]) -> None:
    """Up to this many samples it is their mean; it never leaves the range of what was seen."""
    mean = Mean()
    for value in values:
        mean = mean.with_sample(value)

    assert min(values) - 1e-3 <= mean.value <= max(values) + 1e-3
    if len(values) <= SAMPLES:
        assert mean.value == pytest.approx(sum(values) / len(values), abs=1e-3)


@pytest.mark.parametrize(
    ("now", "is_new"),
    [
        (Said(Announced(0.45, 0.25, 1.05e6), NOW + 10, 10), False),
        (Said(Announced(0.51, 0.25, 1e6), NOW + 10, 10), True),
        (Said(Announced(0.4, 0.36, 1e6), NOW + 10, 10), True),
        (Said(Announced(0.4, 0.25, 1.2e6), NOW + 10, 10), True),
        (Said(Announced(0.4, 0.25, 1e6), NOW + 10, 12), True),
        (Said(Announced(0.4, 0.25, 1e6), NOW + 901, 10), True),
        (Said(Announced(None), NOW + 10, 10), True),
    ],
)
def test_a_row_changes_when_it_is_news(now: Said, is_new: bool) -> None:
    """Ten points of usage or history, a tenth of the bytes or shards, or a quarter of an hour; else it stays."""
    assert is_news(Said(Announced(0.4, 0.25, 1e6), NOW, 10), now) is is_new


def test_few_busy_shards_are_on_offer_at_once() -> None:
    """Of many moves as many are offered as leave room, to workers that take shards, and none twice."""
    due = {shard: Due(B if number % 2 else C, 0.1, 5.0) for number, shard in enumerate(shards(40))}
    first = next_offers(due, {}, {B, C}, NOW)
    then = next_offers(due, first, {B, C}, NOW)

    assert list(first) == shards(40)[:BUSY_AT_ONCE]
    assert first[Shard("t.1")] == Outgoing(B, NOW, load=0.1, bytes=5.0)
    assert then == {}
    assert {each.to for each in next_offers(due, {}, {C}, NOW).values()} == {C}


# ------------------------------------------------------------------------------------------ skew


@given(
    held=st.lists(st.integers(0, 30), min_size=2, max_size=5),
    giver=st.integers(0, 4),
    taker=st.integers(0, 4),
    count=st.integers(1, 6),
)
def test_no_step_of_a_move_for_load_asks_for_one_by_number(held: list[int], giver: int, taker: int, count: int) -> None:
    """From the offer over the hand-over to the end, numbers that were even count as even, in every pair of rows."""
    giver, taker = giver % len(held), taker % len(held)
    total = sum(held)
    even = targets([Member(f"w{n}", "h", 0) for n in range(len(held))], total)
    rows = {name: Member(name, "h", number) for name, number in even.items()}
    a, b = f"w{giver}", f"w{taker}"
    moving = tuple(shards(min(count, rows[a].shards)))
    if a == b or not moving:
        return
    number = len(moving)
    offer = (Offer(b, moving, 0.1, 1.0),)
    owner, receiver = rows[a], rows[b]
    steps = [
        (replace(owner, offers=offer, skew=-number), receiver),
        (replace(owner, offers=offer, skew=-number), replace(receiver, expects=moving, skew=number)),
        (replace(owner, shards=owner.shards - number, skew=-number), replace(receiver, expects=moving, skew=number)),
        (
            replace(owner, shards=owner.shards - number, skew=-number),
            replace(receiver, shards=receiver.shards + number, skew=number),
        ),
    ]

    for first, second in steps:
        seen = [*(each for name, each in rows.items() if name not in (a, b)), first, second]
        assert sum(counts(seen).values()) == total
        assert sum(skews(seen).values()) == 0
        assert all(transfer_plan(each.cookie, seen, total) == [] for each in seen)


@given(
    held=st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 5), st.booleans()), min_size=1, max_size=8),
    shards_of=st.integers(0, 200),
)
def test_fair_numbers_are_even_but_for_the_skew(held: list[tuple[int, int, bool]], shards_of: int) -> None:
    """Without their skews two workers differ by one shard at most, unless a skew is below what there is to give."""
    members = [Member(f"w{n}", "h", count, drains, skew=skew) for n, (count, skew, drains) in enumerate(held)]
    wanted = targets(members, shards_of)
    even = [wanted[each.cookie] - each.skew for each in members if not each.draining and wanted[each.cookie]]

    assert all(number >= 0 for number in wanted.values())
    assert all(wanted[each.cookie] == 0 for each in members if each.draining)
    assert not even or max(even) - min(even) <= 1


def test_a_receiver_notes_what_came_for_its_load() -> None:
    """From the offer on it counts as received; when it is here it is noted, and its load joins what the row says."""
    view = Membership(B, load=Announced(0.25, 0.25, 0.0))
    giver = Member(A, "h", 2, offers=(Offer(B, (Shard("t.0"),), 0.5, 9.0),), skew=-1)

    expected = expecting(updated(view, [giver], NOW), (), {Shard("t.0")}, NOW)
    assert expected.for_load == {Shard("t.0"): 0.5}
    assert expected.row(()).skew == 1
    here = expecting(updated(expected, [giver], NOW + 0.1), {Shard("t.0")}, (), NOW + 0.1)
    assert here.row({Shard("t.0")}).skew == 1
    done = expecting(updated(here, [Member(A, "h", 1, skew=-1)], NOW + 0.2), {Shard("t.0")}, (), NOW + 0.2)

    assert (done.skew, done.moved) == (1, {Shard("t.0"): NOW + 0.2})
    assert done.expects == done.for_load == {}
    assert done.row({Shard("t.0")}).skew == 1
    assert done.load.usage == 0.75


def test_a_shard_that_never_came_is_no_skew() -> None:
    """A receiver that did not get what was offered for its load counts nothing when it stops to expect it."""
    view = Membership(B)
    giver = Member(A, "h", 2, offers=(Offer(B, (Shard("t.0"),), 0.5, 9.0),))
    expected = expecting(updated(view, [giver], NOW), (), {Shard("t.0")}, NOW)

    late = NOW + EXPECT_S + 0.1
    gone = expecting(updated(expected, [Member(A, "h", 1)], late), (), (), late)

    assert (gone.skew, gone.moved, gone.for_load, gone.expects) == (0, {}, {}, {})


def test_offers_for_load_stand_apart_from_those_by_number() -> None:
    """A row groups what goes to one worker by why it goes, with the load of all of it together."""
    offers = {
        Shard("a"): Outgoing(B, NOW, load=0.25, bytes=10.0),
        Shard("b"): Outgoing(B, NOW),
        Shard("c"): Outgoing(B, NOW, load=0.5, bytes=20.0),
    }
    row = Membership(A, offers=offers, skew=3).row(offers.keys())

    assert row.offers == (Offer(B, (Shard("a"), Shard("c")), 0.75, 30.0), Offer(B, (Shard("b"),)))
    assert row.skew == 1


def test_what_a_command_asks_is_no_worker() -> None:
    """A command's row is none of the others, disturbs nobody, and is gone when the row is."""
    view = updated(Membership(A, steady_since=NOW - 100), [Member(B, "h")], NOW - 50)
    command = Member(f"{COMMAND_COOKIE}x", "h", draining=True, asks=(HandOverRequest(Shard("t.0"), B),))

    asked = updated(view, [Member(B, "h"), command], NOW)

    assert asked.others.keys() == {B}
    assert asked.steady_since == view.steady_since
    assert asked.asked == {Shard("t.0"): B}
    assert updated(asked, [Member(B, "h")], NOW).asked == {}


# ----------------------------------------------------------------------------------------- looks


@pytest.mark.parametrize(("workers", "look_s"), [(1, 1.0), (100, 1.0), (1000, 10.0), (4000, 40.0)])
def test_looks_read_so_many_rows_a_second(workers: int, look_s: float) -> None:
    """The more workers there are the seldomer each looks, but for those that move shards just then."""
    others = {f"w{number}": Member(f"w{number}", "h") for number in range(workers - 1)}
    view = Membership(A, others=others)
    begun = view.poll_again_s(view.steady_since + 0.5)

    assert view.look_s == view.poll_again_s(NOW) == look_s
    assert workers / view.look_s <= ROWS_PER_SECOND
    assert begun == look_s / 4
    assert replace(view, expects={Shard("t"): NOW}).poll_again_s(NOW) == POLL_OFTEN_S
    offers = {Shard("t"): Outgoing(B, NOW, load=0.0)}
    assert replace(view, offers=offers).poll_again_s(NOW) == POLL_OFTEN_S
    assert not view.is_unheard(offers[Shard("t")], NOW + UNHEARD_S)
    assert view.is_unheard(offers[Shard("t")], NOW + max(UNHEARD_S, 4 * look_s) + 0.1)
    assert not view.is_unheard(Outgoing(B, NOW), NOW + 1e6)
