"""Lists a queue from a position on without holding its lock, while its owner removes entries.

An OSD that lists from a position which the queue no longer has may never answer: once the ring has wrapped around it
reads beyond the ring's end, in a loop, until it is killed (`queue_list_entries` in Ceph's cls_queue_src.cc takes the
tail minus the position as an unsigned length). So each listing compares, in the same operation, the front that the
position was checked against.
"""

from __future__ import annotations

from remora.codec.queue_ops import (
    FRONT_AT,
    HEAD_SIZE,
    QueueHead,
    decode_head,
    decode_listing,
    encode_front,
    encode_list,
)
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import Shard
from remora.storage.librados import ReadOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.part import QUEUE_CLASS, decoded
from remora.storage.rados.placement import Locator
from remora.storage.rados.refusals import QUEUE, UNLOCKED

PAGE = 1024


class UnlockedScan:
    """A scan of one queue by a client that does not hold its lock."""

    def __init__(self, connection: ClusterConnection, shard: Shard, locator: Locator) -> None:
        self._connection = connection
        self._shard = shard
        self._locator = locator

    async def head(self) -> QueueHead:
        """The queue's head as it is now."""
        what = f"looking at {self._shard}"
        operation = ReadOp().assert_exists()
        content = operation.read(0, HEAD_SIZE)
        await self._connection.run(operation, self._shard.queue, what, QUEUE, self._locator)
        return decoded(decode_head, content.data, what)

    async def page(self, head: QueueHead, start: Position) -> Page:
        """Up to 1,024 entries from `start` on, a position between this head's front and tail.

        Raises FrontMovedError when the queue's front has moved since that head was read.
        """
        what = f"listing {self._shard}"
        operation = ReadOp().assert_exists().assert_data(FRONT_AT, encode_front(head.front))
        request = encode_list(PAGE, str(start).encode())
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", request)
        await self._connection.run(operation, self._shard.queue, what, UNLOCKED, self._locator)
        return decoded(decode_listing, reply.data, what)
