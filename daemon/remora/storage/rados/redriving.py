"""Dead letters that leave the store: re-driven into a queue, or dropped.

Letters and queues are different objects, and RADOS changes one at a time. So the operation that commits entries also
writes the keys of their letters into the queue object's omap, key `remora.redriven.<queue of the letters>`, and
compares the value that it replaces. The next re-drive reads that key and deletes those letters before anything else. So
a re-drive that was cut short between the two objects is completed, and of two at the same time one is refused and reads
again.

Key `#totals` beside a queue's letters counts those re-driven and dropped, in the operation that removes them.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from remora.codec.queue_ops import HEAD_SIZE, decode_head
from remora.model.errors import ShardGone, StoreError, StoreUnavailable
from remora.model.position import Position
from remora.model.record import DeadLetter, LetterTotals, Redrive
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import INCARNATION, all_keys, decoded
from remora.storage.rados.cluster.refusals import OWN, QUEUE, MismatchError, MissingError, Refusals
from remora.storage.rados.cluster.state import queue_front, stored_state
from remora.storage.rados.own_topics import RadosOwnTopics
from remora.storage.rados.queues.dead_letters import REGISTRY, TOTALS, RadosDeadLetters, letter_key
from remora.storage.rados.queues.own_queues import MarkChange
from remora.storage.rados.queues.sealed_queues import SealedQueues
from remora.storage.rados.queues.two_phase import RadosTwoPhase

_MARK = "remora.redriven."
_TRIES = 20

_MOST_MARKS = 4096
"""Letters of more queues are not re-driven into one: a topic has at most 1,024 of each of two layouts, and its own."""

_COUNTED: Refusals = MappingProxyType({**OWN, errno.ENOENT: (MissingError, "there are no letters of this queue")})

_decode_totals = msgspec.msgpack.Decoder(LetterTotals).decode
_decode_keys = msgspec.msgpack.Decoder(list[str]).decode


class RadosLetters(RadosDeadLetters):
    """The stored letters, with commands that re-drive and drop them."""

    def __init__(
        self,
        connection: ClusterConnection,
        own_queues: SealedQueues,
        own_topics: RadosOwnTopics,
        two_phase: RadosTwoPhase,
    ) -> None:
        super().__init__(connection)
        self._sealed, self._own_queues = own_queues, own_queues.queues
        self._own_topics = own_topics
        self._two_phase = two_phase

    async def still_standing(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Those of these letters whose entries are still in their queue.

        A front only moves forward, so an entry that has left stays away: the answers need not be of one moment.
        """
        queues = {each.queue for each in letters}
        fronts = {key: front for queue in queues for key, front in (await self._fronts(queue)).items()}
        return [each for each in letters if _stands(each, fronts.get((each.queue, each.incarnation)))]

    async def _fronts(self, queue: str) -> Mapping[tuple[str, str], Position]:
        """The fronts of the queues of a name, radosgw's and remora's own, by name and incarnation."""
        found: dict[tuple[str, str], Position] = {}
        for origin in Origin:
            shard, what = Shard(queue, origin), f"looking at {queue}"
            operation = ReadOp().assert_exists()
            content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
            try:
                await self._connection.run(operation, queue, what, locator=self._locator(shard))
            except MissingError:
                continue
            if incarnation := xattrs.values.get(INCARNATION, b"").decode("ascii", "replace"):
                head = decoded(decode_head, content.data, what)
                found[queue, incarnation] = queue_front(stored_state(head, xattrs.values, what))
        return found

    async def _of_left_entries(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """The letters whose entries have left their queue: those that commands may touch."""
        standing = {letter_key(each) for each in await self.still_standing(letters)}
        return [each for each in letters if letter_key(each) not in standing]

    async def drop(self, letters: Sequence[DeadLetter]) -> int:
        """Delete letters of one queue for good; returns the number deleted."""
        if not (letters := await self._of_left_entries(letters)):
            return 0
        return len(await self._forget(letters[0].queue, [letter_key(each) for each in letters], redriven=False))

    async def redrive(self, shard: Shard, topic: Topic | None, again: Sequence[Redrive]) -> int:
        """Commit entries to a queue and delete their letters; see `ports.administration.Letters`."""
        left = {letter_key(each) for each in await self._of_left_entries([each.letter for each in again])}
        waiting = {key: each.payload for each in again if (key := letter_key(each.letter)) in left}
        if not waiting:
            return 0
        queue, count = again[0].letter.queue, 0
        if topic is not None:
            await self._settle_former(topic)
        for _ in range(_TRIES):
            operation = ReadOp().assert_exists()
            found = operation.omap_values([_MARK + queue])
            await self._connection.run(operation, shard.queue, f"looking at {shard}", QUEUE, self._locator(shard))
            mark = found.values.get(_MARK + queue, b"")  # the letters' keys of the last re-drive from there
            done = await self._forget(queue, _keys(mark), redriven=True)
            count += len(done & waiting.keys())
            there = (await self._look(queue, list(waiting)))[1]
            waiting = {key: payload for key, payload in waiting.items() if key in there}
            if not waiting:
                return count
            if await self._commit(shard, topic, queue, mark, waiting):
                await self._forget(queue, list(waiting), redriven=True)
                return count + len(waiting)
        raise StoreUnavailable(f"re-driving into {shard}: other clients always came first")

    async def _settle_former(self, topic: Topic) -> None:
        """Finish what re-drives have begun in former layouts. Raises StoreUnavailable while one may commit there yet.

        Its letters would be committed to the open layout, too: a mark that is compared is of one queue.
        """
        for former in topic.former_shards():
            try:
                look = await self._sealed.shut(former, topic.id)
            except ShardGone:
                continue  # its re-drives were finished before
            if not look.is_shut:
                raise StoreUnavailable(f"topic {topic.label} is being re-sharded: {former} has open reservations")
            await self.finish_redrives(former)

    async def finish_redrives(self, shard: Shard) -> None:
        """Delete the letters whose entries re-drives have committed to a queue in which nothing lands any longer.

        Before it goes somebody does so: one that is gone needs nothing.
        """
        operation = ReadOp().assert_exists()
        marks = operation.omap_page("", _MARK, _MOST_MARKS)
        try:
            await self._connection.run(operation, shard.queue, f"looking at {shard}", QUEUE, self._locator(shard))
        except ShardGone:
            return
        for key, mark in marks.values.items():
            await self._forget(key.removeprefix(_MARK), _keys(mark), redriven=True)

    async def totals(self) -> Mapping[str, LetterTotals]:
        """The number of letters of each queue that commands have re-driven and dropped."""
        queues = await all_keys(self._connection, REGISTRY, self._own)
        return {queue: (await self._look(queue, []))[0] for queue in queues}

    # --- the queue -------------------------------------------------------------------------------------

    async def _commit(
        self, shard: Shard, topic: Topic | None, queue: str, mark: bytes, waiting: Mapping[str, bytes]
    ) -> bool:
        """Commit entries; returns False when another re-drive came first."""
        payloads, topic_id = list(waiting.values()), topic.id if topic else ""
        if topic is not None:
            try:
                reservation = await self._own_queues.reserve(shard, topic_id, [len(each) for each in payloads])
            except (MismatchError, ShardGone) as exc:
                raise await self._own_topics.refusal(topic) from exc
        else:
            reservation = await self._two_phase.reserve(shard, len(payloads), max(1, sum(map(len, payloads))))
        change = MarkChange(_MARK + queue, mark, msgspec.msgpack.encode(list(waiting)))
        try:
            await self._own_queues.commit_marked(shard, topic_id, reservation, payloads, change)
        except StoreUnavailable:
            raise  # it may have been committed: then the reservation has ended, else it expires
        except (MismatchError, ShardGone):
            await self._two_phase.abort(shard, reservation)
            return False
        except StoreError:
            await self._two_phase.abort(shard, reservation)
            raise
        await self._connection.traffic.redriven(sum(map(len, payloads)))
        return True

    # --- the letters -----------------------------------------------------------------------------------

    async def _look(self, queue: str, keys: Sequence[str]) -> tuple[LetterTotals, set[str], bytes]:
        """The totals of a queue, those of these letters that exist, and the totals as they are stored."""
        oid = f"{REGISTRY}.{queue}"
        operation = ReadOp().assert_exists()
        found = operation.omap_values([TOTALS, *keys])
        try:
            await self._connection.run(operation, oid, f"reading {oid}", _COUNTED, self._own)
        except MissingError:
            return LetterTotals(), set(), b""
        stored = found.values.pop(TOTALS, b"")
        return _totals(stored, oid), set(found.values), stored

    async def _forget(self, queue: str, keys: Sequence[str], *, redriven: bool) -> set[str]:
        """Delete and count letters; returns the keys of those that existed."""
        oid = f"{REGISTRY}.{queue}"
        for _ in range(_TRIES):
            totals, there, stored = await self._look(queue, keys)
            if not there:
                return set()
            count = len(there)
            new = LetterTotals(totals.redriven + count * redriven, totals.dropped + count * (not redriven))
            operation = WriteOp().assert_exists().assert_omap(TOTALS, stored)
            operation.set_omap({TOTALS: msgspec.msgpack.encode(new)}).remove_omap(sorted(there))
            try:
                await self._connection.run(operation, oid, f"deleting letters in {oid}", _COUNTED, self._own)
            except MismatchError:
                continue
            return there
        raise StoreUnavailable(f"deleting letters of {queue}: other clients always came first")


def _stands(letter: DeadLetter, front: Position | None) -> bool:
    """Whether a letter's entry is still in its queue, which begins at `front`; None for a queue that is gone."""
    return front is not None and Position.parse(letter.position) >= front


def _keys(mark: bytes) -> list[str]:
    try:
        return _decode_keys(mark) if mark else []
    except msgspec.MsgspecError as exc:
        raise StoreError(f"the mark of the last re-drive cannot be read: {exc}") from exc


def _totals(stored: bytes, oid: str) -> LetterTotals:
    try:
        return _decode_totals(stored) if stored else LetterTotals()
    except msgspec.MsgspecError as exc:
        raise StoreError(f"the totals in {oid} cannot be read: {exc}") from exc
