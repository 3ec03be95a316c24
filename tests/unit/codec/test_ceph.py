"""The cursor and the writer: every read is checked, whatever the bytes are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec.ceph import Cursor, Field, FieldWriter
from remora.model.entry import Time
from remora.model.errors import CodecError
from unit.codec.samples import pairs, texts, times


@given(
    st.integers(0, 2**8 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
    times,
    texts,
    pairs,
)
def test_every_type_is_read_as_it_was_written(
    u8: int, u16: int, u32: int, u64: int, s64: int, time: Time, text: bytes, some: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Values of every type survive writing and reading, inside a struct and in order."""
    data = (
        FieldWriter()
        .struct(
            7, 3, lambda w: w.u8(u8).u16(u16).u32(u32).u64(u64).s64(s64).time(time).string(text).pairs(some).raw(b"end")
        )
        .encoded()
    )

    cursor = Cursor(data, "").struct("x", 3)

    assert (cursor.version, cursor.compat) == (7, 3)
    assert (cursor.u8("a"), cursor.u16("b"), cursor.u32("c"), cursor.u64("d"), cursor.s64("e")) == (
        u8,
        u16,
        u32,
        u64,
        s64,
    )
    assert (cursor.time("f"), cursor.string("g"), cursor.pairs("h"), cursor.rest()) == (time, text, some, b"end")


@given(st.text(st.characters(codec=None)) | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape")))
def test_text_survives_even_when_it_is_not_utf8(text: str) -> None:
    """Any bytes can be read as text and written as the same bytes again."""
    raw = text.encode("utf-8", "surrogatepass")

    read = Cursor(FieldWriter().string(raw).encoded(), "").text("name")

    assert FieldWriter().text(read).encoded() == FieldWriter().string(raw).encoded()


def test_a_read_never_crosses_the_end_of_its_struct() -> None:
    """A field that its struct has no room for is refused, though bytes follow behind the struct."""
    data = FieldWriter().struct(1, 1, lambda w: w.u16(5)).raw(bytes(100)).encoded()

    with pytest.raises(CodecError) as caught:
        Cursor(data, "").struct("outer", 1).u32("size")

    assert (caught.value.field, caught.value.offset) == ("outer.size", 6)


def test_a_struct_never_crosses_the_end_of_the_one_around_it() -> None:
    """An inner length that reaches beyond the outer struct is refused, though there are bytes."""
    inner = FieldWriter().u8(1).u8(1).u32(50).encoded()
    data = FieldWriter().struct(1, 1, lambda w: w.raw(inner)).raw(bytes(100)).encoded()

    with pytest.raises(CodecError, match="a struct of 50 bytes, but only 0 are left") as caught:
        Cursor(data, "").struct("outer", 1).struct("inner", 1)

    assert caught.value.field == "outer.inner"


def test_fields_that_a_newer_writer_appended_are_skipped() -> None:
    """Reading continues behind the struct, wherever its known fields end."""
    data = FieldWriter().struct(9, 1, lambda w: w.u8(5).raw(b"from the future")).u8(77).encoded()
    cursor = Cursor(data, "")

    inner = cursor.struct("inner", 1)

    assert (inner.u8("known"), cursor.u8("next")) == (5, 77)


def test_a_struct_that_needs_a_newer_reader_is_refused() -> None:
    """Compat above the known version is refused; equal to it is not."""
    data = FieldWriter().struct(9, 4, lambda w: w.u8(5)).encoded()

    with pytest.raises(CodecError, match="x at byte 0: needs a reader of version 4, this one knows 3"):
        Cursor(data, "").struct("x", 3)

    assert Cursor(data, "").struct("x", 4).u8("known") == 5


@pytest.mark.parametrize("count", [3, 2**31, 2**32 - 1])
def test_a_count_without_room_is_refused_before_anything_is_read(count: int) -> None:
    """A number of items that the bytes cannot hold is refused as a whole."""
    data = FieldWriter().u32(count).string(b"").string(b"").string(b"").string(b"").encoded()

    with pytest.raises(CodecError, match=f"{count} items of at least 8 bytes, but only 16 are left") as caught:
        Cursor(data, "map").pairs("of")

    assert (caught.value.field, caught.value.offset) == ("map.of", 0)


def test_a_string_longer_than_what_is_left_is_refused() -> None:
    """A length of one byte too many names the string and where its length stands."""
    data = FieldWriter().u8(0).u32(4).raw(b"abc").encoded()
    cursor = Cursor(data, "")
    cursor.u8("first")

    with pytest.raises(CodecError, match="a string of 4 bytes, but only 3 are left") as caught:
        cursor.string("name")

    assert (caught.value.field, caught.value.offset) == ("name", 1)


def test_a_trace_holds_every_field_with_its_place() -> None:
    """Each field is noted with path, type, value and the offset of its first byte."""
    trace: list[Field] = []
    data = FieldWriter().struct(2, 1, lambda w: w.u8(1).string(b"ab").raw(b"xyz")).encoded()

    cursor = Cursor(data, "", trace).struct("s", 2)
    cursor.flag("is_on")
    cursor.string("name")
    cursor.rest()

    assert trace == [
        Field("s", "struct v2, compat 1", 10, 0),
        Field("s.is_on", "bool", True, 6),
        Field("s.name", "string", b"ab", 7),
        Field("s.(newer fields)", "bytes", b"xyz", 13),
    ]
