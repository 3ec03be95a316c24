"""Queue heads as OSDs that leak room leave them, made by hand, so that a cluster without the leak has some, too."""

from __future__ import annotations

import struct
from typing import Any

from remora.codec.ceph import FieldWriter
from remora.codec.queue_ops import (
    HEAD_SIZE,
    RESERVED_AT,
    QueueHead,
    QueueReservation,
    decode_head,
    encode_reserve,
    open_reservations,
    room_of,
)
from remora.model.shard import QueueRoom

_URGENT_AT = RESERVED_AT - 10  # before the string's length and the struct's version, compat and length


def head_of(ioctx: Any, queue: str) -> QueueHead:
    """A queue's head as it is now."""
    return decode_head(ioctx.read(queue, HEAD_SIZE))


def room_now(ioctx: Any, queue: str) -> QueueRoom:
    """What a queue can take; nobody may write to it meanwhile."""
    head = head_of(ioctx, queue)
    return room_of(head, open_reservations(head, dict(ioctx.get_xattrs(queue))))


def leak(ioctx: Any, queue: str, nbytes: int) -> None:
    """Have the queue count so many bytes more as reserved than are."""
    reserved = head_of(ioctx, queue).reserved_size + nbytes
    ioctx.write(queue, struct.pack("<Q", reserved), RESERVED_AT)


def fill_by_leak(ioctx: Any, queue: str, room_bytes: int = 300) -> None:
    """Have the queue leak all but this room."""
    leak(ioctx, queue, room_now(ioctx, queue).room_bytes - room_bytes)


def reserve_as_gateway(ioctx: Any, queue: str, nbytes: int) -> int:
    """Reserve room for an entry as any client may, and return the reservation's id."""
    ioctx.execute(queue, "2pc_queue", "2pc_queue_reserve", encode_reserve(nbytes, 1))
    return head_of(ioctx, queue).last_id


def make_old(ioctx: Any, queue: str, version: int, leaked: int) -> None:
    """Give the queue the head that an OSD with the leak would have left: of form 1 before Squid, of form 2 since.

    As there, the sum has the size of each open reservation, and 10 bytes for each entry ever reserved for.
    """
    data = ioctx.read(queue, HEAD_SIZE)
    head = decode_head(data)
    assert not head.has_xattrs
    reserved = sum(each.size + 10 for each in head.reservations) + leaked

    def body(w: FieldWriter) -> None:
        w.u64(reserved).u32(head.last_id).u32(len(head.reservations))
        for each in head.reservations:
            w.raw(_reservation(each, version))
        w.u8(0)
        if version > 1:
            w.u32(head.committed_entries or 0)

    urgent = FieldWriter().struct(version, 1, body).encoded()
    content = data[16:_URGENT_AT] + struct.pack("<I", len(urgent)) + urgent
    encoded = data[10:12] + struct.pack("<I", len(content)) + content
    ioctx.write(queue, data[:2] + struct.pack("<Q", len(encoded)) + encoded, 0)
    assert (head_of(ioctx, queue).urgent_version, head_of(ioctx, queue).reserved_size) == (version, reserved)


def _reservation(each: QueueReservation, version: int) -> bytes:
    def body(w: FieldWriter) -> None:
        w.u64(each.size).time(each.timestamp)
        if version > 1:
            w.u32(each.entries or 1)

    return FieldWriter().u32(each.id).struct(min(version, 2), 1, body).encoded()
