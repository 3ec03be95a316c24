"""The queues of a layout that takes no events yet, or no longer: prepared, activated, sealed, shut.

Each step is one operation on one queue object, so that any process may take it, again, and late: it compares what the
step before has left.

    preparing --> open --> sealed --> shut

* Of a queue that is prepared attribute `remora.topic` is `preparing <id>`: nobody reserves or commits there.
* Of one that is sealed `remora.closed` is `sealed`: no version of remora reserves there, and who has reserved commits.
* Of one that is shut `remora.topic` is `removing <id>` beside that, as when a topic is removed: nothing lands there any
  longer, not even what reserves anew for a request that is committed. It is shut while no reservation is open, by an
  operation that demands the version of the look that found none.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from remora.codec.queue_ops import ENTRY_OVERHEAD, HEAD_SIZE, decode_head, open_reservations
from remora.model.errors import ShardGone, StoreUnavailable
from remora.model.ledger import FormerQueue
from remora.model.shard import Shard
from remora.model.topic import generation_of
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.own_queues import CLOSED, MARKED, PREPARING, REMOVING, SEALED, TOPIC, OwnQueues, of_topic
from remora.storage.rados.part import INCARNATION, RadosPart, decoded
from remora.storage.rados.refusals import QUEUE, ChangedError, MismatchError
from remora.storage.rados.state import StoredState, stored_state


@dataclass(frozen=True, slots=True)
class SealedLook:
    """A queue at one moment, of the object's version. Where the OSD does not count, `entries` are estimated."""

    version: int
    is_sealed: bool
    is_shut: bool
    entries: int
    is_counted: bool
    reservations: int
    former: FormerQueue

    @property
    def is_through(self) -> bool:
        """Whether nothing is left in it, for ever."""
        return self.is_shut and not self.entries


class SealedQueues(RadosPart):
    """Takes the steps, and looks at queues."""

    def __init__(self, connection: ClusterConnection, queues: OwnQueues) -> None:
        super().__init__(connection)
        self.queues = queues

    async def prepare(self, shard: Shard, topic_id: str, check: Callable[[], Awaitable[None]]) -> None:
        """Make an empty queue in which nothing lands yet; see `OwnQueues.make`."""
        await self.queues.make(shard, topic_id, check, preparing=True)

    async def activate(self, shard: Shard, topic_id: str) -> None:
        """Let a prepared queue take events. Raises StoreUnavailable where it is neither that nor activated."""
        operation = of_topic(PREPARING + topic_id).set_xattr(TOPIC, topic_id)
        with contextlib.suppress(MismatchError):
            await self._run(operation, shard, f"activating {shard}")
            return
        if await self.queues.owner(shard) != topic_id:
            raise StoreUnavailable(f"activating {shard}: another process has changed the topic meanwhile")

    async def give_up(self, shard: Shard, topic_id: str) -> None:
        """Remove a queue that is prepared for a layout that does not come; no error where it is another one."""
        with contextlib.suppress(MismatchError, ShardGone):
            await self._run(of_topic(PREPARING + topic_id).remove(), shard, f"removing {shard}")

    async def seal(self, shard: Shard, topic_id: str) -> None:
        """Have the queue take no reservation any longer, whether it was closed or not.

        No error where the queue is gone or shut: then another process has gone further, and the registry says so.
        Raises StoreUnavailable where the topic is being removed: that may be given up yet, and the queue take events.
        """
        with contextlib.suppress(ShardGone):
            try:
                await self._run(of_topic(topic_id).set_xattr(CLOSED, SEALED), shard, f"sealing {shard}")
            except MismatchError:
                if not (await self.look(shard)).is_sealed:
                    raise StoreUnavailable(f"sealing {shard}: its topic is being removed") from None

    async def shut(self, shard: Shard, topic_id: str) -> SealedLook:
        """Shut a sealed queue where no reservation is open; the queue as it is then. Raises ShardGone.

        One that nobody has held yet gets its incarnation here, so that the queues behind it can name its end.
        """
        look = await self.look(shard)
        if not look.is_sealed or look.is_shut or look.reservations:
            return look
        incarnation = look.former.incarnation or secrets.token_hex(8)
        operation = of_topic(topic_id).assert_version(look.version).assert_xattr(CLOSED, SEALED)
        operation.set_xattr(TOPIC, REMOVING + topic_id).set_xattr(INCARNATION, incarnation)
        try:
            await self._run(operation, shard, f"shutting {shard}")
        except (ChangedError, MismatchError):
            return await self.look(shard)
        return replace(look, is_shut=True, former=replace(look.former, incarnation=incarnation))

    async def look(self, shard: Shard) -> SealedLook:
        """The queue as it is now. Raises ShardGone."""
        what = f"looking at {shard}"
        operation = ReadOp().assert_exists()
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        version = await self._connection.run(operation, shard.queue, what, QUEUE, self._locator(shard))
        head = decoded(decode_head, content.data, what)
        stored, values = stored_state(head, xattrs.values, what), xattrs.values
        reservations = decoded(lambda found: open_reservations(head, found), values, what)
        is_sealed = values.get(CLOSED, b"") == SEALED.encode()
        is_fenced = values.get(TOPIC, b"").startswith(REMOVING.encode())
        # Where the queue ends, and its ledger, which is final when the queue is through.
        removed, incarnation = (
            stored.state.settled(head).removed,
            values.get(INCARNATION, b"").decode("ascii", "replace"),
        )
        generation = generation_of(shard.queue)
        former = FormerQueue(shard.queue, generation, incarnation, str(head.tail), removed.total, removed)
        entries, is_counted = _entries(stored)
        return SealedLook(version, is_sealed, is_sealed and is_fenced, entries, is_counted, len(reservations), former)

    async def _run(self, operation: WriteOp, shard: Shard, what: str) -> None:
        await self._connection.run(operation, shard.queue, what, MARKED, self._locator(shard))


def _entries(stored: StoredState) -> tuple[int, bool]:
    """The entries in runs and in the ring, and whether they are counted; in a ring that has bytes is one at least."""
    head, spilled = stored.head, stored.state.spill.entries
    if not head.used_bytes:
        return spilled, True
    counted = head.committed_entries
    if counted and counted <= head.used_bytes // ENTRY_OVERHEAD:
        return spilled + counted, True
    return spilled + max(1, stored.state.entries_in(head.used_bytes, head)), False
