"""What queues and topics there are, for all parts of this worker: looked up every few seconds, and at once when the
store tells of a change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from remora.codec.event_entry import attributes
from remora.codec.topic import SLO, parse_args
from remora.metrics import Telemetry
from remora.model.errors import CodecError, StoreError
from remora.model.record import CorruptBytes
from remora.model.shard import Origin, Shard
from remora.model.topic import GENERATION_MARK, Topic, TopicHold, generation_of, own_topic_name
from remora.policy.admission.holds import hold_text, in_force
from remora.policy.delivery.pace import EarlyReadings
from remora.policy.queues.layouts import are_sent_alike
from remora.policy.status.objectives import Objective, parse_objective
from remora.ports.delivery import DeliveryStore

MOST_UNDECODABLE = 64
"""Undecodable entries at a queue's front that are looked past for one that names the topic."""


class Catalogue:
    """The registry, the topics' attributes, what is released and what is held, as last read, and a signal when any of
    it changed.

    `shards`, `topics`, `released` and `holds` are the very same objects for as long as nothing changed.
    While the store is away the last reading stands: a topic is never taken for deleted because the store is silent.
    """

    def __init__(self, store: DeliveryStore, telemetry: Telemetry, interval_s: float) -> None:
        self._store = store
        self._telemetry = telemetry
        self._interval_s = interval_s
        self._early = EarlyReadings()
        self._topics: Mapping[Shard, Topic] = {}
        self._read = asyncio.Event()
        self._changed = asyncio.Event()
        self.shards: Sequence[Shard] = ()
        self.released: frozenset[Shard] = frozenset()
        self.holds: Mapping[Shard, TopicHold] = {}
        self.beat_at = asyncio.get_running_loop().time()

    def topic(self, shard: Shard) -> Topic | None:
        """The current attributes of a shard's topic, from its metadata; None when that is not readable."""
        return topic_among(self._topics, shard)

    def hold(self, shard: Shard) -> TopicHold | None:
        """The hold of a shard's topic that is in force; None where there is none."""
        topic = self.topic(shard)
        return self.holds.get(topic.first_shard if topic is not None else shard)

    def is_held(self, shard: Shard) -> bool:
        """Whether a shard's topic is held now."""
        return self.hold(shard) is not None

    def held(self) -> Mapping[str, TopicHold]:
        """The holds that are in force, by their topic's name; of unreadable metadata by the name of the queue."""
        names = {shard: topic.label for shard, topic in self._topics.items()}
        return {names.get(shard, shard.queue): hold for shard, hold in self.holds.items()}

    @property
    def topics(self) -> Mapping[Shard, Topic]:
        """All topics with readable metadata, by their first shard."""
        return self._topics

    async def run(self) -> None:
        """Read again and again until cancelled."""
        while True:
            await self.refresh()
            # The next reading is due after a while, or since the store has told of a change.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._store.catalog.changed()
                    await asyncio.sleep(self._early.wait_s(asyncio.get_running_loop().time()))

    async def refresh(self) -> None:
        """Read all of it once; on failure keep what is known and say so."""
        try:
            shards = await self._store.catalog.shards()
            topics = await self._store.catalog.topics()
            released = await self._store.releases.released()
            holds = in_force(await self._store.holds.held(), topics, time.time())
        except (StoreError, CodecError) as exc:
            self._telemetry.catalogue_failed(str(exc))
            return
        finally:
            self.beat_at = asyncio.get_running_loop().time()
        found, known = (shards, topics, released, holds), (self.shards, self._topics, self.released, self.holds)
        # A store that knows that nothing changed answers the very object of the last time.
        if not all(new is old or new == old for new, old in zip(found, known, strict=True)):
            self.shards, self._topics, self.released, self.holds = found
            self._telemetry.objectives = dict(objectives_of(self._topics.values()))
            self._telemetry.topics_held({label: hold_text(hold) for label, hold in self.held().items()})
            self._changed.set()
            self._changed = asyncio.Event()
        self._read.set()
        self._read = asyncio.Event()

    async def next_reading(self) -> None:
        """Wait until the store was read once more, changed or not."""
        await self._read.wait()

    def is_former(self, shard: Shard) -> bool:
        """Whether a queue is of a layout that takes no events any more, as last read."""
        topic = self._topics.get(Shard(own_topic_name(shard.queue), shard.origin))
        return topic is not None and topic.generation > generation_of(shard.queue)

    async def wait_for_change(self, shard: Shard, seen: Topic | None, hold: TopicHold | None = None) -> None:
        """Wait until entries of a shard's topic are to be sent otherwise than as `seen`, or it is held otherwise."""
        while are_sent_alike(self.topic(shard), seen) and self.hold(shard) == hold:
            await self._changed.wait()

    async def next_change(self) -> None:
        """Wait until anything of all this is another than before."""
        await self._changed.wait()


def objectives_of(topics: Iterable[Topic]) -> Iterator[tuple[str, Objective]]:
    """The service levels of topics, by their names; one that cannot be read counts for nothing."""
    for topic in topics:
        if SLO in topic.target.args and (text := parse_args(topic.target.args).get(SLO)):
            with suppress(ValueError):
                yield topic.label, parse_objective(text)


def topic_among(topics: Mapping[Shard, Topic], shard: Shard) -> Topic | None:
    """The topic of a shard; the further shards of a topic are named after the first one: t, t.1, t.2 ..."""
    found = topics.get(shard)
    if found is None:
        first, dot, number = shard.queue.rpartition(".")
        if not (dot and number.isdecimal()):
            first, number = shard.queue, "0"
        found = _of_layout(topics, Shard(first, shard.origin), int(number))
    return found


def _of_layout(topics: Mapping[Shard, Topic], first: Shard, number: int) -> Topic | None:
    """The topic whose layout begins with queue `first`, where that has a shard of this number."""
    base, mark, text = first.queue.partition(GENERATION_MARK)
    generation = 0
    if first.origin is Origin.REMORA and mark and text.isdecimal():
        first, generation = Shard(base, first.origin), int(text)
    found = topics.get(first)
    if found is None or not any(each.generation == generation and number < each.shards for each in found.layouts):
        return None
    return found


async def topic_of(store: DeliveryStore, shard: Shard) -> Topic | None:
    """The attributes of a shard's topic: its metadata, else an entry's own copy. Raises ShardGone."""
    return topic_among(await store.catalog.topics(), shard) or await first_known_topic(store, shard)


async def first_known_topic(store: DeliveryStore, shard: Shard) -> Topic | None:
    """A topic's attributes as the oldest entry that can be decoded carries them; None where none of the first can.

    Looked at without the lock, to learn whether the queue is ours at all: one undecodable entry at its front
    must not hide that.
    """
    entry = await store.catalog.peek(shard)
    if entry is None:
        return None
    if (found := _attributes(entry)) is not None:
        return found
    seen = 0
    async for _, raw in store.inspection.dump(shard):
        if (found := _attributes(raw)) is not None:
            return found
        seen += 1
        if seen == MOST_UNDECODABLE:
            break
    return None


def _attributes(entry: bytes) -> Topic | None:
    """The attributes that an entry carries; None where it is corrupt or cannot be decoded."""
    if isinstance(entry, CorruptBytes):
        return None
    try:
        return attributes(entry)
    except CodecError:
        return None
