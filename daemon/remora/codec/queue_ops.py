"""What the object class `2pc_queue` is asked and answers, and the head that it keeps in each queue object.

Requests are encoded in the newest form; every one of them is understood by older OSDs, which skip what they do
not know. Replies are decoded in all forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error

from remora.codec.ceph import Cursor, FieldWriter
from remora.model.entry import Time
from remora.model.errors import CodecError
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import QueueRoom

ENTRY_OVERHEAD = 10
"""Bytes in front of each entry in the ring: a magic number and the length."""

HEAD_SIZE = 24576
"""Bytes in front of the ring in a queue object, and so the offset of the first entry that a queue ever gets."""

FRONT_AT = 30
"""Where in a queue object its front stands: behind magic, length, and the beginnings of the head and of a marker."""

RESERVED_AT = 94
"""Where in a queue object its `reserved_size` stands, in every form of the head that is known."""

URGENT_VERSIONS = (1, 2, 3)
"""The known forms of a head's urgent data: before Squid, Squid, and OSDs whose reservations leak no room."""

HEAD_MAGIC = 0xDEAD

OVERFLOW = "cls_queue_urgent_data"
"""The xattr with the open reservations that the head has no room for, those beyond 904 on OSDs before Squid."""

# ------------------------------------------------------------------------------------------- requests


def encode_init(queue_size: int) -> bytes:
    """2pc_queue_init: a queue with a ring of this many bytes."""
    return FieldWriter().struct(1, 1, lambda w: w.u64(queue_size).u64(0).string(b"")).encoded()


def encode_reserve(nbytes: int, entries: int) -> bytes:
    """2pc_queue_reserve: room for `entries` entries of `nbytes` payload bytes together."""
    return FieldWriter().struct(1, 1, lambda w: w.u64(nbytes).u32(entries)).encoded()


def encode_commit(reservation: int, payloads: Sequence[bytes]) -> bytes:
    """2pc_queue_commit: append the payloads in this order and end the reservation."""

    def body(w: FieldWriter) -> None:
        w.u32(reservation).u32(len(payloads))
        for payload in payloads:
            w.string(payload)

    return FieldWriter().struct(1, 1, body).encoded()


def encode_abort(reservation: int) -> bytes:
    """2pc_queue_abort: end the reservation."""
    return FieldWriter().struct(1, 1, lambda w: w.u32(reservation)).encoded()


def encode_list(limit: int, start: bytes = b"", end: bytes = b"") -> bytes:
    """2pc_queue_list_entries: up to `limit` entries, from `start` or else the front, up to `end` if given."""
    return FieldWriter().struct(2, 1, lambda w: w.u64(limit).string(start).string(end)).encoded()


def encode_remove(end: bytes, entries: int) -> bytes:
    """2pc_queue_remove_entries: all entries before `end`, which are exactly `entries`.

    The OSD believes the number and subtracts it; 0 makes it count by itself.
    """
    return FieldWriter().struct(2, 1, lambda w: w.string(end).u32(entries)).encoded()


# -------------------------------------------------------------------------------------------- replies


@dataclass(frozen=True, slots=True)
class QueueReservation:
    """Room that a gateway has reserved. `entries` is None where the OSD does not record it (before Squid)."""

    id: int
    size: int
    timestamp: Time
    entries: int | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Figures of 2pc_queue_get_topic_stats: bytes in use with overhead, and committed entries."""

    used_bytes: int
    entries: int


def decode_reserve(reply: bytes) -> int:
    """The id of a new reservation."""
    return Cursor(reply, "").struct("reserve_ret", 1).u32("id")


def decode_capacity(reply: bytes) -> int:
    """The size of the ring in bytes."""
    return Cursor(reply, "").struct("get_capacity_ret", 1).u64("capacity")


def decode_stats(reply: bytes) -> QueueStats:
    """The figures that the OSD keeps, from Squid on."""
    ret = Cursor(reply, "").struct("get_stats_ret", 1)
    return QueueStats(ret.u64("queue_size"), ret.u32("queue_entries"))


def decode_reservations(reply: bytes) -> tuple[QueueReservation, ...]:
    """All open reservations, in no particular order."""
    return _reservations(Cursor(reply, "").struct("reservations_ret", 1), "reservations")


def decode_overflow_reservations(xattr: bytes) -> tuple[QueueReservation, ...]:
    """Reservations from the xattr `cls_queue_urgent_data`, which takes what the head has no room for."""
    return _reservations(Cursor(xattr, OVERFLOW), "reservations")


def _reservations(cursor: Cursor, name: str) -> tuple[QueueReservation, ...]:
    found = []
    for each in cursor.items(name, 26):
        number = cursor.u32(f"{each}.id")
        ret = cursor.struct(each, 2)
        size, timestamp = ret.u64("size"), ret.time("timestamp")
        found.append(QueueReservation(number, size, timestamp, ret.u32("entries") if ret.version > 1 else None))
    return tuple(found)


_FRONT = Struct("<QQ")  # gen, offset
_U32 = Struct("<I").unpack_from
_U64 = Struct("<Q")
_ENTRY = Struct("<xBII").unpack_from  # version (any), compat, length, length of the data
_DIGITS = b"0123456789"


def decode_listing(reply: bytes) -> Page:
    """The entries of a list reply with their positions, and the position behind the last one."""
    ret = Cursor(reply, "").struct("list_ret", 1)
    truncated, next_marker = ret.flag("is_truncated"), ret.string("next_marker")
    at = ret.pos
    positions: list[bytes] = []
    entries: list[bytes] = []
    end = _read_entries(reply, at + 4, ret.count("entries", 14), entries, positions)
    positions.append(next_marker)
    if end is None or end > ret.pos + ret.left or not _are_positions(positions):
        return _decode_carefully(reply)
    return Page(positions, entries, truncated)


def _read_entries(reply: bytes, pos: int, count: int, entries: list[bytes], positions: list[bytes]) -> int | None:
    """Read entries without a cursor, since this runs for every one; None when they make no sense.

    May step beyond the end, where slices are short and reads fail, so the caller compares the end returned.
    """
    try:
        for _ in range(count):
            compat, length, size = _ENTRY(reply, pos)
            data = pos + 10
            mark = data + size
            after = mark + 4 + _U32(reply, mark)[0]
            pos += 6 + length
            if after > pos or compat > 1:
                return None
            entries.append(reply[data:mark])
            positions.append(reply[mark + 4 : after])
    except struct_error:
        return None
    return pos


def _decode_carefully(reply: bytes) -> Page:
    """The same, field by field: finds what is wrong with a reply, and where."""
    ret = Cursor(reply, "").struct("list_ret", 1)
    truncated, next_marker = ret.flag("is_truncated"), _position(ret, "next_marker")
    entries, positions = [], []
    for name in ret.items("entries", 14):
        entry = ret.struct(name, 1)
        entries.append(entry.string("data"))
        positions.append(_position(entry, "marker"))
    return Page([*positions, next_marker], entries, truncated)


def _position(cursor: Cursor, name: str) -> bytes:
    at, marker = cursor.pos, cursor.string(name)
    if not _are_positions([marker]):
        raise cursor.error(name, f"{marker[:80]!r} is not gen/offset", at)
    return marker


def _are_positions(markers: list[bytes]) -> bool:
    """Whether each is two numbers with a slash between; all of them at once, since this runs for every entry."""
    text = b" ".join(markers)
    return (
        text.translate(None, _DIGITS) == b"/ " * (len(markers) - 1) + b"/"
        and text[:1] != b"/"
        and text[-1:] != b"/"
        and b" /" not in text
        and b"/ " not in text
    )


# ------------------------------------------------------------------------------- the head of a queue object


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The state that begins every queue object.

    The ring lies in [max_head_size, queue_size) of the object. `reserved_size` may exceed what `reservations`
    add up to: some OSDs never give back the overhead, until a queue is full with nothing in it.
    `committed_entries` is None where the OSD does not count them (before Squid). `reserved_at` is where in the object
    `reserved_size` stands.
    """

    max_head_size: int
    front: Position
    tail: Position
    queue_size: int
    max_urgent_data_size: int
    reserved_size: int
    last_id: int
    reservations: tuple[QueueReservation, ...]
    has_xattrs: bool
    committed_entries: int | None
    urgent_version: int
    reserved_at: int = RESERVED_AT

    @property
    def next_id(self) -> int:
        """The id of the next reservation: ids are 32 bits wide, and begin anew."""
        return (self.last_id + 1) & 0xFFFF_FFFF

    @property
    def capacity_bytes(self) -> int:
        """Size of the ring."""
        return self.queue_size - self.max_head_size

    @property
    def used_bytes(self) -> int:
        """Bytes of committed entries, overhead included."""
        return self.bytes_between(self.front, self.tail)

    @property
    def free_bytes(self) -> int:
        """Bytes that hold no committed entry; reservations still count as free."""
        return self.capacity_bytes - self.used_bytes

    def bytes_between(self, start: Position, end: Position) -> int:
        """Bytes of the ring from one position to another, over all turns; below 0 when the end comes first."""
        return (end.gen - start.gen) * self.capacity_bytes + end.offset - start.offset


def decode_head(data: bytes) -> QueueHead:
    """The head from the first bytes of a queue object (HEAD_SIZE of them always suffice)."""
    cursor = Cursor(data, "")
    if cursor.u16("magic") != HEAD_MAGIC:
        raise CodecError("magic", 0, "this object is not a queue")
    size = cursor.u64("encoded_len")
    if size > cursor.left:
        raise cursor.error("encoded_len", f"a head of {size} bytes, but only {cursor.left} are left", 2)
    return _check(_head(cursor.struct("head", 1)))


def open_reservations(head: QueueHead, xattrs: Mapping[str, bytes]) -> tuple[QueueReservation, ...]:
    """All open reservations of a queue: its head's, and the overflow among the attributes of the same moment."""
    return head.reservations + decode_overflow_reservations(xattrs.get(OVERFLOW) or bytes(4))


def room_of(head: QueueHead, reservations: Sequence[QueueReservation]) -> QueueRoom:
    """What a queue with this head and these open reservations can take.

    A reservation may give back its size and ENTRY_OVERHEAD for each of its entries, one where the head does not tell
    how many: the larger of what OSDs with the leak and without it give back.
    """
    owed = sum(each.size + ENTRY_OVERHEAD * (each.entries or 1) for each in reservations)
    pulse = (head.last_id, head.reserved_size, head.tail.gen, head.tail.offset)
    return QueueRoom(head.capacity_bytes, head.used_bytes, head.reserved_size, owed, pulse)


def encode_reserved(nbytes: int) -> bytes:
    """A `reserved_size` as it stands in the head of its queue, at RESERVED_AT."""
    return _U64.pack(nbytes)


def encode_front(front: Position) -> bytes:
    """A front as it stands in the head of its queue, at FRONT_AT."""
    return _FRONT.pack(front.gen, front.offset)


def _head(cursor: Cursor) -> QueueHead:
    max_head_size = cursor.u64("max_head_size")
    front, tail = _marker(cursor, "front"), _marker(cursor, "tail")
    queue_size, max_urgent = cursor.u64("queue_size"), cursor.u64("max_urgent_data_size")
    urgent_at = cursor.pos + 4  # behind the length of the string
    urgent = Cursor(cursor.string("urgent_data"), "head").struct("urgent_data", 3)
    reserved_at = urgent_at + urgent.pos
    return QueueHead(
        max_head_size,
        front,
        tail,
        queue_size,
        max_urgent,
        reserved_size=urgent.u64("reserved_size"),
        last_id=urgent.u32("last_id"),
        reservations=_reservations(urgent, "reservations"),
        has_xattrs=urgent.flag("has_xattrs"),
        committed_entries=urgent.u32("committed_entries") if urgent.version > 1 else None,
        urgent_version=urgent.version,
        reserved_at=reserved_at,
    )


def _marker(cursor: Cursor, name: str) -> Position:
    marker = cursor.struct(name, 1)
    return Position(marker.u64("gen"), marker.u64("offset"))


def _check(head: QueueHead) -> QueueHead:
    """Refuse a head whose figures cannot be: a removal past the tail leaves such a queue behind."""
    for name, marker in (("front", head.front), ("tail", head.tail)):
        if not head.max_head_size <= marker.offset <= head.queue_size:
            raise CodecError(f"head.{name}", 0, f"{marker} lies outside of the ring")
    if not 0 <= head.used_bytes <= head.capacity_bytes:
        raise CodecError("head.tail", 0, f"{head.tail} does not follow the front {head.front}")
    return head


def entry_end(position: Position, length: int, head: QueueHead) -> Position:
    """Where the entry behind one of `length` payload bytes begins, carried over at the ring's end."""
    offset = position.offset + ENTRY_OVERHEAD + length
    if offset < head.queue_size:
        return Position(position.gen, offset)
    return Position(position.gen + 1, offset - head.capacity_bytes)
