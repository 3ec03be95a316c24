"""What the first record of a shard says of the shards that it took over from: where each of them ended."""

from __future__ import annotations

from collections.abc import Iterator

from remora.codec.kafka_records import AFTER
from remora.model.record import Record
from remora.model.topic import generation_of

FRAMING_BYTES = 16
"""The most that a header takes besides its name and value, in every protocol that has text for headers."""


class HandoverNote:
    """The header `remora-after`, which a shard's first record has, also when it is sent again.

    Where the ends do not fit, only the generation that they are of is told; where that does not fit either, nothing.
    """

    def __init__(self) -> None:
        self._after = self._text = self._first = b""

    def succeeds(self, after: bytes) -> None:
        """The next record that is packed is the first of a shard whose parents ended so."""
        self._after = after

    @property
    def is_pending(self) -> bool:
        """Whether a record may have to tell."""
        return bool(self._after)

    def goes_with(self, record: Record, room: int) -> None:
        """Of those that are packed this record comes first, and its headers may grow by `room` bytes."""
        self._first = self._first or record.position
        if record.position == self._first:
            left = room - len(AFTER) - FRAMING_BYTES
            self._text = next((each for each in self._forms() if len(each) <= left), b"")

    def told_by(self, record: Record) -> bytes:
        """The value of the header in this record; empty where it has none."""
        return self._text if self._text and record.position == self._first else b""

    def _forms(self) -> Iterator[bytes]:
        """Where each parent ended, and then, in place of that, the generation that they are of."""
        yield self._after
        if self._after and not self._after.startswith(b"generation="):
            yield b"generation=%d" % generation_of(self._after.partition(b"=")[0].decode())
