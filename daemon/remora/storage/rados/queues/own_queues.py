"""The queue objects of remora's own topics: ordinary queues in remora's namespace, each marked with its topic's id.

Every operation that reserves or commits compares two attributes of the object, so that a queue takes nothing that its
topic no longer allows:

* `remora.topic`: the topic's id; with the prefix `removing ` once the removal of the topic has begun, and where the
  queue's layout is shut; with the prefix `preparing ` until its layout may take events (`sealed_queues.py`).
* `remora.closed`: `yes` while the topic takes no new events, `sealed` where the queue's layout takes none any longer,
  else empty or missing.

Key `remora.done.<request>.<part>` in the object's omap marks this part of an intent as committed; the operation that
commits sets it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from remora.bounded import each_of
from remora.codec.queue_ops import decode_reservations, encode_abort, encode_commit, encode_init
from remora.model.errors import ShardGone, StoreError, StoreUnavailable
from remora.model.shard import Shard
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import QUEUE_CLASS, RadosPart, decoded
from remora.storage.rados.cluster.refusals import FULL, OWN, QUEUE, ChangedError, ExistsError, MismatchError, Refusals
from remora.storage.rados.queues.old_heads import OldHeads
from remora.storage.rados.queues.two_phase import RadosTwoPhase

T = TypeVar("T")
R = TypeVar("R")

QUEUE_BYTES = 128_000_000
"""The size that radosgw gives each queue."""

TOPIC, CLOSED, _DONE = "remora.topic", "remora.closed", "remora.done."
REMOVING, PREPARING = "removing ", "preparing "
SEALED = "sealed"
_TRIES = 5

MARKED: Refusals = MappingProxyType(
    {
        **QUEUE,
        **FULL,
        errno.ECANCELED: (MismatchError, "the queue is another topic's, or the request has been carried out"),
    }
)

_REMOVED: Refusals = MappingProxyType(
    {
        **MARKED,
        errno.ERANGE: (ChangedError, "the queue has changed"),
        errno.EOVERFLOW: (ChangedError, "the queue has been made anew"),
    }
)


class PartOutcome(Enum):
    """What became of a part of an intent."""

    OPEN = auto()
    DONE = auto()
    LEAVING = auto()  # the topic is being removed
    GONE = auto()  # the topic's queue does not exist any more


class MarkChange(NamedTuple):
    """A change of an omap key of a queue object: the value that it must have, empty for none, and the new one."""

    key: str
    old: bytes
    new: bytes


class OwnQueues(RadosPart):
    """Makes, marks and fills the queues of remora's own topics."""

    def __init__(
        self,
        connection: ClusterConnection,
        two_phase: RadosTwoPhase,
        old_heads: OldHeads,
        committed: Callable[[Shard], None],
    ) -> None:
        """`committed` is called after each commit of entries with their queue."""
        super().__init__(connection)
        self._two_phase, self._old_heads, self._committed = two_phase, old_heads, committed

    async def make(
        self, shard: Shard, topic_id: str, check: Callable[[], Awaitable[None]], *, preparing: bool = False
    ) -> None:
        """Make an empty queue, unless this topic has it already; one that another topic left under its name is removed.

        While it is `preparing` nothing lands in it.

        A topic is announced before its queues are made. `check` raises unless this topic is the announced one; so when
        it passes, a queue that was seen before cannot belong to a later topic.
        """
        what, mark = f"making queue {shard}", PREPARING + topic_id if preparing else topic_id
        for _ in range(_TRIES):
            operation = WriteOp().create(exclusive=True)
            operation.call(QUEUE_CLASS, "2pc_queue_init", encode_init(QUEUE_BYTES)).set_xattr(TOPIC, mark)
            try:
                await self._run(operation, shard, what, OWN)
            except ExistsError:
                owner = await self.owner(shard)
            else:
                return
            if owner in (topic_id, mark):
                return
            if owner is not None:
                await check()
                with contextlib.suppress(MismatchError, ShardGone):
                    await self._run(of_topic(owner).remove(), shard, what, MARKED)
        raise StoreUnavailable(f"{what}: other processes keep making it")

    async def close(self, shard: Shard, topic_id: str, *, closed: bool) -> None:
        """Make the queue refuse new reservations, or take them again. A sealed one is left alone.

        Raises ShardGone when the topic has no such queue.
        """
        old, new = ("", "yes") if closed else ("yes", "")
        operation = of_topic(topic_id).assert_xattr(CLOSED, old).set_xattr(CLOSED, new)
        try:
            await self._run(operation, shard, f"marking {shard}", MARKED)
        except MismatchError as exc:
            if await self.owner(shard) != topic_id:
                raise ShardGone(f"marking {shard}: the queue is another topic's, or its removal has begun") from exc

    async def fence(self, shard: Shard, topic_id: str) -> None:
        """Make the queue refuse reservations and commits before its removal. No error when it is gone."""
        for owner in (topic_id, PREPARING + topic_id):
            with contextlib.suppress(ShardGone):
                await self._mark(shard, owner, TOPIC, REMOVING + topic_id)
                return

    async def unfence(self, shard: Shard, topic_id: str) -> None:
        """Undo `fence`."""
        with contextlib.suppress(ShardGone):
            await self._mark(shard, REMOVING + topic_id, TOPIC, topic_id)

    async def remove(self, shard: Shard, topic_id: str, version: int | None) -> None:
        """Remove a fenced queue. Raises ChangedError when it has another version; no error when it is gone."""
        operation = of_topic(REMOVING + topic_id)
        if version is not None:
            operation.assert_version(version)
        with contextlib.suppress(ShardGone, MismatchError):
            await self._run(operation.remove(), shard, f"removing queue {shard}", _REMOVED)

    async def version(self, shard: Shard) -> int:
        """The queue object's version. Raises ShardGone."""
        return await self._run(ReadOp().assert_exists(), shard, f"looking at {shard}", QUEUE)

    async def reserve(self, shard: Shard, topic_id: str, payload_sizes: Sequence[int], *, late: bool = False) -> int:
        """Reserve room for payloads of these sizes and return the reservation's id; a closed topic takes only `late`
        ones.

        Raises MismatchError when the queue is another topic's, or closed.
        """
        xattrs = {TOPIC: topic_id} if late else {TOPIC: topic_id, CLOSED: ""}
        # The class refuses a reservation of no bytes.
        nbytes = max(1, sum(payload_sizes))
        return await self._two_phase.reserve_where(shard, len(payload_sizes), nbytes, xattrs)

    async def reservations(self, shard: Shard, topic_id: str) -> set[int]:
        """The ids of the open reservations. Raises MismatchError and ShardGone when the topic has no such queue."""
        what = f"looking at reservations of {shard}"
        operation = ReadOp().assert_exists().assert_xattr(TOPIC, topic_id)
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_reservations")
        await self._run(operation, shard, what, MARKED)
        return {each.id for each in decoded(decode_reservations, reply.data, what)}

    async def commit(self, shard: Shard, topic_id: str, reservation: int, payloads: Sequence[bytes]) -> None:
        """Append the payloads and end the reservation.

        Raises ShardGone when there is no such reservation or queue, MismatchError when the queue is another topic's.
        """
        request = encode_commit(reservation, payloads)
        self._connection.traffic.committed(len(request))
        operation = of_topic(topic_id).call(QUEUE_CLASS, "2pc_queue_commit", request)
        await self._end(operation, shard, f"committing to {shard}")
        self._committed(shard)

    async def commit_once(
        self, shard: Shard, topic_id: str, reservation: int, payloads: Sequence[bytes], part: str
    ) -> None:
        """As `commit`, and mark this part of an intent as done; raises MismatchError also when it is done already."""
        mark = _DONE + part
        request = encode_commit(reservation, payloads)
        self._connection.traffic.committed(len(request))
        operation = of_topic(topic_id).assert_omap(mark, b"")
        operation.call(QUEUE_CLASS, "2pc_queue_commit", request).set_omap({mark: b"1"})
        await self._end(operation, shard, f"committing to {shard}")
        self._committed(shard)

    async def commit_marked(
        self,
        shard: Shard,
        topic_id: str,
        reservation: int,
        payloads: Sequence[bytes],
        mark: MarkChange,
    ) -> None:
        """Commit in any queue (a radosgw's has no topic's id) and change a mark, in one operation.

        Raises MismatchError when the mark has another value.
        """
        operation = (of_topic(topic_id) if topic_id else WriteOp().assert_exists()).assert_omap(mark.key, mark.old)
        operation.call(QUEUE_CLASS, "2pc_queue_commit", encode_commit(reservation, payloads))
        operation.set_omap({mark.key: mark.new})
        await self._end(operation, shard, f"committing to {shard}")
        self._committed(shard)

    async def outcome(self, shard: Shard, topic_id: str, part: str) -> PartOutcome:
        """What became of a part of an intent."""
        operation = ReadOp().assert_exists()
        xattrs = operation.xattrs()
        marks = operation.omap_values([_DONE + part])
        try:
            await self._run(operation, shard, f"looking at {shard}", QUEUE)
        except ShardGone:
            return PartOutcome.GONE
        owner = xattrs.values.get(TOPIC, b"").decode("ascii", "replace")
        if owner.removeprefix(REMOVING) != topic_id:
            return PartOutcome.GONE
        if marks.values:
            return PartOutcome.DONE
        return PartOutcome.OPEN if owner == topic_id else PartOutcome.LEAVING

    async def abort(self, shard: Shard, topic_id: str, reservation: int) -> None:
        """End the reservation; no error when it has ended, or when its queue is gone."""
        operation = of_topic(topic_id).call(QUEUE_CLASS, "2pc_queue_abort", encode_abort(reservation))
        with contextlib.suppress(ShardGone, MismatchError):
            await self._end(operation, shard, f"aborting in {shard}")

    async def forget(self, shard: Shard, topic_id: str, parts: Sequence[str]) -> None:
        """Delete the marks of parts; no error when their queue is gone."""
        operation = of_topic(topic_id).remove_omap([_DONE + part for part in parts])
        with contextlib.suppress(ShardGone, MismatchError):
            await self._run(operation, shard, f"deleting marks in {shard}", MARKED)

    async def _mark(self, shard: Shard, owner: str, name: str, value: str) -> None:
        try:
            await self._run(of_topic(owner).set_xattr(name, value), shard, f"marking {shard}", MARKED)
        except MismatchError as exc:
            raise ShardGone(f"marking {shard}: the queue is another topic's, or its removal has begun") from exc

    async def owner(self, shard: Shard) -> str | None:
        """The topic's id in the queue object, empty when it has none; None when there is no such object."""
        operation = ReadOp().assert_exists()
        xattrs = operation.xattrs()
        try:
            await self._run(operation, shard, f"looking at {shard}", QUEUE)
        except ShardGone:
            return None
        return xattrs.values.get(TOPIC, b"").decode("ascii", "replace")

    async def _end(self, operation: WriteOp, shard: Shard, what: str) -> None:
        """End a reservation, which OSDs of another release may have made."""
        try:
            await self._old_heads.settle(shard)
        except BaseException:
            operation.end(answered=False)
            raise
        await self._run(operation, shard, what, MARKED)

    async def _run(self, operation: ReadOp | WriteOp, shard: Shard, what: str, refusals: Refusals) -> int:
        return await self._connection.run(operation, shard.queue, what, refusals, self._locator(shard))


def is_leaving(xattrs: Mapping[str, bytes]) -> bool:
    """Whether a queue with these attributes is being removed with its topic. One that is shut is delivered first."""
    return xattrs.get(TOPIC, b"").startswith(REMOVING.encode()) and xattrs.get(CLOSED, b"") != SEALED.encode()


def of_topic(owner: str) -> WriteOp:
    """A write that passes only on a queue with this topic's id."""
    return WriteOp().assert_exists().assert_xattr(TOPIC, owner)


async def there_of(items: Sequence[T], call: Callable[[T], Awaitable[R]]) -> dict[T, R]:
    """The answers for those items that are there, in order. Raises the first error of another kind."""
    found: dict[T, R] = {}
    for item, answer in zip(items, await each_of(items, call, StoreError), strict=True):
        if not isinstance(answer, StoreError):
            found[item] = answer
        elif not isinstance(answer, ShardGone):
            raise answer
    return found
