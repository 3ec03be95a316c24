"""What the sessions of a shard hand on to each other, and what those of a worker have in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from remora.codec.render import Renderer
from remora.config import DeliverySettings
from remora.engine.catalogue import Catalogue
from remora.metrics import Telemetry
from remora.model.ledger import Cause
from remora.model.position import Position
from remora.model.record import Attempt, DeadLetter
from remora.policy.idle import Looks
from remora.policy.pace import Pace
from remora.ports import DeliveryStore

FIRST_GUESS_BYTES = 1024
"""Bytes of an entry before any was seen; radosgw reserves 4,096 and uses about 700."""


@dataclass(slots=True)
class Shelf:
    """What a shard's sessions hand on to each other; it ends with the hold.

    `done` (and why) and `attempts` are by position and only hold entries that stand in the queue because something
    failed. `rounds_arrived` counts whole listings since the last failure. `news` is set when the store told of
    new entries, and cleared right before each read. While a refused record is looked for, `read_singly` tells in how
    many entries it is, and a transaction takes `search_entries` of them; `refused` are those found, with the reason.
    `unburied` are letters in the store that the endpoint is to get, too.
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
    unburied: dict[bytes, DeadLetter] = field(default_factory=dict)
    in_doubt: bool = True
    has_work: bool = False
    has_backlog: bool = False
    progress_at: float = 0.0
    held_bytes: int = 0

    def begin_work(self) -> None:
        """There are entries; where there were none, the time without progress begins now."""
        if not self.has_work:
            self.has_work, self.progress_at = True, asyncio.get_running_loop().time()

    def forget(self, positions: Iterable[bytes]) -> None:
        """Drop what is known of entries that are done."""
        if self.attempts or self.refused or self.unburied:
            for position in positions:
                self.attempts.pop(position, None)
                self.refused.pop(position, None)
                self.unburied.pop(position, None)

    def drop_before(self, front: Position) -> None:
        """Forget entries that have left the queue, however they did."""
        for known in (self.done, self.attempts, self.refused, self.unburied):
            for position in [each for each in known if Position.parse(each.decode()) < front]:
                del known[position]

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
