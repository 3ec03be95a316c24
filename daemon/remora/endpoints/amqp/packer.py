"""Records of one shard into batches: one of each lane, whose messages are sent in their order, key by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remora.codec.speedups import in_batches
from remora.endpoints.amqp.messages import MessageOrigin
from remora.endpoints.handover_note import HandoverNote
from remora.model.record import Record

ROOM = 1 << 40
"""All records of a lane make one batch, whatever their size."""


@dataclass(slots=True, eq=False)
class AmqpBatch:
    """Records of one lane."""

    lane: int
    records: Sequence[Record]

    def __len__(self) -> int:
        return len(self.records)


class MessagePacker:
    """Sorts records by the hash of their key into `lanes`, and refuses those that the broker will not take."""

    def __init__(self, origin: MessageOrigin, lanes: int) -> None:
        self.lanes = lanes
        self._origin = origin
        self.note = HandoverNote()

    def pack(
        self, records: Sequence[Record], frame_bytes: int, message_bytes: int | None
    ) -> tuple[list[AmqpBatch], list[tuple[Record, str]]]:
        """Batches in the order in which each was begun, and the records that are too large, with why.

        `frame_bytes` bounds the header of a message, `message_bytes` its body where the broker's limit is known.
        """
        refused: dict[int, tuple[Record, str]] = {}
        is_long = self._origin.cloudevents  # keys and buckets stand in the attributes
        for at, record in enumerate(records):
            if message_bytes is not None and len(record.body) > message_bytes:
                refused[at] = record, f"{len(record.body)} bytes, more than the broker's max_message_size"
            elif (is_long or len(record.event_id) > 1024) and self._origin.content(record).header_bytes > frame_bytes:
                refused[at] = record, f"its headers take more than the broker's frame_max {frame_bytes}"
        taken = [each for at, each in enumerate(records) if at not in refused] if refused else records
        if self.note.is_pending and taken:
            self.note.goes_with(taken[0], frame_bytes - self._origin.content(taken[0]).header_bytes)
        batches = [AmqpBatch(lane, members) for lane, members, _ in in_batches(taken, self.lanes, 0, ROOM)]
        return batches, list(refused.values())
