"""The encodings that a body may have: each is decoded in bounded pieces, however much its bytes stand for.

`zstandard` decodes a piece of input whole, and so does cramjam, which the daemon has for Kafka: a few kilobytes may
then stand for gigabytes. Python 3.14 has a decoder that stops at a given length, and `backports.zstd` is that one for
the versions before.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PIECE_BYTES = 256 << 10
"""What is decoded in one go: half a millisecond or so."""

_WINDOW_LOG = 23
"""Of zstd: 8 MiB, the most that RFC 9659 lets a sender of HTTP use. It is kept beside what was decoded."""


class NotDecodable(ValueError):
    """The bytes are not of the encoding."""


class Decoder(Protocol):
    """Decodes one body that comes in parts."""

    window_bytes: int
    """The most of what was decoded that is held once more."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """What these bytes stand for, in pieces of at most PIECE_BYTES. Raises NotDecodable."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether the end has come."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether there are bytes behind the end."""
        ...


class _Gzip:
    window_bytes = 0  # 32 KiB

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(wbits=31)
        self._rest = b""

    def decode(self, data: bytes) -> Iterator[bytes]:
        self._rest = data
        try:
            while self._rest and not self._inflater.eof:
                piece = self._inflater.decompress(self._rest, PIECE_BYTES)
                self._rest = self._inflater.unconsumed_tail
                yield piece
        except zlib.error as exc:
            raise NotDecodable from exc

    @property
    def is_whole(self) -> bool:
        return self._inflater.eof

    @property
    def has_more(self) -> bool:
        return self._inflater.eof and bool(self._rest or self._inflater.unused_data)


class _Zstd:
    window_bytes = 1 << _WINDOW_LOG

    def __init__(self) -> None:
        options = {int(zstd.DecompressionParameter.window_log_max): _WINDOW_LOG}
        self._decompressor = zstd.ZstdDecompressor(options=options)
        self._rest = b""

    def decode(self, data: bytes) -> Iterator[bytes]:
        self._rest = data
        try:
            while not self._decompressor.eof and (self._rest or not self._decompressor.needs_input):
                given, self._rest = self._rest, b""  # what it has not decoded yet it keeps itself
                yield self._decompressor.decompress(given, PIECE_BYTES)
        except zstd.ZstdError as exc:
            raise NotDecodable from exc

    @property
    def is_whole(self) -> bool:
        return self._decompressor.eof

    @property
    def has_more(self) -> bool:
        return self._decompressor.eof and bool(self._rest or self._decompressor.unused_data)


DECODERS: Mapping[str, Callable[[], Decoder]] = MappingProxyType({"gzip": _Gzip, "zstd": _Zstd})
"""By what Content-Encoding says."""
