"""Compound operations: several steps on one object that the OSD carries out together or refuses as a whole.

A step with an answer returns a cell. Librados writes into a cell's memory from its own threads, so an operation keeps
its cells, and the submitter keeps the operation until it completes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from ctypes import (
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_void_p,
    create_string_buffer,
    string_at,
)
from typing import Protocol

from remora.storage.librados.library import load

MISMATCH = 4095
"""The code of a data comparison that failed at its first byte; n more for one that failed n bytes later."""

_EQUAL, _GREATER = 1, 3  # LIBRADOS_CMPXATTR_OP_EQ, _GT
_EXCLUSIVE, _IDEMPOTENT = 1, 0  # LIBRADOS_CREATE_*
_FULL_TRY = 64  # LIBRADOS_OPERATION_FULL_TRY


class AnswerCell(Protocol):
    """Where one step's answer arrives."""

    def collect(self, answered: bool) -> None:
        """Copy the answer into Python and free what librados allocated for it; called once, at the end.

        Without an answer the memory may be uninitialised: it is freed and not read.
        """
        ...


class CallOutput:
    """The output of an object class call, empty unless the call succeeded."""

    __slots__ = ("buffer", "code", "data", "length")

    def __init__(self) -> None:
        self.buffer = c_void_p()
        self.length = c_size_t()
        self.code = c_int()
        self.data = b""

    def collect(self, answered: bool) -> None:
        if self.buffer.value:  # null until it is answered
            self.data = string_at(self.buffer.value, self.length.value)
            load().rados_buffer_free(self.buffer)


class ObjectBytes:
    """Bytes of the object's data; shorter than asked for at the object's end."""

    __slots__ = ("buffer", "code", "data", "length")

    def __init__(self, length: int) -> None:
        self.buffer = create_string_buffer(length)
        self.length = c_size_t()
        self.code = c_int()
        self.data = b""

    def collect(self, answered: bool) -> None:
        self.data = self.buffer.raw[: self.length.value] if answered else b""


class Xattrs:
    """All extended attributes of the object, by name."""

    __slots__ = ("code", "iterator", "values")

    def __init__(self) -> None:
        self.iterator = c_void_p()
        self.code = c_int()
        self.values: dict[str, bytes] = {}

    def collect(self, answered: bool) -> None:
        library, name, value, length = load(), c_void_p(), c_void_p(), c_size_t()
        while (
            answered
            and library.rados_getxattrs_next(self.iterator, byref(name), byref(value), byref(length)) == 0
            and name.value
        ):
            key = string_at(name.value).decode(errors="surrogateescape")
            self.values[key] = string_at(value.value, length.value) if value.value else b""
        library.rados_getxattrs_end(self.iterator)


class Omap:
    """Keys of the object's omap in key order, with their values where those were asked for."""

    __slots__ = ("code", "iterator", "more_out", "values")

    def __init__(self) -> None:
        self.iterator = c_void_p()
        self.more_out = c_ubyte()
        self.code = c_int()
        self.values: dict[str, bytes] = {}

    @property
    def more(self) -> bool:
        """True when keys follow those that were returned."""
        return bool(self.more_out.value)

    def collect(self, answered: bool) -> None:
        library = load()
        key, value, key_length, value_length = c_void_p(), c_void_p(), c_size_t(), c_size_t()
        sizes = byref(key_length), byref(value_length)
        while (
            answered
            and library.rados_omap_get_next2(self.iterator, byref(key), byref(value), *sizes) == 0
            and key.value
        ):
            name = string_at(key.value, key_length.value).decode(errors="surrogateescape")
            self.values[name] = string_at(value.value, value_length.value) if value.value else b""
        library.rados_omap_get_end(self.iterator)


class ObjectOperation(ABC):
    """The base of reads and writes: a handle, and the cells that live as long as it.

    An operation that was never submitted is freed with this object.
    """

    endless = False
    """Whether librados repeats it until an OSD answers, and neither its time-out nor cancelling it ends that."""

    _is_ended = True  # nothing to free until there is a handle

    def __init__(self, handle: int) -> None:
        self._library = load()
        self._handle = c_void_p(handle)
        self._cells: list[AnswerCell] = []
        self._is_ended = False

    def __del__(self) -> None:
        self.end(answered=False)

    @abstractmethod
    def submit(self, ioctx: c_void_p, oid: bytes, completion: c_void_p) -> int:
        """Start the operation; a negative result means that it did not start."""

    @abstractmethod
    def _release(self) -> None:
        """Free the handle."""

    def end(self, answered: bool) -> None:
        """Collect every answer and free the handle. Only after completion, or when it was never started."""
        if not self._is_ended:
            self._is_ended = True
            for cell in self._cells:
                cell.collect(answered)
            self._release()


class ReadOp(ObjectOperation):
    """A compound read."""

    def __init__(self) -> None:
        super().__init__(load().rados_create_read_op())

    def assert_exists(self) -> ReadOp:
        self._library.rados_read_op_assert_exists(self._handle)
        return self

    def assert_xattr(self, name: str, value: str) -> ReadOp:
        text = value.encode()
        self._library.rados_read_op_cmpxattr(self._handle, name.encode(), _EQUAL, text, len(text))
        return self

    def assert_data(self, offset: int, data: bytes) -> ReadOp:
        """Pass only where the object's data has these bytes, else MISMATCH plus the offset of the first byte that
        differs.
        """
        self._library.rados_read_op_cmpext(self._handle, data, len(data), offset, None)
        return self

    def call(self, cls: str, method: str, request: bytes = b"") -> CallOutput:
        reply = CallOutput()
        self._cells.append(reply)
        self._library.rados_read_op_exec(
            self._handle, cls.encode(), method.encode(), request, len(request),
            byref(reply.buffer), byref(reply.length), byref(reply.code),
        )  # fmt: skip
        return reply

    def check(self, cls: str, method: str, request: bytes) -> ReadOp:
        """Add a class call without output that lets the operation pass or refuses it."""
        self.call(cls, method, request)
        return self

    def read(self, offset: int, length: int) -> ObjectBytes:
        content = ObjectBytes(length)
        self._cells.append(content)
        self._library.rados_read_op_read(
            self._handle, offset, length,
            content.buffer, byref(content.length), byref(content.code),
        )  # fmt: skip
        return content

    def xattrs(self) -> Xattrs:
        cell = Xattrs()
        self._cells.append(cell)
        self._library.rados_read_op_getxattrs(self._handle, byref(cell.iterator), byref(cell.code))
        return cell

    def omap_keys(self, after: str, limit: int) -> Omap:
        cell = Omap()
        self._cells.append(cell)
        start = after.encode(errors="surrogateescape")
        self._library.rados_read_op_omap_get_keys2(
            self._handle, start, limit,
            byref(cell.iterator), byref(cell.more_out), byref(cell.code),
        )  # fmt: skip
        return cell

    def omap_page(self, after: str, prefix: str, limit: int) -> Omap:
        """Keys that begin with the prefix and follow `after`, with their values."""
        cell = Omap()
        self._cells.append(cell)
        start, beginning = (text.encode(errors="surrogateescape") for text in (after, prefix))
        self._library.rados_read_op_omap_get_vals2(
            self._handle, start, beginning, limit,
            byref(cell.iterator), byref(cell.more_out), byref(cell.code),
        )  # fmt: skip
        return cell

    def omap_values(self, keys: Sequence[str]) -> Omap:
        cell = Omap()
        self._cells.append(cell)
        names = [key.encode(errors="surrogateescape") for key in keys]
        self._library.rados_read_op_omap_get_vals_by_keys2(
            self._handle, _strings(names), len(names), _lengths(names),
            byref(cell.iterator), byref(cell.code),
        )  # fmt: skip
        return cell

    def submit(self, ioctx: c_void_p, oid: bytes, completion: c_void_p) -> int:
        result: int = self._library.rados_aio_read_op_operate(self._handle, ioctx, completion, oid, 0)
        return result

    def _release(self) -> None:
        self._library.rados_release_read_op(self._handle)


class WriteOp(ObjectOperation):
    """A compound write. Librados' C interface discards the output of class calls in it.

    When the cluster or the pool is full, a write that needs room is refused with ENOSPC or EDQUOT, and one that needs
    none is carried out. By default librados would hold back every write, removals and locks too, until it times out.
    """

    def __init__(self) -> None:
        super().__init__(load().rados_create_write_op())

    def create(self, *, exclusive: bool) -> WriteOp:
        """Create the object; an exclusive creation is refused with EEXIST when it exists."""
        self._library.rados_write_op_create(self._handle, _EXCLUSIVE if exclusive else _IDEMPOTENT, None)
        return self

    def write_full(self, data: bytes) -> WriteOp:
        """Replace the object's data; attributes and omap stay."""
        self._library.rados_write_op_write_full(self._handle, data, len(data))
        return self

    def write(self, offset: int, data: bytes) -> WriteOp:
        """Overwrite these bytes of the object's data; call an `assert_` first that says what stands there."""
        self._library.rados_write_op_write(self._handle, data, len(data), offset)
        return self

    def remove(self) -> WriteOp:
        """Remove the object with its attributes and omap."""
        self._library.rados_write_op_remove(self._handle)
        return self

    def assert_exists(self) -> WriteOp:
        self._library.rados_write_op_assert_exists(self._handle)
        return self

    def assert_version(self, version: int) -> WriteOp:
        """Pass only while the object has this version, which an operation returned."""
        self._library.rados_write_op_assert_version(self._handle, version)
        return self

    def assert_data(self, offset: int, data: bytes) -> WriteOp:
        """Pass only where the object's data has these bytes; see `ReadOp.assert_data`."""
        self._library.rados_write_op_cmpext(self._handle, data, len(data), offset, None)
        return self

    def assert_xattr(self, name: str, value: str | bytes) -> WriteOp:
        """Pass only where the attribute has this value, else ECANCELED; a missing one compares as an empty value."""
        content = value.encode() if isinstance(value, str) else value
        self._library.rados_write_op_cmpxattr(self._handle, name.encode(), _EQUAL, content, len(content))
        return self

    def assert_xattr_below(self, name: str, value: str) -> WriteOp:
        """Pass only where the attribute is smaller than this value, byte by byte, else ECANCELED; a missing one passes.

        RADOS compares the given value with the stored one, so what is named "greater than" there is this.
        """
        text = value.encode()
        self._library.rados_write_op_cmpxattr(self._handle, name.encode(), _GREATER, text, len(text))
        return self

    def set_xattr(self, name: str, value: str | bytes) -> WriteOp:
        content = value.encode() if isinstance(value, str) else value
        self._library.rados_write_op_setxattr(self._handle, name.encode(), content, len(content))
        return self

    def call(self, cls: str, method: str, request: bytes = b"") -> WriteOp:
        self._library.rados_write_op_exec(self._handle, cls.encode(), method.encode(), request, len(request), None)
        return self

    def set_omap(self, values: Mapping[str, bytes]) -> WriteOp:
        names = [key.encode(errors="surrogateescape") for key in values]
        contents = list(values.values())
        self._library.rados_write_op_omap_set2(
            self._handle, _strings(names), _strings(contents), _lengths(names), _lengths(contents), len(names)
        )
        return self

    def remove_omap(self, keys: Sequence[str]) -> WriteOp:
        """Remove these keys; missing ones are no error."""
        names = [key.encode(errors="surrogateescape") for key in keys]
        self._library.rados_write_op_omap_rm_keys2(self._handle, _strings(names), _lengths(names), len(names))
        return self

    def assert_omap(self, key: str, value: bytes) -> WriteOp:
        """Pass only where the key has this value, else ECANCELED; a missing key compares as an empty value."""
        name = key.encode(errors="surrogateescape")
        self._library.rados_write_op_omap_cmp2(self._handle, name, _EQUAL, value, len(name), len(value), None)
        return self

    def submit(self, ioctx: c_void_p, oid: bytes, completion: c_void_p) -> int:
        result: int = self._library.rados_aio_write_op_operate(self._handle, ioctx, completion, oid, None, _FULL_TRY)
        return result

    def _release(self) -> None:
        self._library.rados_release_write_op(self._handle)


# Librados copies keys and values while the step is added, so these arrays need not outlive the call.
def _strings(items: Sequence[bytes]) -> object:
    return (c_char_p * len(items))(*items)


def _lengths(items: Sequence[bytes]) -> object:
    return (c_size_t * len(items))(*map(len, items))
