"""What the object class `lock` is asked and answers: the exclusive locks of queues.

A holder is known by the entity of its RADOS client and by its cookie together. The state of a lock is also the
object's xattr `lock.<name>`, in the same bytes as a get_info reply.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from remora.codec.ceph import Cursor, FieldWriter
from remora.model.entry import Time
from remora.model.errors import CodecError

_ENTITY_TYPES = {1: "mon", 2: "mds", 4: "osd", 8: "client", 16: "mgr", 32: "auth"}
_ENTITY_NUMBERS = {name: number for number, name in _ENTITY_TYPES.items()}
_AF_INET, _AF_INET6 = 2, 10


class LockType(IntEnum):
    """How a lock excludes others."""

    NONE = 0
    EXCLUSIVE = 1
    SHARED = 2
    EXCLUSIVE_EPHEMERAL = 3


class LockFlags(IntFlag):
    """What a lock request does when the holder already has the lock; at most one of the two."""

    NONE = 0
    MAY_RENEW = 1
    MUST_RENEW = 2


def encode_lock(
    name: str,
    cookie: str,
    duration: Time,
    flags: LockFlags,
    *,
    kind: LockType = LockType.EXCLUSIVE,
    tag: str = "",
    description: str = "",
) -> bytes:
    """lock: take or extend it for a duration; 0 never ends."""

    def body(w: FieldWriter) -> None:
        w.text(name).u8(kind).text(cookie).text(tag).text(description).time(duration).u8(flags)

    return FieldWriter().struct(1, 1, body).encoded()


def encode_unlock(name: str, cookie: str) -> bytes:
    """unlock: give back the asking client's own lock."""
    return FieldWriter().struct(1, 1, lambda w: w.text(name).text(cookie)).encoded()


def encode_break(name: str, entity: str, cookie: str) -> bytes:
    """break_lock: end exactly this holder's lock. ValueError when the entity is not like `client.4116`."""
    kind, dot, number = entity.partition(".")
    if not dot or (kind not in _ENTITY_NUMBERS and not kind.isdigit()):
        raise ValueError(f"not an entity: {entity!r}")
    code = _ENTITY_NUMBERS[kind] if kind in _ENTITY_NUMBERS else int(kind)
    return FieldWriter().struct(1, 1, lambda w: w.text(name).u8(code).s64(int(number)).text(cookie)).encoded()


def encode_get_info(name: str) -> bytes:
    """get_info: who holds it."""
    return FieldWriter().struct(1, 1, lambda w: w.text(name)).encoded()


def encode_assert_locked(name: str, cookie: str, *, kind: LockType = LockType.EXCLUSIVE, tag: str = "") -> bytes:
    """assert_locked: fail the whole operation unless the asking client holds it."""
    return FieldWriter().struct(1, 1, lambda w: w.text(name).u8(kind).text(cookie).text(tag)).encoded()


@dataclass(frozen=True, slots=True)
class Locker:
    """One holder: the entity as Ceph writes it (`client.4116`), its cookie, and until when.

    `expiration` is on the OSD's clock, all zero for a lock without end; the object class leaves lockers that
    have run out where they are until another client takes the lock.
    """

    entity: str
    cookie: str
    expiration: Time
    address: str
    description: str


@dataclass(frozen=True, slots=True)
class LockInfo:
    """The state of a lock. A lock that was never taken has no lockers and type 0."""

    lockers: tuple[Locker, ...]
    type: int
    tag: str


def decode_lock_info(data: bytes) -> LockInfo:
    """A get_info reply, or the xattr `lock.<name>`."""
    cursor = Cursor(data, "").struct("lock_info", 1)
    lockers = tuple([_locker(cursor, each) for each in cursor.items("lockers", 41)])
    return LockInfo(lockers, cursor.u8("type"), cursor.text("tag"))


def _locker(cursor: Cursor, name: str) -> Locker:
    id_ = cursor.struct(f"{name}.id", 1)
    kind, number = id_.u8("entity.type"), id_.s64("entity.num")
    entity, cookie = f"{_ENTITY_TYPES.get(kind, kind)}.{number}", id_.text("cookie")
    info = cursor.struct(f"{name}.info", 1)
    return Locker(entity, cookie, info.time("expiration"), _address(info), info.text("description"))


def _address(cursor: Cursor) -> str:
    """An entity_addr_t as `host:port/nonce`; empty when it holds no internet address."""
    marker = cursor.u8("address.marker")
    if marker == 0:  # before the ADDR2 feature: padding, nonce and a whole sockaddr_storage, family big-endian
        cursor.raw(3, "address.padding")
        nonce = cursor.u32("address.nonce")
        sockaddr = cursor.raw(128, "address.sockaddr")
        return _internet(int.from_bytes(sockaddr[:2], "big"), sockaddr[2:], nonce)
    if marker != 1:
        raise CodecError("address.marker", cursor.pos - 1, f"unknown form {marker}")
    inner = cursor.struct("address", 1)
    inner.u32("type")
    nonce = inner.u32("nonce")
    sockaddr = inner.string("sockaddr")
    return _internet(int.from_bytes(sockaddr[:2], "little"), sockaddr[2:], nonce)


def _internet(family: int, rest: bytes, nonce: int) -> str:
    port = int.from_bytes(rest[:2], "big")
    if family == _AF_INET and len(rest) >= 6:
        return f"{ipaddress.IPv4Address(rest[2:6])}:{port}/{nonce}"
    if family == _AF_INET6 and len(rest) >= 22:
        return f"[{ipaddress.IPv6Address(rest[6:22])}]:{port}/{nonce}"
    return ""
