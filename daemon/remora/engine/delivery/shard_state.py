"""Per-shard delivery state that outlives a session; it ends with the lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from remora.engine.admission.gate import Pending
from remora.model.errors import EndpointError
from remora.model.ledger import Cause
from remora.model.position import Position
from remora.model.record import Attempt, CorruptLetter, DeadLetter, LastAttempt, Record

FIRST_GUESS_BYTES = 1024
"""Bytes of an entry before any was seen; radosgw reserves 4,096 and uses about 700."""


AskLate = Callable[[Sequence[bytes]], Awaitable[frozenset[bytes]]]
"""`LateEndpoint.arrived_late` of the shard and the target that records were pushed to."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """What is known of a record that may have arrived: whether its last attempt was the one without an answer, and
    whom to `ask` whether one has come since."""

    ask: AskLate | None
    is_last: bool = True


@dataclass(slots=True)
class Redelivery:
    """What is known of entries that stand in the queue because something failed, each by its position.

    `done` are those that need not be sent again, with the cause, `attempts` those that were tried in vain. While a
    refused record is looked for, `read_singly` is the number of entries among which it is, and a transaction takes
    `search_entries` of them; `refused` are those found, with the reason. `letters` are the dead letters of entries,
    whichever worker stored them, from when their storing began until the entries have left the queue, without the raw
    bytes; `unstored` are those of them that may not have reached the store. `unclear` are those that may have arrived:
    an attempt at them was not answered. `failures` has how the last attempt failed at entries whose attempts count, and
    `last_failure` how the shard's last one did, None when something was delivered since. `in_doubt` is for topics that
    are delivered in transactions: entries that still stand in the queue may have been committed.
    """

    done: dict[bytes, Cause] = field(default_factory=dict)
    attempts: dict[bytes, Attempt] = field(default_factory=dict)
    refused: dict[bytes, str] = field(default_factory=dict)
    letters: dict[bytes, DeadLetter] = field(default_factory=dict)
    unclear: dict[bytes, Unclear] = field(default_factory=dict)
    unstored: set[bytes] = field(default_factory=set)
    failures: dict[bytes, LastAttempt] = field(default_factory=dict)
    last_failure: LastAttempt | None = None
    read_singly: int = 0
    search_entries: int = 1
    in_doubt: bool = True

    def forget(self, positions: Iterable[bytes]) -> None:
        """Drop what is known of entries that are done."""
        if self.attempts or self.refused or self.unclear:
            for position in positions:
                self.attempts.pop(position, None)
                self.refused.pop(position, None)
                self.unclear.pop(position, None)
                self.failures.pop(position, None)

    def last_failure_of(self, position: bytes) -> LastAttempt | None:
        """How the last attempt at an entry failed, or at those in front of it where it is not known of its own."""
        return self.failures.get(position) or self.last_failure

    def drop_before(self, position: bytes) -> None:
        """Forget entries that have left the queue, however they did: all those before this position, its front."""
        front = Position.parse(position.decode())
        for known in (self.done, self.attempts, self.refused, self.letters, self.unclear, self.failures):
            for position in [each for each in known if Position.parse(each.decode()) < front]:
                del known[position]
        self.unstored &= self.letters.keys()

    def removed(self, upto: bytes) -> None:
        """The entries before this position have left the queue: what is known of their letters is not needed more."""
        if self.letters:
            front = Position.parse(upto.decode())
            self.letters = {each: of for each, of in self.letters.items() if Position.parse(each.decode()) >= front}
            self.unstored &= self.letters.keys()

    def begin_storing(self, letters: Iterable[DeadLetter]) -> None:
        """These letters are about to be stored. Whatever comes of it, their entries are not sent by this holder."""
        for each in letters:
            position = each.position.encode()
            self.letters[position] = replace(each, raw=b"")
            self.unstored.add(position)

    def stored(self, letters: Iterable[DeadLetter]) -> None:
        """These letters are in the store."""
        self.unstored.difference_update(each.position.encode() for each in letters)

    def is_stored(self, letter: DeadLetter) -> bool:
        """Whether this letter is known to be in the store."""
        position = letter.position.encode()
        return position in self.letters and position not in self.unstored

    def recall(self, letters: Iterable[DeadLetter]) -> None:
        """These letters are in the store, and their entries stand in the queue. Corrupt ones are to be stored anew."""
        for each in letters:
            position = each.position.encode()
            self.letters[position] = replace(each, raw=b"")
            if isinstance(each, CorruptLetter):
                self.unstored.add(position)

    def failed(self, records: Sequence[Record], exc: EndpointError, ask: AskLate | None, *, counts: bool) -> None:
        """A push of these records failed so. Attempts are counted where that `counts`; `ask` is as `Unclear` has it."""
        positions = [record.position for record in exc.tried(records)]
        if counts:
            self.count_attempt(positions)
            self.failures |= dict.fromkeys(positions, LastAttempt(str(exc), time.time()))
        for position in positions:
            if position in self.unclear:
                self.unclear[position] = replace(self.unclear[position], is_last=False)
        for at in exc.once_unclear:
            self.unclear[records[at].position] = Unclear(ask, is_last=False)
        for at in exc.unclear:
            self.unclear[records[at].position] = Unclear(ask)

    def count_attempt(self, positions: Iterable[bytes]) -> None:
        """These entries were tried in vain."""
        now = time.time()
        for position in positions:
            before = self.attempts.get(position)
            self.attempts[position] = Attempt(before.count + 1, before.first_tried) if before else Attempt(1, now)


@dataclass(slots=True)
class ReadStatistics:
    """What earlier reads say about the next one.

    `mean_bytes` is the size of an entry, `mean_records` how many records one makes (below 1 where many were done
    before), `pages_delivered` counts whole pages since the last failure, and `has_backlog` says that the last page did
    not reach the end of the queue.
    """

    mean_bytes: float = FIRST_GUESS_BYTES
    mean_records: float | None = None
    pages_delivered: int = 64
    has_backlog: bool = False


@dataclass(slots=True)
class Progress:
    """Whether the shard has work, and since when it makes no progress. Times are the loop's, in seconds.

    `news` is set when the store notifies of new entries, and cleared right before each read. `empty_since` is when the
    queue was first found empty, as far back as nothing came; None while there are entries. `held_bytes` are the
    bytes of entries in memory. `has_acks` says whether the endpoint took anything since the last failure.
    """

    news: asyncio.Event = field(default_factory=asyncio.Event)
    has_work: bool = False
    empty_since: float | None = None
    progress_at: float = 0.0
    held_bytes: int = 0
    has_acks: bool = False

    def begin_work(self) -> None:
        """There are entries; where there were none, the time without progress begins now."""
        if not self.has_work:
            self.has_work, self.progress_at = True, asyncio.get_running_loop().time()
            self.empty_since = None

    def end_work(self) -> None:
        """Nothing waits, and nothing is under way."""
        self.has_work = False
        if self.empty_since is None:
            self.empty_since = asyncio.get_running_loop().time()


@dataclass(slots=True)
class Shaped:
    """What traffic shaping knows of the shard: whether it is delivered as entries come in, which is not so before
    anything `is_known`, and its request for credit, which may outlive a session."""

    at_tail: bool = False
    is_known: bool = False
    pending: Pending | None = None

    @property
    def waits(self) -> bool:
        """Whether the shard waits for credit now."""
        return self.pending is not None and self.pending.grant is None

    def cancel(self) -> None:
        """Give the request up, and what it was granted back."""
        if self.pending is not None:
            self.pending.cancel()
            self.pending = None


@dataclass(frozen=True, slots=True)
class ShardState:
    """The four parts of it."""

    redelivery: Redelivery = field(default_factory=Redelivery)
    reads: ReadStatistics = field(default_factory=ReadStatistics)
    progress: Progress = field(default_factory=Progress)
    shaped: Shaped = field(default_factory=Shaped)
