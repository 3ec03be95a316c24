"""Commits the parts of committed intents, each once, in the layout that room was reserved in or in a later one.

A part is committed by one operation that demands that its mark is absent, and sets it. Where the queue is shut, or gone
with its layout, the part's events go to the queues of the next layout that there is, by their keys, under the same mark
there. A layout's queues go only when every intent that was committed before they were shut is completed. So an intent
that is still committed when its queue is gone has nothing in it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from remora.codec.event_entry import decode
from remora.codec.shard_hash import shard as shard_number
from remora.model.errors import CodecError, ShardGone, StoreUnavailable, TopicUnknown
from remora.model.shard import Origin, Shard
from remora.model.topic import TopicLayout, shard_of
from remora.storage.rados.cluster.refusals import MismatchError
from remora.storage.rados.ingest.intent_log import Intent, IntentLog, IntentPart, IntentState, L
from remora.storage.rados.queues.own_queues import OwnQueues, PartOutcome
from remora.storage.rados.topics.registry import Registry, as_topic

COMPLETING_S = 60.0
"""An attempt to complete ends well before the marks of an intent are deleted (180 s)."""

_TRIES = 5


@dataclass(frozen=True, slots=True)
class CommittedIntent:
    """An intent of a request that was seen committed at `began`. Long after that another process may have completed it
    and deleted its marks, which begin with `mark`, and a commit would store a part again.
    """

    request: str
    mark: str
    intent: Intent
    began: float


class PartCommits(Generic[L]):
    """See the module."""

    def __init__(self, intents: IntentLog[L], queues: OwnQueues, registry: Registry) -> None:
        self._intents, self._queues, self._registry = intents, queues, registry

    async def store(self, of: CommittedIntent, number: str, part: IntentPart) -> bool:
        """Commit one part; returns whether events of it went to a later layout.

        Raises StoreUnavailable where that cannot be now, and TopicUnknown when the topic is gone.
        """
        mark, is_moved = f"{of.mark}.{number}", False
        outcome = await self._committed(of, of.intent.shard(part), mark, part.payloads, part.reservation)
        left, generation = ([] if outcome is PartOutcome.DONE else part.payloads), of.intent.generation
        while left:
            # In this order: a layout that goes in between has the intent completed before, and the second look tells.
            layout = await self._later_layout(of.intent, generation, outcome)
            if not await self._is_pending(of):
                break
            left, outcome = await self._store_in(of, layout, mark, left)
            generation, is_moved = layout.generation, True
        return is_moved

    async def _store_in(
        self, of: CommittedIntent, layout: TopicLayout, mark: str, payloads: Sequence[bytes]
    ) -> tuple[list[bytes], PartOutcome]:
        """Commit to the queues of a later layout; returns what these take no longer, either, and why.

        All of it goes on to the next layout together. So whichever finisher comes upon the part, and wherever, each
        queue gets the same events under the mark.
        """
        left, why = list[bytes](), PartOutcome.DONE
        for number, some in by_shard(payloads, layout.shards).items():
            shard = shard_of(of.intent.topic_name, number, Origin.REMORA, layout.generation)
            outcome = await self._committed(of, shard, mark, some, None)
            if outcome is not PartOutcome.DONE:
                left, why = [*left, *some], outcome
        return left, why

    async def _committed(
        self, of: CommittedIntent, shard: Shard, mark: str, payloads: Sequence[bytes], reservation: int | None
    ) -> PartOutcome:
        """Commit to one queue, in a new reservation when the first one has expired; OPEN is no answer.

        When another process has committed the part in another reservation, this one is given back.
        """
        topic_id, sizes = of.intent.topic_id, [len(payload) for payload in payloads]
        for _ in range(_TRIES):
            if reservation is not None:
                try:
                    await self._queues.commit_once(shard, topic_id, reservation, payloads, mark)
                except (MismatchError, ShardGone):
                    pass
                else:
                    return PartOutcome.DONE
            outcome = await self._queues.outcome(shard, topic_id, mark)
            if outcome is PartOutcome.DONE and reservation is not None:
                await self._queues.abort(shard, topic_id, reservation)
            if outcome is not PartOutcome.OPEN:
                return outcome
            if seconds() - of.began > COMPLETING_S:
                raise StoreUnavailable(f"committing to {shard} takes too long")
            try:
                reservation = await self._queues.reserve(shard, topic_id, sizes, late=True)
            except (MismatchError, ShardGone):
                reservation = None  # it was shut or removed just now
        raise StoreUnavailable(f"committing to {shard}: its reservations keep expiring")

    async def _is_pending(self, of: CommittedIntent) -> bool:
        """Whether the intent is still to be completed; not where another process has stored all of it meanwhile."""
        known = await self._intents.load(of.request)
        if known is None:
            raise StoreUnavailable(f"request {of.request} is gone")
        if known.state is IntentState.ABORTED:
            raise TopicUnknown(f"topic {of.intent.topic_name} was removed")
        return known.state is IntentState.COMMITTED

    async def _later_layout(self, intent: Intent, generation: int, outcome: PartOutcome) -> TopicLayout:
        """The layout that takes what one takes no longer."""
        name = intent.topic_name
        found = await self._registry.find(name)
        if found is None or found.stored.id != intent.topic_id or found.stored.state == "creating":
            raise TopicUnknown(f"topic {name} was removed")
        stored = found.stored
        later = [each for each in as_topic(name, stored).layouts if each.generation > generation]
        if outcome is PartOutcome.GONE and not later:
            raise TopicUnknown(f"topic {name} was removed")
        if stored.is_leaving or not later:
            raise StoreUnavailable(f"topic {name} is being removed")
        return later[0]


def by_shard(payloads: Sequence[bytes], shards: int) -> dict[int, list[bytes]]:
    """Entries by the shard that their keys name, in order; one that cannot be decoded has none, and goes to the first.

    Those of a key stay in their order.
    """
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    for payload in payloads:
        try:
            event = decode(payload).event
        except CodecError:
            found[0].append(payload)
        else:
            found[shard_number(b"%b:%b" % (event.bucket_name, event.object_key), shards)].append(payload)
    return found


def seconds() -> float:
    """A clock that goes on while this host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
