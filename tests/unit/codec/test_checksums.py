"""Checksums of many texts, in Python and compiled: always those of zlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import checksums, speedups

Way = Callable[[Sequence[bytes], int], list[int]]
Comparing = Callable[[Sequence[tuple[bytes, int | None]], int], list[int]]
WAYS = dict.fromkeys([checksums.checksums, speedups.checksums])
COMPARING = dict.fromkeys([checksums.mismatches, speedups.mismatches])


@pytest.mark.parametrize("way", WAYS)
def test_of_every_length(way: Way) -> None:
    """Texts of every length up to some hundred bytes, and long ones, have the checksums that zlib gives them."""
    noise = Random(7).randbytes(70_000)
    texts = [noise[:size] for size in (*range(400), 1000, 4096, 65_537, 70_000)]

    assert way(texts, 5) == [crc32(text, 5 + i) for i, text in enumerate(texts)]


@pytest.mark.parametrize("way", WAYS)
@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 1 << 70))
def test_of_any_bytes(way: Way, texts: list[bytes], start: int) -> None:
    """Each text's begins with the low 32 bits of its own number."""
    assert way(texts, start) == [crc32(text, (start + i) & 0xFFFFFFFF) for i, text in enumerate(texts)]


@pytest.mark.parametrize("way", WAYS)
def test_of_anything_else(way: Way) -> None:
    """What is no text is refused."""
    for wrong in ("text", None, 7):
        with pytest.raises(TypeError):
            way([wrong], 0)  # type: ignore[list-item]


@pytest.mark.parametrize("way", COMPARING)
@given(st.lists(st.tuples(st.binary(max_size=100), st.sampled_from(["right", "wrong", "none"]))), st.integers(0, 99))
def test_what_has_changed(way: Comparing, given: list[tuple[bytes, str]], start: int) -> None:
    """The rows are told whose checksum is another one; those that have none pass."""
    right = checksums.checksums([text for text, _ in given], start)
    rows: list[tuple[bytes, int | None]] = []
    for i, (text, kind) in enumerate(given):
        rows.append((text, {"right": right[i], "wrong": right[i] ^ 1 << i % 40}.get(kind)))

    assert way(rows, start) == [i for i, (_, kind) in enumerate(given) if kind == "wrong"]
