"""The trace context of a request behind its entries, and in the header of their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import speedups
from remora.codec.event_entry import decode, encode, renewed
from remora.codec.rendering_cached import Renderer
from remora.codec.sequence import number_of, with_number, without_number
from remora.codec.trace_context import TRACE_BYTES, parse, text, traceparent_of
from unit.codec.samples import MINIMAL, entries, listing_of, mutated, real_pairs

if TYPE_CHECKING:
    from remora.codec._compiled import CompiledRendering

ids = st.tuples(st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8).filter(any))
headers = st.builds(lambda both, flags: f"00-{both[0].hex()}-{both[1].hex()}-{flags:02x}", ids, st.integers(0, 255))
ENTRIES = [each.entry for each in real_pairs()[:5]]
GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@given(headers)
def test_a_header_comes_back_as_it_was(header: str) -> None:
    """Any header that W3C allows takes 26 bytes, and has its own text again."""
    assert len(parse(header)) == TRACE_BYTES
    assert text(parse(header)) == header.encode()


@pytest.mark.parametrize(
    ("header", "read"),
    [
        (f" {GIVEN}\t", GIVEN),
        ("cc" + GIVEN[2:] + "-what-the-future-will-be-like", GIVEN),
        ("cc" + GIVEN[2:], GIVEN),
        ("ff" + GIVEN[2:], ""),
        (GIVEN + "-more", ""),
        ("cc" + GIVEN[2:] + ".more", ""),
        (GIVEN.upper(), ""),
        (GIVEN.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), ""),
        (GIVEN.replace("00f067aa0ba902b7", "0" * 16), ""),
        (GIVEN[:-1], ""),
        (GIVEN.replace("-", "_"), ""),
        (GIVEN.replace("4", "\N{ARABIC-INDIC DIGIT FOUR}"), ""),
        ("", ""),
    ],
)
def test_what_a_header_may_be(header: str, read: str) -> None:
    """A later version is read as this one; what W3C forbids is no context at all."""
    assert (text(parse(header)).decode() if parse(header) else "") == read


@given(entries.map(encode), headers, st.none() | st.integers(0, (1 << 64) - 1))
def test_the_context_behind_an_entry_is_read_again(entry: bytes, header: str, number: int | None) -> None:
    """With a number behind it or without, and the entry and its number are what they were."""
    traced = entry + parse(header)
    stored = traced if number is None else with_number(traced, number)

    assert traceparent_of(stored) == header.encode()
    assert number_of(stored) == number
    assert (decode(stored), without_number(stored)) == (decode(entry), traced)
    assert traceparent_of(renewed(stored, 1)) == header.encode()
    assert traceparent_of(entry) == b""


@pytest.mark.parametrize("way", dict.fromkeys([None, speedups.CompiledRendering]))
@given(st.lists(st.tuples(st.sampled_from(ENTRIES), headers | st.just("")), max_size=5))
def test_contexts_are_rendered_and_change_nothing_else(
    way: type[CompiledRendering] | None, some: list[tuple[bytes, str]]
) -> None:
    """Each record has the context of its entry, or none; key, value, id and age are the same."""
    renderer = Renderer(way)
    for _ in range(2):  # the second time from what the renderer remembers
        plain, traced = (
            renderer.render(listing_of(*page), None)[0]
            for page in ([entry for entry, _ in some], [entry + parse(header) for entry, header in some])
        )

        assert [each.traceparent.decode() for each in traced] == [header for _, header in some]
        assert [each[:8] for each in traced] == [each[:8] for each in plain]


@given(st.lists(mutated([MINIMAL + parse(GIVEN), with_number(MINIMAL + parse(GIVEN), 7)]), max_size=6))
def test_both_ways_read_the_same_contexts(damaged: list[bytes]) -> None:
    """Compiled and in Python, whatever stands behind an entry and however it is damaged."""
    page = listing_of(*damaged)

    made = [Renderer(way).render(page, None, b"t:") for way in (None, speedups.CompiledRendering)]

    assert list(made[0][0]) == list(made[1][0])
    assert list(made[0][1]) == list(made[1][1])
