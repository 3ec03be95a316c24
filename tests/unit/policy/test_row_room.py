"""The one size bound of a worker's row, whatever it offers, expects and leaves to others."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.member import Member, Offer
from remora.model.shard import Origin, Shard
from remora.policy.ownership import row_room
from remora.policy.ownership.membership import Membership, Outgoing, expecting
from remora.policy.ownership.row_room import ROW_BYTES
from remora.policy.shaping.split import MOST_GROUPS

ME = "remora/" + "/".join(["3f2504e0-4f89-11d3-9a0c-0305e82c3301"] * 3)
NOW = 1000.0
ENVELOPE_BYTES = 48
"""What a store adds to a row: its number and for how long it counts."""

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=80)
SHARDS = st.lists(st.builds(Shard, NAMES, st.sampled_from(Origin)), unique=True, max_size=250)
OFFERS = st.builds(
    Outgoing,
    st.sampled_from([f"{ME}/{number}" for number in range(12)]),
    st.just(NOW),
    load=st.none() | st.floats(0, 1),
    bytes=st.floats(0, 1e9),
    moved_s=st.none() | st.floats(0, 1e4),
)


WANTS = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.none() | st.integers(0, 2**40)), max_size=MOST_GROUPS, unique=True
).map(tuple)


@given(offered=SHARDS, expected=SHARDS, left=st.lists(NAMES, max_size=16, unique=True), wants=WANTS, data=st.data())
def test_a_row_is_never_longer_than_its_bound(
    offered: list[Shard],
    expected: list[Shard],
    left: list[str],
    wants: tuple[tuple[int, int | None], ...],
    data: st.DataObject,
) -> None:
    """However much a worker has to say, a store keeps at most this many bytes of it; and something is always said."""
    offers = {shard: data.draw(OFFERS) for shard in offered}
    other = Member("remora/o", "h", offers=(Offer(ME, tuple(expected)),))
    me = Membership(ME, "host.example.com", {"remora/o": other}, quarantined=tuple(row_room.named(left)))
    me = replace(me, hostname="h" * 99, release="r" * 99)
    me = replace(me, wants=wants)

    for view in (
        expecting(me.with_offers(offers, 5), (), expected, NOW),
        expecting(me, (), expected, NOW).with_offers(offers, 5),
    ):
        row = view.row(offered)

        assert len(msgspec.msgpack.encode(row)) + ENVELOPE_BYTES <= ROW_BYTES
        assert bool(row.offers) == bool(offered)
        assert bool(row.expects) == bool(expected)
        assert list(view.offers) == offered[: len(view.offers)]
        assert set(row.expects) <= set(expected)
        assert row.wants == wants[: len(row.wants)]
        assert len(row.wants) >= min(len(wants), 18)


def test_what_does_not_fit_is_said_later() -> None:
    """Once the first offers are carried out the others are made, and what was offered before is never taken back."""
    shards = [Shard(f"queue-with-some-name.{number}") for number in range(256)]
    offers = {shard: Outgoing("remora/o", NOW) for shard in shards}
    first = Membership(ME).with_offers(offers, 0)

    again = first.with_offers({**first.offers, **offers}, 0)
    later = first.with_offers({shard: offers[shard] for shard in shards if shard not in first.offers}, 0)

    assert again.offers == first.offers
    assert next(iter(later.offers)) == shards[len(first.offers)]
    assert 40 < len(first.offers) < 256


@pytest.mark.parametrize("moved_at", [None, NOW - 600])
def test_the_next_owner_knows_of_an_earlier_move_for_load(moved_at: float | None) -> None:
    """A shard that came for its load and goes on to even out numbers has its time of that with its next owner, to which
    it is no shard of its skew."""
    shard = Shard("t.1")
    giver = Membership("remora/a", moved={} if moved_at is None else {shard: moved_at}, skew=1)
    offering = giver.with_offers({shard: giver.outgoing(shard, ME, NOW)}, 1).row({shard})
    me = Membership(ME, others={"remora/a": offering})

    expects = expecting(me, (), {shard}, NOW + 1)
    waits = expecting(replace(expects, others={"remora/a": Member("remora/a", "h")}), (), (), NOW + 2)
    here = expecting(waits, {shard}, (), NOW + 2.5)

    assert dict(here.moved) == ({} if moved_at is None else {shard: moved_at + 1})  # as if offered when it was seen
    assert here.skew == 0
    assert not here.expects
    assert not here.moved_before
