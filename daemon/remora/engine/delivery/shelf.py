"""What the sessions of a shard hand on to each other, and what those of a worker have in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from remora.codec.render import Renderer
from remora.config import DeliverySettings
from remora.engine.catalogue import Catalogue
from remora.metrics import Telemetry
from remora.model.ledger import Cause
from remora.model.position import Position
from remora.model.record import Attempt, CorruptLetter, DeadLetter
from remora.policy.idle import Looks
from remora.policy.pace import Pace
from remora.ports.delivery import DeliveryStore

FIRST_GUESS_BYTES = 1024
"""Bytes of an entry before any was seen; radosgw reserves 4,096 and uses about 700."""


@dataclass(slots=True)
class Shelf:
    """What a shard's sessions hand on to each other; it ends with the hold.

    `done` (and why) and `attempts` are by position and only hold entries that stand in the queue because something
    failed. `rounds_arrived` counts whole listings since the last failure. `news` is set when the store told of
    new entries, and cleared right before each read. While a refused record is looked for, `read_singly` tells in how
    many entries it is, and a transaction takes `search_entries` of them; `refused` are those found, with the reason.
    `letters` are those of entries that stand in the queue, whoever stored them, from when their storing was begun until
    the entries have left; without the raw bytes. `unstored` are those of them that may not have come into the store.
    `empty_since` is when the queue was first found empty, as far back as nothing came; None while there are entries.
    `has_backlog`: the last listing did not reach the queue's end.
    `in_doubt` is for topics that are delivered in transactions: entries may have been committed that still stand there.
    """

    news: asyncio.Event = field(default_factory=asyncio.Event)
    done: dict[bytes, Cause] = field(default_factory=dict)
    attempts: dict[bytes, Attempt] = field(default_factory=dict)
    mean_bytes: float = FIRST_GUESS_BYTES
    rounds_arrived: int = 64
    read_singly: int = 0
    search_entries: int = 1
    refused: dict[bytes, str] = field(default_factory=dict)
    letters: dict[bytes, DeadLetter] = field(default_factory=dict)
    unstored: set[bytes] = field(default_factory=set)
    in_doubt: bool = True
    has_work: bool = False
    empty_since: float | None = None
    has_backlog: bool = False
    progress_at: float = 0.0
    held_bytes: int = 0

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

    def forget(self, positions: Iterable[bytes]) -> None:
        """Drop what is known of entries that are done."""
        if self.attempts or self.refused:
            for position in positions:
                self.attempts.pop(position, None)
                self.refused.pop(position, None)

    def drop_before(self, front: Position) -> None:
        """Forget entries that have left the queue, however they did."""
        for known in (self.done, self.attempts, self.refused, self.letters):
            for position in [each for each in known if Position.parse(each.decode()) < front]:
                del known[position]
        self.unstored &= self.letters.keys()

    def removed(self, upto: bytes) -> None:
        """The entries before this position have left the queue: what is known of their letters is not needed more."""
        if self.letters:
            front = Position.parse(upto.decode())
            self.letters = {each: of for each, of in self.letters.items() if Position.parse(each.decode()) >= front}
            self.unstored &= self.letters.keys()

    def begin_parking(self, letters: Iterable[DeadLetter]) -> None:
        """These letters are about to be stored. Whatever comes of it, their entries are not sent by this holder."""
        for each in letters:
            position = each.position.encode()
            self.letters[position] = replace(each, raw=b"")
            self.unstored.add(position)

    def parked(self, letters: Iterable[DeadLetter]) -> None:
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

    def count_attempt(self, positions: Iterable[bytes]) -> None:
        """These entries were tried in vain."""
        now = time.time()
        for position in positions:
            before = self.attempts.get(position)
            self.attempts[position] = Attempt(before.count + 1, before.first_tried) if before else Attempt(1, now)


@dataclass(slots=True)
class Tools:
    """What every session of a worker uses. `settings` is replaced by a reload and read anew at each use.

    `caught_up_at` is when a listing with entries last reached its queue's end: a topic is delivered as it comes in.
    """

    store: DeliveryStore
    catalogue: Catalogue
    telemetry: Telemetry
    renderer: Renderer
    settings: DeliverySettings
    pace: Pace
    looks: Looks = field(default_factory=Looks)
    caught_up_at: float = float("-inf")
