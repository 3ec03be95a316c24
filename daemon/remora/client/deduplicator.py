"""What of a topic's records is new, and what is missing between them: by shard, incarnation and position.

    dedupe = Deduplicator(ahead=10_000, checkpoint=saved)
    for record in dedupe.fresh(await consumer.getmany()...):
        handle(record)
    save(dedupe.checkpoint())  # with the offsets, in one transaction

docs/consume.md has the rule in fifteen lines, and docs/consume-vectors.json what any implementation of it must answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from remora.client.progress import (
    BadHeader,
    Headers,
    QueueProgress,
    as_json,
    end_of_parents,
    number_of,
    of_json,
    position_of,
    see_behind,
    split,
    text_of,
)
from remora.model.errors import RemoraError

SHARD, POSITION, NEXT, AFTER = "remora-shard", "remora-pos", "remora-next", "remora-after"

MOST_SHARDS = 200_000
"""A Deduplicator keeps its place in this many shards at most, unless it is given another number."""

_NOT_BEGUN = -1
_SURE_DIGITS = 19
"""So many digits are within 64 bits whatever they are."""


class DeduplicatorError(RemoraError):
    """A record that cannot be judged: nothing of it has been taken, and it may be given again."""


class GapFound(DeduplicatorError):
    """Entries are missing: `gap` says which. `Deduplicator.accept` goes on behind them."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(f"{gap}: no record and no dead letter tells of what stood there")
        self.gap = gap


class TooManyShards(DeduplicatorError):
    """Records name more shards than there may be."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The entries of a shard's incarnation from position `begin` on, up to `end`, which is there or was the last."""

    shard: str
    incarnation: str
    begin: str
    end: str

    def __str__(self) -> str:
        return f"{self.shard}: entries are missing from {self.begin} up to {self.end} (incarnation {self.incarnation})"


class KafkaRecord(Protocol):
    """What is used of aiokafka's records."""

    @property
    def partition(self) -> int: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class KafkaMessage(Protocol):
    """What is used of confluent-kafka's messages."""

    def partition(self) -> int | None: ...
    def headers(self) -> Any: ...


A = TypeVar("A", bound=KafkaRecord)
M = TypeVar("M", bound=KafkaMessage)


class _QueueMarks:
    """One incarnation of a shard.

    `prefix` is what stands before the place in positions of the ring's present turn, and `base` that turn as a number.
    `read` has by partition the position behind the last new record. Everything from the first record up to `whole` is
    there; `ahead` has what is there behind that, each entry with the next one's position, or with its own where the
    queue ends there. The first `unjudged` records are not asked for what stands between them.
    """

    __slots__ = ("ahead", "base", "incarnation", "prefix", "read", "shard", "skip", "unjudged", "whole")

    def __init__(self, shard: bytes, incarnation: bytes, unjudged: int) -> None:
        self.shard, self.incarnation = shard, incarnation
        self.read: dict[int, int] = {}
        self.whole = _NOT_BEGUN
        self.ahead: dict[int, int] | None = None
        self.unjudged = unjudged
        self.turn(b"0")

    def turn(self, turn: bytes) -> None:
        """Expect positions of this turn of the ring."""
        self.prefix = b"%b:%b/" % (self.incarnation, turn)
        self.skip, self.base = len(self.prefix), int(turn) << 64

    def gap(self) -> Gap | None:
        """What is missing in front of what is there."""
        if not self.ahead or self.whole == _NOT_BEGUN:
            return None
        return Gap(self.shard.decode(), self.incarnation.decode(), text_of(self.whole), text_of(min(self.ahead)))


class Deduplicator:
    """Tells new records from copies, and finds what is missing. Belongs to one task or thread.

    Copies: the records of a shard stand in each partition in the order of their positions when they arrive for the
    first time. So one that is not behind the last new one of its shard and partition is a copy.

    Gaps: each record names the next position, so that the records of a shard, over all partitions, are a chain.
    Partitions are read side by side, and a record may come before others that stand in front of it. `ahead` is how many
    records may wait in all shards together before GapFound is raised for the shard with the most: 0 where the topic
    has one partition; with several the records that are read from one before those that stand beside them in another.
    None looks for no gaps: for the member of a consumer group, which sees a part of each shard's records.

    A chain begins with the first record that is read. Where reading begins amid a topic, partitions begin at different
    places: `edge` is how many first records of each shard are not asked for what stands between them.
    """

    def __init__(
        self,
        *,
        ahead: int | None,
        edge: int = 0,
        most_shards: int = MOST_SHARDS,
        checkpoint: bytes | Iterable[bytes] = (),
    ) -> None:
        """`checkpoint` is what `checkpoint()` has returned, or what `changes()` has for each shard."""
        self._most_ahead, self._edge, self._most_shards = ahead, edge, most_shards
        self._queues: dict[bytes, _QueueMarks] = {}
        self._earlier: dict[bytes, _QueueMarks] = {}
        self._changed: set[bytes] = set()
        self._ahead = 0
        self.copies = 0
        """Records that were passed over."""
        self.unmarked = 0
        """Records without remora's headers: each counts as new, since nothing tells copies apart."""
        for each in (checkpoint,) if isinstance(checkpoint, bytes) else checkpoint:
            for progress in of_json(each):
                self._restore(progress)

    @property
    def held(self) -> int:
        """How many records are ahead of one that is missing."""
        return self._ahead

    def fresh(self, records: Iterable[A]) -> Iterator[A]:
        """Those of aiokafka's records that are new, in their order.

        One that is let go is taken: a checkpoint from then on is behind it.
        """
        is_new = self.is_new
        for record in records:
            if is_new(record.partition, record.headers):
                yield record

    def fresh_messages(self, messages: Iterable[M]) -> Iterator[M]:
        """As `fresh`, of confluent-kafka's messages; none may be an error."""
        is_new = self.is_new
        for message in messages:
            if is_new(message.partition() or 0, message.headers() or ()):
                yield message

    def is_new(self, partition: int, headers: Headers) -> bool:
        """Whether a record is none that was read before, by its headers. Takes it.

        Raises GapFound, and BadHeader for a position that is none; then it has not been taken.
        """
        try:  # remora writes these three first, and in this order
            (name, shard), (name_of_position, own), (name_of_next, following) = headers[0], headers[1], headers[2]
        except (IndexError, TypeError):
            name = name_of_position = name_of_next = ""
        if name != SHARD or name_of_position != POSITION or name_of_next != NEXT or not (shard and own and following):
            told = dict(headers)
            if not (SHARD in told and POSITION in told and NEXT in told):
                self.unmarked += 1
                return True
            shard, own, following = told[SHARD] or b"", told[POSITION] or b"", told[NEXT] or b""
        queue = self._queues.get(shard)
        if queue is None or not own.startswith(queue.prefix):
            queue = self._queue_of(shard, own, following, headers)
        place, behind = own[queue.skip :], following[queue.skip :]
        is_short = len(place) <= _SURE_DIGITS and len(behind) <= _SURE_DIGITS
        if is_short and place.isdigit() and behind.isdigit() and following.startswith(queue.prefix):
            at, end = queue.base + int(place), queue.base + int(behind)
        else:
            at = number_of(POSITION, own, queue.incarnation)
            end = number_of(NEXT, following, queue.incarnation)
        if end <= at:
            see_behind(NEXT, end, at)
        read = queue.read
        if at < read.get(partition, 0):
            self.copies += 1
            return False
        if at == queue.whole and not queue.ahead and not queue.unjudged:
            queue.whole = end
        elif self._most_ahead is not None:
            self._link(queue, at, end, headers)
        read[partition] = end
        self._changed.add(shard)
        return True

    def letter(self, headers: Headers) -> None:
        """Take a record of the topic of dead letters: its entry is accounted for, and is no gap."""
        told = dict(headers)
        if not (SHARD in told and POSITION in told and NEXT in told) or self._most_ahead is None:
            return
        queue = self._queue_of(told[SHARD], told[POSITION], told[NEXT], ())
        at = number_of(POSITION, told[POSITION], queue.incarnation)
        if at >= queue.whole:
            self._wait(queue, at, number_of(NEXT, told[NEXT], queue.incarnation))
            if queue.whole != _NOT_BEGUN:
                self._follow(queue)
        self._changed.add(queue.shard)

    def ended(self, shard: str, incarnation: str, end: str) -> None:
        """Take where a shard ended, as `ended` of `remora topic show --json` has it: its chain must lead up to there.

        For records whose `remora-after` has a generation in place of ends. A shard that nothing was read of is passed
        over, as it is where a record names its end.
        """
        if self._most_ahead is not None:
            parent = b"%b=%b:%b" % (shard.encode(), incarnation.encode(), end.encode())
            for queue, at in self._short(parent):
                self._wait(queue, at, at)
                self._changed.add(queue.shard)

    def missing(self) -> list[Gap]:
        """Each place where something is missing by now, of all shards.

        Where nothing is under way, and every partition was read to its end, it is lost, or a dead letter.
        """
        return [gap for queue in self._all() if (gap := queue.gap())]

    def accept(self, gap: Gap) -> None:
        """Go on behind a gap, whose entries are known to be elsewhere. One that was closed meanwhile is passed over."""
        for queue in self._all():
            is_its = (queue.shard.decode(), queue.incarnation.decode()) == (gap.shard, gap.incarnation)
            if is_its and queue.whole != _NOT_BEGUN and text_of(queue.whole) == gap.begin:
                self._go_on_at(queue, position_of(gap.end))
                self._changed.add(queue.shard)

    def checkpoint(self) -> bytes:
        """Where all shards are, as JSON: docs/consume.md has its form."""
        self._changed.clear()
        return as_json(_progress(queue) for queue in self._all())

    def changes(self) -> dict[str, bytes]:
        """Where each shard is that has changed since the last call, as JSON each: for a row a shard."""
        changed, self._changed = self._changed, set()
        return {
            shard.decode(): as_json(_progress(of[shard]) for of in (self._earlier, self._queues) if shard in of)
            for shard in changed
        }

    # ------------------------------------------------------------------------------------------------ queues

    def _all(self) -> list[_QueueMarks]:
        return [*self._earlier.values(), *self._queues.values()]

    def _queue_of(
        self, shard: bytes | None, own: bytes | None, following: bytes | None, headers: Headers
    ) -> _QueueMarks:
        """The queue of a position that does not stand where the last one did: a new one, turn or incarnation.

        Raises BadHeader before anything has changed, also for what else the headers tell of a queue that begins.
        """
        if not shard:
            raise BadHeader(f"{SHARD} is empty")
        incarnation, turn, _ = split(POSITION, own)
        see_behind(NEXT, number_of(NEXT, following, incarnation), number_of(POSITION, own, incarnation))
        queue = self._queues.get(shard)
        if queue is None or queue.incarnation != incarnation:
            earlier = self._earlier.get(shard)
            if earlier and earlier.incarnation == incarnation:
                queue = earlier
            else:
                if self._most_ahead is not None and len(headers) > 3:
                    list(end_of_parents(dict(headers).get(AFTER)))
                queue = self._begin(shard, incarnation)
        queue.turn(turn)
        return queue

    def _begin(self, shard: bytes, incarnation: bytes) -> _QueueMarks:
        """A queue from which nothing was read. The one before it is kept, as copies of its records may still come."""
        for header, name in ((SHARD, shard), (POSITION, incarnation)):
            try:
                name.decode()
            except UnicodeDecodeError as exc:  # no checkpoint, which is JSON, could have it
                raise BadHeader(f"{header} has {name[:100]!r}, which is not UTF-8") from exc
        if shard not in self._queues and len(self._queues) >= self._most_shards:
            told = f"records name more than {self._most_shards} shards: give most_shards"
            raise TooManyShards(f"{shard.decode()}: {told}")
        if before := self._queues.get(shard):
            if gone := self._earlier.get(shard):
                self._ahead -= len(gone.ahead or ())
            self._earlier[shard] = before
        self._queues[shard] = queue = _QueueMarks(shard, incarnation, self._edge)
        return queue

    def _restore(self, progress: QueueProgress) -> None:
        queue = self._begin(progress.shard.encode(), progress.incarnation.encode())
        queue.read = {int(number): position_of(at) for number, at in progress.read.items()}
        queue.whole = position_of(progress.whole) if progress.whole else _NOT_BEGUN
        queue.unjudged = progress.unjudged
        for at, end in progress.ahead.items():
            self._wait(queue, position_of(at), position_of(end))

    # ------------------------------------------------------------------------------------------------- chain

    def _link(self, queue: _QueueMarks, at: int, end: int, headers: Headers) -> None:
        """Join a new record to the chain of its queue. Raises GapFound before anything has changed."""
        is_first = at < queue.whole or queue.whole == _NOT_BEGUN
        short = self._short(dict(headers).get(AFTER)) if is_first and len(headers) > 3 else []
        is_ahead = _NOT_BEGUN < queue.whole < at and not queue.unjudged and at not in (queue.ahead or ())
        if (is_ahead or short) and self._ahead >= (self._most_ahead or 0):
            self._raise(queue, at, short)
        for parent, its_end in short:
            self._wait(parent, its_end, its_end)
            self._changed.add(parent.shard)
        if is_ahead:
            self._wait(queue, at, end)
        elif queue.whole == _NOT_BEGUN or queue.unjudged:
            queue.unjudged = max(queue.unjudged - 1, 0)
            self._go_on_at(queue, max(queue.whole, end))
        elif at == queue.whole:
            queue.whole = end
            self._follow(queue)

    def _short(self, header: bytes | None) -> list[tuple[_QueueMarks, int]]:
        """The parents of a shard that begins whose chains do not lead up to their ends yet, with these."""
        short = []
        for shard, incarnation, end in end_of_parents(header):
            for found in (self._queues, self._earlier):
                queue = found.get(shard)
                if queue and queue.incarnation == incarnation and _NOT_BEGUN < queue.whole < end:
                    short.append((queue, end))
        return short

    def _raise(self, queue: _QueueMarks, at: int, short: Sequence[tuple[_QueueMarks, int]]) -> NoReturn:
        """Tell of the gap that most records wait behind; those that are about to wait count."""
        would: list[tuple[_QueueMarks, int]] = [*short, *([(queue, at)] if at > queue.whole > _NOT_BEGUN else [])]
        waits = [(each, min(each.ahead)) for each in self._all() if each.ahead and each.whole != _NOT_BEGUN]
        widest, end = max([*would, *waits], key=lambda each: len(each[0].ahead or ()))
        end = min([end, *(widest.ahead or ())])
        raise GapFound(Gap(widest.shard.decode(), widest.incarnation.decode(), text_of(widest.whole), text_of(end)))

    def _wait(self, queue: _QueueMarks, at: int, end: int) -> None:
        if queue.ahead is None:
            queue.ahead = {}
        if at not in queue.ahead:
            self._ahead += 1
        queue.ahead[at] = end

    def _follow(self, queue: _QueueMarks) -> None:
        """Go on behind everything that is there without a gap."""
        ahead = queue.ahead
        if not ahead:
            return
        while (end := ahead.pop(queue.whole, None)) is not None:
            self._ahead -= 1
            if end == queue.whole:
                break  # the queue has ended
            queue.whole = end
        if not ahead:
            queue.ahead = None

    def _go_on_at(self, queue: _QueueMarks, at: int) -> None:
        """Ask for nothing in front of a position."""
        queue.whole = at
        for each in [each for each in queue.ahead or () if each < at]:
            self._ahead -= 1
            del queue.ahead[each]  # type: ignore[union-attr]  # there are some
        self._follow(queue)


def _progress(queue: _QueueMarks) -> QueueProgress:
    return QueueProgress(
        shard=queue.shard.decode(),
        incarnation=queue.incarnation.decode(),
        read={str(partition): text_of(at) for partition, at in queue.read.items()},
        whole="" if queue.whole == _NOT_BEGUN else text_of(queue.whole),
        ahead={text_of(at): text_of(end) for at, end in (queue.ahead or {}).items()},
        unjudged=queue.unjudged,
    )
