"""Keeps each hour's peaks of the topics whose shards this worker holds, for the advice on their number of shards.

No process sees the ledgers of all shards, so each worker keeps what its own had, and the store merges what several keep
of one topic. It costs no look at any queue: the figures are those of the ledgers that are read anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from remora.bounded import portions
from remora.engine.catalogue import Catalogue
from remora.metrics import Telemetry
from remora.model.errors import CodecError, StoreError
from remora.model.ledger import Balance
from remora.model.peaks import HourPeak
from remora.model.shard import Shard, ShardStats
from remora.model.topic import Topic
from remora.policy.queues.advice import WINDOW_S, Committed, Observed
from remora.ports.delivery import DeliveryStore

Looks = dict[str, Committed]


class PeakKeeper:
    """Called with what each look at the held queues saw. An hour that a worker did not live to the end of is a gap."""

    def __init__(self, store: DeliveryStore, catalogue: Catalogue, telemetry: Telemetry) -> None:
        self._store = store
        self._catalogue = catalogue
        self._telemetry = telemetry
        self.wall: Callable[[], float] = time.time
        self._mean_bytes: dict[Shard, float] = {}
        self._before: dict[Shard, Committed] = {}
        self._before_at = 0.0
        self._observed: dict[Shard, Observed] = {}
        self._hour: int | None = None
        self._due: Mapping[Topic, HourPeak] = {}
        self._placed: Mapping[Shard, Topic] = {}
        self._places: dict[Shard, Shard | None] = {}

    def weigh(self, waiting: Sequence[ShardStats]) -> None:
        """Take the mean bytes of what waits, which stand for what came: nothing else tells them."""
        self._mean_bytes |= {each.shard: each.used_bytes / each.entries for each in waiting if each.entries}

    async def count(self, balances: Sequence[Balance]) -> None:
        """Take the ledgers of held queues. Once a minute the rates of that minute are counted."""
        now = asyncio.get_running_loop().time()
        if self._before and now - self._before_at < WINDOW_S:
            return
        after: dict[Shard, Committed] = {}
        looks: dict[Shard, tuple[Looks, Looks]] = {}
        async for some in portions(balances):
            for each in some:
                shard = each.shard
                then = after[shard] = Committed(each.committed, self._mean_bytes.get(shard, 0.0))
                before, first = self._before.get(shard), self._first_of(shard)
                if before is None or first is None:
                    continue
                if before.entries != then.entries or first not in self._observed:  # that nothing came is known once
                    of_topic = looks.setdefault(first, ({}, {}))
                    of_topic[0][shard.queue], of_topic[1][shard.queue] = before, then
        self._mean_bytes = {shard: mean for shard, mean in self._mean_bytes.items() if shard in after}
        async for topics in portions(list(looks.items())):
            for place, of_topic in topics:
                self._observed.setdefault(place, Observed()).add(*of_topic, now - self._before_at)
        self._before, self._before_at = after, now

    async def keep_due(self) -> None:
        """Keep the hour that is over. What the store does not take now is tried again, until the next hour is over."""
        hour = int(self.wall() // 3600)
        if hour != self._hour:
            if self._hour is not None:
                self._due = self._peaks(self._hour)
            self._hour, self._observed = hour, {}
        if not self._due:
            return
        try:
            await self._store.peaks.keep(self._due)
        except (StoreError, CodecError) as exc:
            self._telemetry.peaks_not_kept(str(exc))
        else:
            self._due = {}

    def _peaks(self, hour: int) -> Mapping[Topic, HourPeak]:
        """Of all queues of a topic the highest; of one whose queues could never be compared there is nothing."""
        topics, found = self._catalogue.topics, {}
        for first, observed in self._observed.items():
            if observed.peaks and (topic := topics.get(first)) is not None:
                peaks = observed.peaks.values()
                events, nbytes = max(each.events for each in peaks), max(each.bytes for each in peaks)
                found[topic] = HourPeak(hour, topic.shards, int(events), int(nbytes))
        return found

    def _first_of(self, shard: Shard) -> Shard | None:
        """The shard that names the topic; looked up once while the catalogue stands."""
        topics = self._catalogue.topics
        if topics is not self._placed:
            self._placed, self._places = topics, {}
        if shard not in self._places:
            topic = self._catalogue.topic(shard)
            self._places[shard] = None if topic is None else topic.first_shard
        return self._places[shard]
