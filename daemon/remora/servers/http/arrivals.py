"""The body of a request on its way: how much of what a connection reads belongs to it."""

from __future__ import annotations

from remora.servers.http.chunks import ChunkDecoder
from remora.servers.http.request import BodyStream


class ArrivingBody:
    """The body that is arriving; without a stream it is thrown away."""

    __slots__ = ("_chunks", "_left", "stream")

    def __init__(self, length: int | None, stream: BodyStream) -> None:
        self._left = length or 0
        self._chunks = ChunkDecoder() if length is None else None
        self.stream: BodyStream | None = stream

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """Take what belongs to it from the beginning of `data`; what is left, and whether there is room for more.

        Raises NotHttp.
        """
        if self._chunks:
            ahead = bytearray(data)
            data, rest = self._chunks.decode(ahead), bytes(ahead)
        elif len(data) <= self._left:
            rest = b""
            self._left -= len(data)
        else:
            data, rest = data[: self._left], data[self._left :]
            self._left = 0
        has_room = self.stream.feed(data) if self.stream else True
        if self.is_whole and self.stream:
            self.stream.end()
        return rest, has_room

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self._chunks.is_whole if self._chunks else not self._left
