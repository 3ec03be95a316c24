"""Ceph's binary encoding: little-endian fields, counted strings and versioned structs, both ways.

A versioned struct is `u8 version, u8 compat, u32 length` and that many bytes. A reader refuses it only when
`compat` is above what it knows; fields that a newer writer appended are skipped by the length.

The cursor checks every read against the end of the innermost struct, so that a length or a count can neither
reach beyond it nor make anybody allocate more than the input holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple, Self

from remora.model.entry import Time
from remora.model.errors import CodecError

_U8 = Struct("<B")
_U16 = Struct("<H")
_U32 = Struct("<I")
_U64 = Struct("<Q")
_S64 = Struct("<q")
_TIME = Struct("<II")
_HEADER = Struct("<BBI")


class Field(NamedTuple):
    """One field as it was read: dotted path, type, value, and the offset of its first byte."""

    path: str
    type: str
    value: object
    offset: int


class Cursor:
    """Reads fields one after the other, up to an end that none of them may cross.

    Every read names its field: the name goes into the CodecError, and into `trace` when there is one.
    """

    __slots__ = ("_data", "_end", "_path", "_pos", "_trace", "compat", "version")

    def __init__(self, data: bytes, path: str, trace: list[Field] | None = None) -> None:
        self._data, self._path, self._trace = data, path, trace
        self._pos, self._end = 0, len(data)
        self.version = self.compat = 0

    @property
    def pos(self) -> int:
        """Offset of the next byte to be read."""
        return self._pos

    @property
    def left(self) -> int:
        """Bytes before the end."""
        return self._end - self._pos

    def error(self, name: str, reason: str, offset: int | None = None) -> CodecError:
        """The error to raise for a field, at the next byte unless `offset` is given."""
        return CodecError(self._name(name), self._pos if offset is None else offset, reason)

    def u8(self, name: str) -> int:
        """An unsigned number of 8 bits."""
        return self._number(_U8, "u8", name)

    def u16(self, name: str) -> int:
        """An unsigned number of 16 bits."""
        return self._number(_U16, "u16", name)

    def u32(self, name: str) -> int:
        """An unsigned number of 32 bits."""
        return self._number(_U32, "u32", name)

    def u64(self, name: str) -> int:
        """An unsigned number of 64 bits."""
        return self._number(_U64, "u64", name)

    def s64(self, name: str) -> int:
        """A signed number of 64 bits."""
        return self._number(_S64, "s64", name)

    def flag(self, name: str) -> bool:
        """A truth value: any byte but zero is true."""
        return self._number(_U8, "bool", name) != 0

    def time(self, name: str) -> Time:
        """Seconds and nanoseconds, 32 bits each."""
        at = self._take(8, name)
        value = Time._make(_TIME.unpack_from(self._data, at))
        self._note(name, "time", value, at)
        return value

    def string(self, name: str) -> bytes:
        """A counted string of any bytes; Ceph's bufferlist is encoded the same way."""
        at = self._pos
        size = _U32.unpack_from(self._data, self._take(4, name))[0]
        if size > self.left:
            raise self.error(name, f"a string of {size} bytes, but only {self.left} are left", at)
        start = self._take(size, name)
        value = self._data[start : start + size]
        self._note(name, "string", value, at)
        return value

    def text(self, name: str) -> str:
        """A counted string as text; a byte that is not UTF-8 becomes a surrogate, which `FieldWriter.text` undoes."""
        return self.string(name).decode("utf-8", "surrogateescape")

    def raw(self, size: int, name: str) -> bytes:
        """Exactly this many bytes."""
        at = self._take(size, name)
        value = self._data[at : at + size]
        self._note(name, "bytes", value, at)
        return value

    def rest(self) -> bytes:
        """All bytes up to the end: what a newer writer appended to a struct."""
        if not self.left:
            return b""
        return self.raw(self.left, "(newer fields)")

    def count(self, name: str, least: int) -> int:
        """The number of items that follow, each of at least this many bytes; refused when there is no room for them."""
        at = self._pos
        value = self.u32(name)
        if value * least > self.left:
            raise self.error(name, f"{value} items of at least {least} bytes, but only {self.left} are left", at)
        return value

    def items(self, name: str, least: int) -> Iterator[str]:
        """The name of each item of a counted sequence, one at a time."""
        for i in range(self.count(name, least)):
            yield f"{name}[{i}]"

    def pairs(self, name: str) -> tuple[tuple[bytes, bytes], ...]:
        """A map or multimap of strings, in the order in which it is encoded."""
        return tuple([(self.string(f"{each}.key"), self.string(f"{each}.val")) for each in self.items(name, 8)])

    def struct(self, name: str, known: int) -> Cursor:
        """A cursor over a versioned struct that follows; this one continues behind it.

        Refuses a struct whose writer says that a reader of version `known` cannot understand it.
        """
        inner = self.any_struct(name)
        inner.refuse_newer_than(known)
        return inner

    def refuse_newer_than(self, known: int) -> None:
        """Raise when the struct that this cursor was opened on needs a newer reader."""
        if self.compat > known:
            raise self.error("", f"needs a reader of version {self.compat}, this one knows {known}", self._pos - 6)

    def any_struct(self, name: str) -> Cursor:
        """A cursor over a versioned struct that follows, whatever its versions are."""
        at = self._pos
        version, compat, size = _HEADER.unpack_from(self._data, self._take(6, name))
        if size > self.left:
            raise self.error(name, f"a struct of {size} bytes, but only {self.left} are left", at)
        self._note(name, f"struct v{version}, compat {compat}", size, at)
        inner = Cursor(self._data, self._name(name), self._trace)
        inner.version, inner.compat = version, compat
        inner._pos = self._take(size, name)
        inner._end = self._pos
        return inner

    def _number(self, form: Struct, kind: str, name: str) -> int:
        at = self._take(form.size, name)
        value: int = form.unpack_from(self._data, at)[0]
        self._note(name, kind, value, at)
        return value

    def _take(self, size: int, name: str) -> int:
        """Step over bytes that must be there, and return where they begin."""
        at = self._pos
        if size > self._end - at:
            raise self.error(name, f"needs {size} bytes, but only {self._end - at} are left")
        self._pos = at + size
        return at

    def _name(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path and name else self._path or name

    def _note(self, name: str, kind: str, value: object, offset: int) -> None:
        if self._trace is not None:
            self._trace.append(Field(self._name(name), kind, value, offset))


class FieldWriter:
    """Collects encoded fields; each method returns the writer, so that a struct reads as its list of fields."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def encoded(self) -> bytes:
        """What was written."""
        return b"".join(self._parts)

    def u8(self, value: int) -> Self:
        """An unsigned number of 8 bits; also Ceph's bool."""
        return self.raw(_U8.pack(value))

    def u16(self, value: int) -> Self:
        """An unsigned number of 16 bits."""
        return self.raw(_U16.pack(value))

    def u32(self, value: int) -> Self:
        """An unsigned number of 32 bits."""
        return self.raw(_U32.pack(value))

    def u64(self, value: int) -> Self:
        """An unsigned number of 64 bits."""
        return self.raw(_U64.pack(value))

    def s64(self, value: int) -> Self:
        """A signed number of 64 bits."""
        return self.raw(_S64.pack(value))

    def time(self, value: Time) -> Self:
        """Seconds and nanoseconds, 32 bits each."""
        return self.raw(_TIME.pack(*value))

    def string(self, value: bytes) -> Self:
        """A counted string, or a bufferlist."""
        return self.u32(len(value)).raw(value)

    def text(self, value: str) -> Self:
        """A counted string from text."""
        return self.string(value.encode("utf-8", "surrogateescape"))

    def pairs(self, pairs: Iterable[tuple[bytes, bytes]]) -> Self:
        """A map or multimap of strings, in the given order."""
        items = list(pairs)
        self.u32(len(items))
        for key, value in items:
            self.string(key).string(value)
        return self

    def struct(self, version: int, compat: int, body: Callable[[FieldWriter], object]) -> Self:
        """A versioned struct, whose fields `body` writes."""
        inner = FieldWriter()
        body(inner)
        fields = inner.encoded()
        return self.raw(_HEADER.pack(version, compat, len(fields))).raw(fields)

    def raw(self, data: bytes) -> Self:
        """Bytes as they are."""
        self._parts.append(data)
        return self
