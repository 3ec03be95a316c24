"""What is sent to and read from the queue class, against known bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import queue_ops
from remora.codec.ceph import FieldWriter
from remora.codec.queue_ops import QueueReservation, QueueStats, decode_head, decode_listing, entry_end
from remora.model.entry import Time
from remora.model.errors import CodecError
from remora.model.position import Position
from unit.codec.samples import framed, list_reply, queue_head, reservation, times


@pytest.mark.parametrize(
    ("made", "known"),
    [
        # init differs from radosgw's own in nothing that the class looks at
        (queue_ops.encode_init(128_000_000), "0101140000000020a10700000000000000000000000000000000"),
        (queue_ops.encode_reserve(4096, 1), "01010c000000001000000000000001000000"),
        (queue_ops.encode_commit(1, [b"hello"]), "01011100000001000000010000000500000068656c6c6f"),
        (queue_ops.encode_abort(1), "01010400000001000000"),
        (queue_ops.encode_list(1024), "02011000000000040000000000000000000000000000"),
        (queue_ops.encode_remove(b"0/24676", 2), "02010f00000007000000302f323436373602000000"),
        (
            queue_ops.encode_list(2, b"0/24576", b"1/7"),
            "02011a000000020000000000000007000000302f323435373603000000312f37",
        ),
        (queue_ops.encode_commit(7, [b"", b"a"]), "01011100000007000000020000000000000001000000" + "61"),
    ],
)
def test_requests_are_the_known_bytes(made: bytes, known: str) -> None:
    """Each request equals the bytes that a real OSD accepted."""
    assert made.hex() == known


def test_replies_are_read_from_the_known_bytes() -> None:
    """Each reply gives the values that its bytes stand for."""
    page = decode_listing(
        bytes.fromhex(
            "01012a0000000007000000302f3234353931010000000101140000000500000068656c6c6f07000000302f3234353736"
        )
    )

    assert queue_ops.decode_reserve(bytes.fromhex("01010400000001000000")) == 1
    assert (page.entries, page.positions, page.truncated) == ([b"hello"], [b"0/24576", b"0/24591"], False)
    assert queue_ops.decode_capacity(framed(lambda w: w.u64(128_000_000))) == 128_000_000
    assert queue_ops.decode_stats(framed(lambda w: w.u64(15).u32(1))) == QueueStats(15, 1)


markers = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).map(lambda m: b"%d/%d" % m)


@given(st.lists(st.tuples(st.binary(max_size=20), markers)), markers, st.booleans())
def test_any_list_reply_is_read_as_it_was_written(
    entries: list[tuple[bytes, bytes]], next_marker: bytes, truncated: bool
) -> None:
    """Entries and positions come back in order, with the place behind the last one at the end."""
    page = decode_listing(list_reply(entries, next_marker, truncated=truncated))

    assert page.entries == [data for data, _ in entries]
    assert page.positions == [*(marker for _, marker in entries), next_marker]
    assert page.truncated == truncated


def _entry_v9(data: bytes, marker: bytes, compat: int = 1) -> bytes:
    return framed(lambda w: w.string(data).string(marker).raw(b"newer fields"), 9, compat)


def _reply(body: Callable[[FieldWriter], object]) -> bytes:
    return framed(lambda w: body(w.u8(0).string(b"0/99")))


def test_a_listing_of_a_newer_osd_is_read() -> None:
    """What a newer class appends to its entries and to the reply is skipped."""
    reply = _reply(lambda w: w.u32(2).raw(_entry_v9(b"a", b"0/1")).raw(_entry_v9(b"", b"0/2")).raw(b"newer"))

    page = decode_listing(reply)

    assert (page.entries, page.positions) == ([b"a", b""], [b"0/1", b"0/2", b"0/99"])


def test_a_listing_with_an_incompatible_entry_is_refused() -> None:
    """An entry that needs a newer reader is named."""
    with pytest.raises(CodecError, match=r"list_ret.entries\[1\] at byte 49: needs a reader of version 2"):
        decode_listing(_reply(lambda w: w.u32(2).raw(_entry_v9(b"a", b"0/1")).raw(_entry_v9(b"b", b"0/2", 2))))


GOOD = list_reply([(b"one", b"0/24576"), (b"", b"0/24589"), (b"x" * 40, b"0/24599")], b"0/24649")


def test_a_listing_cut_off_anywhere_is_refused() -> None:
    """No proper prefix of a reply is taken for one, not even with the outer length made to fit."""
    for cut in range(6, len(GOOD)):
        with pytest.raises(CodecError):
            decode_listing(GOOD[:cut])
        with pytest.raises(CodecError):
            decode_listing(GOOD[:2] + (cut - 6).to_bytes(4, "little") + GOOD[6:cut])


@pytest.mark.parametrize("word", [1, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_no_length_in_a_listing_reaches_beyond_it(word: int) -> None:
    """With any four bytes overwritten, a reply gives entries out of its own bytes or a CodecError."""
    for at in range(len(GOOD) - 3):
        changed = GOOD[:at] + word.to_bytes(4, "little") + GOOD[at + 4 :]
        with suppress(CodecError):
            page = decode_listing(changed)
            assert len(page.positions) == len(page.entries) + 1
            assert all(entry in changed for entry in page.entries)


def test_an_entry_does_not_reach_into_the_one_behind_it() -> None:
    """Data that swallows the entry behind it up to that one's marker is refused, though a marker follows."""
    reply = bytearray(list_reply([(b"abc", b"0/1"), (b"def", b"0/2")], b"0/3"))
    at = reply.index(b"\3\0\0\0abc")
    reply[at] = reply.index(b"\3\0\0\x000/2") - at - 4

    with pytest.raises(CodecError, match=r"entries\[0\]"):
        decode_listing(bytes(reply))


@pytest.mark.parametrize("marker", [b"", b"/", b"1/", b"/1", b"1", b"1/2/3", b"1/2 3/4", b"+1/2", b"1/2\n", b"a/b"])
@pytest.mark.parametrize("place", ["first", "middle", "next"])
def test_a_marker_that_is_no_position_is_refused(marker: bytes, place: str) -> None:
    """Each position of a listing can be parsed, wherever it stands."""
    places = {"first": b"0/1", "middle": b"0/2", "next": b"0/3"} | {place: marker}
    reply = list_reply([(b"a", places["first"]), (b"b", places["middle"])], places["next"])

    with pytest.raises(CodecError, match="is not gen/offset"):
        decode_listing(reply)


@pytest.mark.parametrize(
    ("count", "error"),
    [
        (4, r"list_ret.entries\[3\] at byte 128: needs 6 bytes, but only 0 are left"),
        (9, "list_ret.entries at byte 18: 9 items of at least 14 bytes, but only 106 are left"),
        (2**32 - 1, "list_ret.entries at byte 18: 4294967295 items of at least 14 bytes"),
    ],
)
def test_a_count_of_entries_without_room_is_refused(count: int, error: str) -> None:
    """More entries than there are is refused; more than the bytes can hold, before any is read."""
    at = GOOD.index(b"\3\0\0\0")

    with pytest.raises(CodecError, match=error):
        decode_listing(GOOD[:at] + count.to_bytes(4, "little") + GOOD[at + 4 :])


open_reservations = st.lists(
    st.builds(
        QueueReservation, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), times, st.none() | st.integers(0, 99)
    )
)


@given(open_reservations)
def test_reservations_of_both_versions_are_read(some: list[QueueReservation]) -> None:
    """Reservations come back as they are, from the reply and from the overflow xattr, number of entries included."""
    items = b"".join(reservation(r.id, r.size, r.timestamp, r.entries) for r in some)
    bare = FieldWriter().u32(len(some)).raw(items).encoded()

    assert queue_ops.decode_reservations(framed(lambda w: w.raw(bare))) == tuple(some)
    assert queue_ops.decode_overflow_reservations(bare) == tuple(some)


def test_what_is_owed_counts_each_open_reservation() -> None:
    """A reservation gives back its size and 10 bytes an entry; one that does not tell its entries counts as one."""
    open_ones = [reservation(7, 100, Time(5, 6), 3), reservation(8, 50, Time(5, 6), None)]
    overflow = FieldWriter().u32(1).raw(reservation(9, 1000, Time(5, 6), 0)).encoded()
    head = decode_head(queue_head(ring=100_000, reserved=40_000, reservations=open_ones, urgent_version=2))

    room = queue_ops.room_of(head, queue_ops.open_reservations(head, {queue_ops.OVERFLOW: overflow}))

    assert head.reserved_at == queue_ops.RESERVED_AT
    assert room.owed_bytes == 130 + 60 + 1010
    assert (room.leaked_bytes, room.room_bytes) == (40_000 - 1200, 60_000)


def test_the_next_id_begins_anew() -> None:
    """Ids are 32 bits wide, and 0 comes after the largest."""
    assert decode_head(queue_head(last_id=2**32 - 1)).next_id == 0
    assert decode_head(queue_head(last_id=7)).next_id == 8


def test_an_emptied_xattr_of_reservations_is_empty() -> None:
    """Four zero bytes, which the class leaves behind, are no reservations."""
    assert queue_ops.decode_overflow_reservations(bytes(4)) == ()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_head_of_a_queue_is_read_in_every_version(version: int) -> None:
    """Markers, sizes, reservations and the count come from the object's first bytes."""
    open_one = reservation(8, 4096, Time(5, 6), 1 if version > 1 else None)
    data = queue_head(
        (3, 127_000_000),
        (4, 30_000),
        reserved=4106,
        last_id=8,
        reservations=[open_one],
        urgent_version=version,
        committed=1234,
    )

    head = decode_head(data)

    assert (head.front, head.tail) == (Position(3, 127_000_000), Position(4, 30_000))
    assert (head.max_head_size, head.queue_size, head.max_urgent_data_size) == (24576, 128_024_576, 23552)
    assert head.reservations == (QueueReservation(8, 4096, Time(5, 6), 1 if version > 1 else None),)
    assert (head.reserved_size, head.last_id, head.has_xattrs) == (4106, 8, False)
    assert (head.committed_entries, head.urgent_version) == (1234 if version > 1 else None, version)
    assert head.capacity_bytes == 128_000_000
    assert head.used_bytes == 128_024_576 - 127_000_000 + 30_000 - 24576
    assert head.used_bytes + head.free_bytes == head.capacity_bytes


@pytest.mark.parametrize(
    ("front", "tail", "used"),
    [
        ((0, 24576), (0, 24576), 0),
        ((5, 30_000), (5, 30_000), 0),
        ((0, 24576), (0, 24591), 15),
        ((5, 30_000), (6, 30_000), 1000),
        ((0, 24576), (1, 24576), 1000),
        ((5, 25_576), (6, 24576), 0),
    ],
)
def test_used_bytes_are_counted_across_the_ring(front: tuple[int, int], tail: tuple[int, int], used: int) -> None:
    """Empty, full, wrapped and plain rings of 1,000 bytes give what lies between front and tail."""
    ring = 1000 if max(front[1], tail[1]) <= 25_576 else 10_000
    used = used if ring == 1000 or not used else ring

    assert decode_head(queue_head(front, tail, ring=ring)).used_bytes == used


@pytest.mark.parametrize(
    ("front", "tail"),
    [
        ((0, 30_000), (0, 29_999)),
        ((0, 30_000), (1, 30_001)),
        ((2, 30_000), (1, 30_000)),
        ((0, 30_000), (2, 25_000)),
        ((0, 24_575), (0, 30_000)),
        ((0, 30_000), (0, 128_024_577)),
        ((0, 128_024_577), (0, 128_024_578)),
    ],
)
def test_a_head_whose_tail_does_not_follow_its_front_is_refused(front: tuple[int, int], tail: tuple[int, int]) -> None:
    """What a removal past the tail leaves behind is told instead of giving absurd figures."""
    with pytest.raises(CodecError, match=r"head\.(front|tail)"):
        decode_head(queue_head(front, tail))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "magic"),
        (b"\xad", "magic"),
        (b"\xef\xbe" + bytes(100), "magic"),
        (b"\xad\xde" + bytes(3), "encoded_len"),
        (queue_head()[:60], "encoded_len"),
        (b"\xad\xde" + b"\xff" * 100, "encoded_len"),
    ],
)
def test_an_object_that_is_no_queue_is_refused(data: bytes, field: str) -> None:
    """Foreign, empty and cut-off objects are named as such."""
    with pytest.raises(CodecError) as caught:
        decode_head(data)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("position", "length", "expected"),
    [
        (Position(0, 24576), 5, Position(0, 24591)),
        (Position(3, 25_560), 5, Position(3, 25_575)),
        (Position(3, 25_561), 5, Position(4, 24576)),
        (Position(3, 25_562), 5, Position(4, 24577)),
        (Position(3, 25_570), 500, Position(4, 25_080)),
    ],
)
def test_an_entry_ends_where_the_next_one_begins(position: Position, length: int, expected: Position) -> None:
    """Ten bytes and the payload behind its start, carried over at the ring's end."""
    head = decode_head(queue_head(ring=1000))

    assert entry_end(position, length, head) == expected
    assert entry_end(position, length, replace(head, queue_size=head.queue_size + 10_000)).gen == position.gen
