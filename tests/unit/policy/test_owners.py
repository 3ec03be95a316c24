"""Who delivers to a destination that fails some workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from remora.model.member import Member
from remora.model.shard import Shard
from remora.policy.ownership.attempt import postponed, wants
from remora.policy.ownership.balance import BUSY_AT_ONCE
from remora.policy.ownership.membership import Membership, Outgoing
from remora.policy.ownership.not_owned import Deferred
from remora.policy.ownership.owners import avoids, is_unwelcome, leaving, quarantining_part
from remora.policy.ownership.view import View

NOW = 100.0
PLACE = "kafka://b:9092"
ME, A, B = "remora/h/b/me", "remora/h/b/a", "remora/h/b/b"
BAD, GOOD = Shard("bad"), Shard("good")


@dataclass
class Held:
    is_idle: bool = False
    is_leaving: bool = False
    has_work: bool = True


def a_view(
    others: Sequence[Member], *, own: bool, owned: Sequence[Shard] = (), draining: bool = False, target: int = 9
) -> View:
    """What a worker sees that has the destination in quarantine, or not."""
    members = Membership(
        ME,
        others={each.cookie: each for each in others},
        quarantined=(PLACE,) if own else (),
        draining=draining,
        target=target,
    )
    shards = {BAD: 0, GOOD: 1, **dict.fromkeys(owned, 2)}
    quarantined = {shard: PLACE for shard in shards if shard.queue.startswith("bad")}
    return View(NOW, shards, {shard: Held() for shard in owned}, {}, members, quarantined=quarantined)


def member(cookie: str, *, bad: bool = False, draining: bool = False, shards: int = 0) -> Member:
    return Member(cookie, "h", shards, draining, quarantined=(PLACE,) if bad else ())


@pytest.mark.parametrize(
    ("others", "own", "avoided"),
    [
        ([member(A)], True, True),
        ([member(A)], False, False),
        ([member(A, bad=True)], True, False),
        ([member(A, bad=True), member(B)], True, True),
        ([member(A, draining=True)], True, False),
        ([], True, False),
    ],
)
def test_shards_are_left_to_a_worker_that_has_no_trouble(others: list[Member], own: bool, avoided: bool) -> None:
    """A worker avoids a destination's shards while it has it in quarantine, and a live worker has not."""
    view = a_view(others, own=own)

    assert avoids(view, BAD) is avoided
    assert wants(view, BAD) is not avoided
    assert not avoids(view, GOOD)


def test_an_avoided_shard_is_taken_when_nobody_comes() -> None:
    """It is left to others for a while, and then taken all the same: no shard waits for a worker that does not come."""
    view = a_view([member(A)], own=True)

    why = postponed(view, BAD, 0)
    assert isinstance(why, Deferred)
    assert why.until > NOW
    later = View(why.until, view.shards, {}, {BAD: why}, view.members, quarantined=view.quarantined)
    assert postponed(later, BAD, 0) is None
    assert postponed(view, GOOD, 0) is None


def test_avoided_shards_are_offered_to_who_has_the_fewest() -> None:
    """A few at a time, in turn, to workers that have no trouble; those of other destinations stay."""
    bad = [Shard(f"bad.{number}") for number in range(12)]
    others = [member(A, shards=3), member(B, shards=1), member("remora/h/b/c", bad=True)]
    view = a_view(others, own=True, owned=[*bad, Shard("good.1")])

    offers = leaving(view, {})

    assert len(offers) == BUSY_AT_ONCE
    assert list(offers.values()) == [B, B, A, B, A, B, A, B]
    on_offer = {shard: Outgoing(to, NOW) for shard, to in offers.items()}
    assert leaving(view, on_offer) == {}
    assert leaving(a_view(others, own=False, owned=bad), {}) == {}


def test_numbers_are_evened_out_by_what_the_receiver_takes() -> None:
    """A shard whose destination the receiver has in quarantine is none for it, unless all workers have it."""
    view = a_view([member(A, bad=True)], own=False)

    assert is_unwelcome(view, BAD, view.members.others[A])
    assert not is_unwelcome(view, GOOD, view.members.others[A])
    everybody = a_view([member(A, bad=True)], own=True)
    assert not is_unwelcome(everybody, BAD, everybody.members.others[A])


def test_the_part_that_quarantines_is_of_the_destination_that_most_do() -> None:
    """Of all workers, those that drain too; none where no worker is known or none quarantines anything."""
    two, one = Member("c", "h", 0, False, quarantined=("a:1", PLACE)), member("d", bad=True, draining=True)

    assert quarantining_part([member("a"), member("b"), two, one]) == 0.5
    assert quarantining_part([member("a")]) == 0.0
    assert quarantining_part([]) == 0.0
