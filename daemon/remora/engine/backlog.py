"""Measures what waits, and checks the ledgers, of each topic whose shards this worker holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from remora.bounded import portions
from remora.engine.admission.gate import Gate, QueueFill
from remora.engine.catalogue import Catalogue
from remora.engine.peaks import PeakKeeper
from remora.engine.rooms import Rooms
from remora.engine.status import ShardStatus
from remora.metrics import Telemetry
from remora.model.errors import CodecError, StoreError
from remora.model.ledger import Balance
from remora.model.shard import LockToken, Origin, QueueRoom, Shard, ShardStats
from remora.model.topic import Topic
from remora.policy.queues.mends import Heal
from remora.ports.delivery import DeliveryStore

BACKLOG_INTERVAL_S = 15.0


@dataclass(slots=True)
class Backlog:
    """What waits in a topic's shards. `exact` only when every shard's count of entries is.

    `oldest_age_s` is None where nothing waits, and where no oldest entry tells its age.
    """

    entries: int = 0
    exact: bool = True
    nbytes: int = 0
    oldest_age_s: float | None = None
    spilled_entries: int = 0
    spilled_bytes: int = 0

    def add(self, stats: ShardStats) -> None:
        """Add one shard."""
        self.entries += stats.entries
        self.exact = self.exact and stats.entries_exact
        self.nbytes += stats.used_bytes
        self.spilled_entries += stats.spilled_entries
        self.spilled_bytes += stats.spilled_bytes
        if stats.entries and stats.oldest_age_s is not None:
            self.oldest_age_s = max(self.oldest_age_s or 0.0, stats.oldest_age_s)


class ShardOwner(Protocol):
    """What it asks of the coordinator of the worker's shards."""

    @property
    def shards(self) -> list[Shard]:
        """The owned shards."""
        ...

    @property
    def tokens(self) -> list[LockToken]:
        """The lock tokens of these shards."""
        ...

    def active(self) -> list[ShardStatus]:
        """How the owned shards are doing that are not idle."""
        ...

    def notify(self, shards: Iterable[Shard]) -> None:
        """Mark these queues non-empty: idle shards become active."""
        ...


class BacklogMonitor:
    """Polls the owned shards every 15 s; a topic that is no longer owned is forgotten.

    It notifies ownership of the queues that have entries, so that a shard that missed their arrival becomes active.
    """

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        ownership: ShardOwner,
        telemetry: Telemetry,
        gate: Gate,
        heal: Heal = "full",
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._ownership = ownership
        self._telemetry = telemetry
        self._gate = gate
        self._shown: set[str] = set()
        self._empty: set[str] = set()
        self._labelled: Mapping[Shard, Topic] = {}
        self._labels: dict[Shard, str] = {}
        self.rooms = Rooms(store, telemetry, heal, self.label)
        self.peaks = PeakKeeper(store, catalogue, telemetry)

    async def run(self) -> None:
        """Poll again and again until cancelled."""
        while True:
            await self.poll()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BACKLOG_INTERVAL_S):
                    while True:
                        await self._catalogue.next_reading()
                        await self._begin_all()

    async def poll(self) -> None:
        """Poll once. What cannot be looked at now is shown as it was."""
        tokens = self._ownership.tokens
        seen = await self._poll_ledgers(tokens)
        seen |= {shard: room for shard, room in (await self._poll_backlogs()).items() if seen.get(shard) is None}
        await self.rooms.look(tokens, seen)
        await self.peaks.keep_due()

    async def _poll_ledgers(self, tokens: Sequence[LockToken]) -> dict[Shard, QueueRoom | None]:
        """Show each topic's balance, of those of its shards that answered; returns the room of these, where told."""
        try:
            found = await self._store.ledger.balances(tokens)
        except (StoreError, CodecError):
            return {}
        await self.peaks.count(found)
        topics: dict[str, list[Balance]] = {}
        async for some in portions(found):
            for each in some:
                topics.setdefault(self.label(each.shard), []).append(each)
        async for shown in portions(list(topics.items())):
            for topic, balances in shown:
                self._telemetry.balances(topic, balances)
        return {each.shard: each.room for each in found}

    async def _poll_backlogs(self) -> dict[Shard, QueueRoom]:
        """Show what waits; returns the room of the queues in which something does.

        A queue that is left out of the store's answer is empty, or did not answer; the latter only matters where
        its dispatcher knows of work.
        """
        shards = self._ownership.shards
        try:
            found = await self._store.inspection.backlog(shards)
        except (StoreError, CodecError):
            return {}
        self.peaks.weigh(found)
        self._ownership.notify([each.shard for each in found if each.entries])
        if self._gate.is_on:
            self._gate.surveyed({each.shard: _fill_of(each) for each in found if each.entries or each.capacity_bytes})
        backlogs: dict[str, Backlog] = {}
        async for some in portions(found):
            for stats in some:
                backlogs.setdefault(self.label(stats.shard), Backlog()).add(stats)
        async for shown in portions(list(backlogs.items())):
            for topic, backlog in shown:
                self._telemetry.backlog(topic, backlog.entries, backlog.exact, backlog.nbytes, backlog.oldest_age_s)
                self._telemetry.spilled(topic, backlog.spilled_entries, backlog.spilled_bytes)
        await self._clear(shards, backlogs.keys())
        return {each.shard: each.room for each in found if each.capacity_bytes}

    async def _begin_all(self) -> None:
        """Have the series of all topics begin."""
        async for some in portions(self._ownership.shards):
            self._begin({self.label(shard) for shard in some})

    def _begin(self, held: Set[str]) -> None:
        """Have the series of topics begin whose queues this worker holds by now."""
        for topic in held - self._shown:
            self._telemetry.topic_found(topic)
        self._shown |= held

    async def _clear(self, shards: Sequence[Shard], found: Collection[str]) -> None:
        """Show the topics of these shards that were not `found` as empty, and forget those that are no longer held."""
        held = set[str]()
        async for part in portions(shards):
            held.update(map(self.label, part))
        async for some in portions(list(held - self._empty)):
            self._begin(set(some))
            working = {each.topic or each.queue for each in self._ownership.active() if each.has_work}
            for topic in set(some).difference(found, working):
                self._telemetry.backlog(topic, 0, True, 0, None)
                self._telemetry.spilled(topic, 0, 0)
                self._empty.add(topic)
        async for gone in portions(list(self._shown - held)):
            for topic in gone:
                self._telemetry.forget_topic(topic)
        self._shown = held
        self._empty = (self._empty & held).difference(found)

    def label(self, shard: Shard) -> str:
        """The topic's name; looked up once while the catalogue stands, since there may be very many shards."""
        topics = self._catalogue.topics
        if topics is not self._labelled:
            self._labelled, self._labels = topics, {}
        label = self._labels.get(shard)
        if label is None:
            topic = self._catalogue.topic(shard)
            label = self._labels[shard] = topic.label if topic is not None else shard.queue
        return label


def _fill_of(stats: ShardStats) -> QueueFill:
    """How full a queue is, reservations included, and what waits in it."""
    reserved = stats.used_bytes + stats.reserved_bytes
    return QueueFill(100 * reserved / stats.capacity_bytes if stats.capacity_bytes else 0.0, stats.entries)


LEAST_S = 15.0
REST = 50
"""A count that took long is made again after this many times as long, so that very many letters cost little."""


class LetterCounter:
    """See the module. One worker of a host counts, since all of them see the same store."""

    def __init__(self, store: DeliveryStore, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry

    async def run(self, catalogue: Catalogue) -> None:
        """Count again and again until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            await self.count(catalogue)
            await asyncio.sleep(max(LEAST_S, REST * (now() - began)))

    async def count(self, catalogue: Catalogue) -> None:
        """Count once. What cannot be counted now is shown as it was."""
        try:
            found = await self._store.letters.counts()
        except (StoreError, CodecError):
            return
        counts: dict[str, int] = {}
        for queue, count in found.items():
            # The topic that the queue is of now; else the queue's name, which its topic had.
            topics = (catalogue.topic(Shard(queue, origin)) for origin in Origin)
            label = next((each.label for each in topics if each is not None), queue)
            counts[label] = counts.get(label, 0) + count
        self._telemetry.letters_stored(counts)
