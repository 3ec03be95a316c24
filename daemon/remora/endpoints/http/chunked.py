"""Finds the end of a body in chunks (RFC 9112, 7.1), as libcurl does; what is in the chunks is not kept. Pure."""

from __future__ import annotations

import re

from remora.endpoints.http.heads import NotHttp

MOST_LINE_BYTES = 16 << 10
"""Of a line with a chunk's size, and of all trailers."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,17})(?![0-9A-Fa-f])")


class ChunkedEnd:
    """Looks for the end of one body. `data_bytes` is what its chunks have had so far."""

    __slots__ = ("_is_behind_data", "_is_in_trailers", "_left", "_line", "_trailer_bytes", "data_bytes")

    def __init__(self) -> None:
        self._line = b""
        self._left = self._trailer_bytes = self.data_bytes = 0
        self._is_behind_data = self._is_in_trailers = False

    def feed(self, data: bytes) -> bytes | None:
        """What comes behind the body, once its end has come. Raises NotHttp."""
        if self._line:
            data, self._line = self._line + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                taken = min(self._left, size - at)
                self._left -= taken
                self._is_behind_data = not self._left
                self.data_bytes += taken
                at += taken
                continue
            end = data.find(b"\n", at)
            line = data[at : size if end < 0 else end]
            if self._is_behind_data and line.strip(b"\r"):
                raise NotHttp("has a chunk that is longer than it says")
            if len(line) + self._trailer_bytes > MOST_LINE_BYTES:
                raise NotHttp(f"has a line of more than {MOST_LINE_BYTES >> 10} KiB between its chunks")
            if end < 0:
                self._line = line
                return None
            at = end + 1
            if self._is_in_trailers:
                if line in (b"", b"\r"):
                    return data[at:]
                self._take_trailer(line)
            elif self._is_behind_data:
                self._is_behind_data = False
            else:
                self._take_size(line)
        return None

    def _take_size(self, line: bytes) -> None:
        size = _SIZE.match(line)  # what stands behind it is no matter
        if size is None:
            raise NotHttp("has a chunk without a size")
        self._left = int(size[1], 16)
        self._is_in_trailers = not self._left

    def _take_trailer(self, line: bytes) -> None:
        if b":" not in line or b"\r" in line[:-1]:
            raise NotHttp("has a trailer that is no header")
        self._trailer_bytes += len(line)
