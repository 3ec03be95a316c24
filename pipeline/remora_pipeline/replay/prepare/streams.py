"""The bytes of a file as UTF-8, whatever compressed or encoded them."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa

LOOKED_AT_BYTES = 1024
_CHUNK_BYTES = 1 << 16
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@contextmanager
def uncompressed(raw: BinaryIO, compression: str) -> Iterator[io.BufferedReader]:
    """All members of a compressed file. Reading raises OSError where it is damaged or ends early."""
    if compression == "gzip":
        yield io.BufferedReader(_GzipReader(raw), _CHUNK_BYTES)
        return
    with pa.CompressedInputStream(raw, compression) as stream:
        yield io.BufferedReader(stream)


class _GzipReader(io.RawIOBase):
    """What gzip has compressed. As gzip itself, and unlike Arrow, Python passes over zeros behind a member."""

    def __init__(self, raw: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=raw)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # what BufferedReader gives
        try:
            data = self._file.read1(len(buffer))
        except (EOFError, zlib.error) as exc:
            raise OSError(f"Truncated or damaged gzip data: {exc}") from exc
        buffer[: len(data)] = data
        return len(data)


def wide_encoding(begin: bytes) -> str | None:
    """The name of UTF-16 in its byte order where a file begins so, marked or not; None for everything else.

    Without a mark every second byte is zero, as far as its text is ASCII.
    """
    if begin.startswith(tuple(_MARKS)):
        return _MARKS[begin[:2]]
    even, odd = begin[0::2], begin[1::2]
    for zeros, others, encoding in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if len(begin) >= 4 and zeros.count(0) * 2 > len(zeros) and not others.count(0):
            return encoding
    return None


def as_utf8(stream: io.BufferedReader) -> io.BufferedReader:
    """A stream from its begin, without a mark of the byte order, and in UTF-8 where it is UTF-16."""
    begin = stream.peek(LOOKED_AT_BYTES)[:LOOKED_AT_BYTES]
    encoding = wide_encoding(begin)
    if encoding is not None:
        return io.BufferedReader(_Utf8(stream, encoding), _CHUNK_BYTES)
    if begin.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    return stream


class _Utf8(io.RawIOBase):
    """A stream of UTF-16 as UTF-8. Half of a pair is what no reader takes for text."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._ready = b""
        self._is_first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # what BufferedReader gives
        is_ended = False
        while not self._ready and not is_ended:
            data = self._stream.read(_CHUNK_BYTES)
            is_ended = not data
            self._ready = self._decoded(data)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decoded(self, data: bytes) -> bytes:
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError:  # an odd byte at the end
            self._decoder.reset()
            return b"\xff"
        if self._is_first and text:
            text, self._is_first = text.removeprefix("\ufeff"), False
        return text.encode("utf-8", "surrogatepass")
