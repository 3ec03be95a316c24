"""The number of an event behind its entry, and in the header of its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import speedups
from remora.codec.event_entry import decode, encode, renewed
from remora.codec.rendering_cached import Renderer
from remora.codec.sequence import number_of, sequence_prefix, with_number, without_number
from remora.model.entry import EventEntry
from unit.codec.samples import MINIMAL, entries, listing_of, mutated, real_pairs

if TYPE_CHECKING:
    from remora.codec._compiled import CompiledRendering

numbers = st.integers(0, (1 << 64) - 1)


@given(entries.map(encode), numbers)
def test_the_number_behind_an_entry_is_read_again(entry: bytes, number: int) -> None:
    """Any number comes back, the entry is what it was, and decoding or renewing it passes the number over."""
    stored = with_number(entry, number)

    assert (number_of(entry), number_of(stored), without_number(stored)) == (None, number, entry)
    assert decode(stored) == decode(entry)
    assert without_number(renewed(stored, 1)) == renewed(entry, 1)


@given(entries.map(encode), st.binary(max_size=7))
def test_fewer_than_eight_bytes_are_no_number(entry: bytes, behind: bytes) -> None:
    """What stands behind an entry that was not numbered is no number, and stays."""
    assert number_of(entry + behind) is None
    assert without_number(entry + behind) == entry + behind


@given(st.binary(max_size=5) | st.just(b"\xff\xff\xff\xff broken ev.1"), numbers)
def test_the_number_of_what_is_no_entry(junk: bytes, number: int) -> None:
    """Bytes that nobody can decode have the number that the store has put behind them."""
    assert number_of(with_number(junk, number)) == number
    assert without_number(with_number(junk, number)) == junk


@pytest.mark.parametrize("way", dict.fromkeys([None, speedups.CompiledRendering]))
@given(st.lists(st.tuples(st.sampled_from([each.entry for each in real_pairs()[:5]]), numbers), max_size=5))
def test_numbers_are_rendered_and_change_nothing_else(
    way: type[CompiledRendering] | None, some: list[tuple[bytes, int]]
) -> None:
    """With the topic's prefix each record has its number, without one none; key, value, id and age are the same."""
    renderer = Renderer(way)
    bare = listing_of(*[entry for entry, _ in some])
    stored = listing_of(*[with_number(entry, number) for entry, number in some])

    for _ in range(2):  # the second time from what the renderer remembers
        plain, numbered, unsequenced = (
            renderer.render(page, None, prefix)[0]
            for page, prefix in ((bare, b""), (stored, sequence_prefix("t1")), (stored, b""))
        )

        assert [each.sequence for each in numbered] == [b"t1:%d" % number for _, number in some]
        assert [each[:7] for each in numbered] == list(map(tuple, (each[:7] for each in plain)))
        assert list(unsequenced) == list(plain)
        assert not any(each.sequence for each in plain)


@given(
    st.lists(entries | st.just(decode(MINIMAL)), max_size=4), st.lists(mutated([with_number(MINIMAL, 7)]), max_size=6)
)
def test_both_ways_read_the_same_numbers(some: list[EventEntry], damaged: list[bytes]) -> None:
    """Compiled and in Python, whatever stands behind an entry and however it is damaged."""
    page = listing_of(*[with_number(encode(each), i) for i, each in enumerate(some)], *damaged)

    made = [Renderer(way).render(page, None, b"t:") for way in (None, speedups.CompiledRendering)]

    assert list(made[0][0]) == list(made[1][0])
    assert list(made[0][1]) == list(made[1][1])
