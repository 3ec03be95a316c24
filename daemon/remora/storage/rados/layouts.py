"""Another number of shards for a topic that is in use: the steps of a change, and the end of a former layout.

The registry is replaced by comparison, and each queue by operations that compare what the step before has left. So any
process may carry out any step, several at once and late, and a change whose process has died is finished by another.

1. Announce: the registry names the layout that is coming, in a state that remoras of one layout cannot read.
2. Prepare: its queues are made, in which nothing lands yet, and activated when the registry still names it: a process
   that wakes up late makes no queue in which events could be lost.
3. Seal: each queue of the layout that was open.
4. Open: the registry makes the coming layout the open one, and the sealed one the former one.
5. Shut: each sealed queue, when no reservation is open there.
6. Forget: when all are shut and empty. Before that, requests that were committed in the layout are completed, and
   re-drives into it are finished: what tells that they were goes with the queues. The ledgers are kept, the queues
   removed, and the registry forgets the layout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from remora.bounded import all_of, each_of
from remora.model.errors import StoreDamaged, StoreError, StoreUnavailable, TopicRefused, TopicUnknown
from remora.model.ledger import FormerQueue
from remora.model.topic import Topic, own_topic_name
from remora.model.words import several
from remora.policy.queues.layouts import still_held
from remora.storage.rados.cluster.refusals import MismatchError
from remora.storage.rados.ingest.finisher import RequestLog
from remora.storage.rados.ingest.intent_log import FanOutEnvelope, Intent, IntentState, L
from remora.storage.rados.ingest.schedule import MOST_WATCHED, DueAction
from remora.storage.rados.own_topics import OwnTopicsParts, RadosOwnTopics, check_shards
from remora.storage.rados.queues.own_queues import there_of
from remora.storage.rados.queues.sealed_queues import SealedLook
from remora.storage.rados.redriving import RadosLetters
from remora.storage.rados.topics.registry import StoredLayout, StoredTopic, TopicRecord, as_topic

_TRIES = 20


class LayoutParts(NamedTuple):
    """The parts of the store that the end of a layout needs: both logs of requests, and letters."""

    requests: RequestLog[Intent]
    fan_outs: RequestLog[FanOutEnvelope]
    letters: RadosLetters


class ReshardableTopics(RadosOwnTopics):
    """Topics with their queues, and changes of their number."""

    def __init__(self, topics: OwnTopicsParts, parts: LayoutParts) -> None:
        super().__init__(topics)
        self._requests, self._fan_outs, self._letters = parts

    # --- a change --------------------------------------------------------------------------------------

    async def reshard(self, topic: Topic, shards: int) -> Topic:
        """See `ports.administration.OwnTopics`. A change that is under way is finished first."""
        check_shards(shards)
        for _ in range(_TRIES):
            found = await self._registry.existing(topic)
            if found.stored.is_leaving:
                raise TopicRefused(f"topic {topic.name} is being removed")
            if found.stored.coming is not None:
                await self._finish(topic, found)
            elif found.stored.shards == shards:
                with contextlib.suppress(StoreError):  # the change is made; workers go on with what is left
                    if found.stored.former:
                        await self.forget_former(topic)
                        now = await self._registry.existing(topic)
                        found = now if now.stored.shards == shards else found  # else another command came after this
                return as_topic(topic.name, found.stored)
            elif found.stored.former:
                await self._refuse_while_held(as_topic(topic.name, found.stored))
                await self.forget_former(topic)
            else:
                await self._announce_layout(topic, found, shards)
        raise StoreUnavailable(f"changing topic {topic.name}: other processes keep changing it")

    async def _refuse_while_held(self, topic: Topic) -> None:
        """Raise TopicRefused while anything is left in the former layouts."""
        found = await each_of(topic.former_shards(), self._sealed.look, StoreError)
        looks = [each for each in found if isinstance(each, SealedLook)]
        if left := sum(each.entries for each in looks):
            held = still_held(topic.former, left, is_counted=all(each.is_counted for each in looks))
        elif reserved := sum(each.reservations for each in looks):
            open_ = several(reserved, "reservation is", "reservations are")
            held = f"{open_} open in generation {topic.former[0].generation}"
        else:
            return
        raise TopicRefused(f"{topic.name} is changed already: {held}; wait until they are delivered")

    async def _announce_layout(self, topic: Topic, found: TopicRecord, shards: int) -> None:
        coming = StoredLayout(found.stored.generation + 1, shards, "preparing")
        with contextlib.suppress(MismatchError):
            await self._registry.swap(topic.name, found, replace(found.stored, state="resharded", coming=coming))

    async def _finish(self, topic: Topic, found: TopicRecord) -> None:
        """Carry an announced change out to where its layout is open; no error where another process does."""
        stored, was = found.stored, as_topic(topic.name, found.stored)
        assert stored.coming is not None
        assert was.coming is not None
        shards = was.shards_of(was.coming)

        async def check() -> None:
            if await self._is_overtaken(topic.name, stored):
                raise StoreUnavailable(f"changing topic {topic.name}: another process has gone on")

        try:
            await all_of(shards, lambda shard: self._sealed.prepare(shard, stored.id, check))
            await check()
            await all_of(shards, lambda shard: self._sealed.activate(shard, stored.id))
            await all_of(shards, lambda shard: self._queues.close(shard, stored.id, closed=stored.closed))
            await all_of(was.open_shards(), lambda shard: self._sealed.seal(shard, stored.id))
        except StoreError:
            if not await self._is_overtaken(topic.name, stored):
                raise
            # Nobody else would remove what was prepared too late.
            await each_of(shards, lambda shard: self._sealed.give_up(shard, stored.id), StoreError)
            await self._align_overtaken(topic)
            return
        former = [*stored.former, StoredLayout(stored.generation, stored.shards, "sealed")]
        opened = replace(
            stored, shards=stored.coming.shards, generation=stored.coming.generation, former=former, coming=None
        )
        try:
            await self._registry.swap(topic.name, found, opened)
        except MismatchError:  # an attribute was changed, or another process was first: look again
            await self._align_overtaken(topic)

    async def _align_overtaken(self, topic: Topic) -> None:
        """Open or close the queues as the registry has it: the topic may have been opened or closed since its change
        was looked at, and the queues of its new layout were marked late. No error where it is gone."""
        with contextlib.suppress(TopicUnknown):
            await self._align(topic)

    async def _is_overtaken(self, name: str, stored: StoredTopic) -> bool:
        """Whether the change that the topic had announced is no longer what its record says, or goes with the topic."""
        now = await self._registry.find(name)
        if now is None or now.stored.id != stored.id or now.stored.is_leaving:
            return True
        return now.stored.coming != stored.coming

    # --- the end of a former layout --------------------------------------------------------------------

    async def forget_former(self, topic: Topic) -> bool:
        """See `ports.administration`. A change that was cut short is finished before."""
        found = await self._registry.existing(topic)
        if found.stored.is_ready and found.stored.coming is not None:
            await self._finish(topic, found)
            found = await self._registry.existing(topic)
        if not (found.stored.is_ready and found.stored.former) or found.stored.coming is not None:
            return False
        topic_id, former = found.stored.id, as_topic(topic.name, found.stored).former_shards()
        # One that is gone was through when another process began to forget it.
        there = list((await there_of(former, lambda shard: self._sealed.shut(shard, topic_id))).values())
        if not all(look.is_shut for look in there):
            return False
        found = await self._all_shut(topic.name, found)
        through = [look.former for look in there if look.is_through]
        if len(through) != len(there):
            return False
        generation = found.stored.former[-1].generation
        if not (
            await _complete_committed(self._requests, topic.name, generation)
            and await _complete_committed(self._fan_outs, topic.name, generation)
        ):
            return False
        return await self._forget(topic.name, found, through)

    async def _all_shut(self, name: str, found: TopicRecord) -> TopicRecord:
        """Have the registry say that the former layout is shut."""
        if all(each.state == "shut" for each in found.stored.former):
            return found
        former = [replace(each, state="shut") for each in found.stored.former]
        with contextlib.suppress(MismatchError):
            return await self._registry.swap(name, found, replace(found.stored, former=former))
        return found

    async def _forget(self, name: str, found: TopicRecord, queues: Sequence[FormerQueue]) -> bool:
        """Keep the ledgers, remove the queues, and have the registry forget the former layouts."""
        stored, was = found.stored, as_topic(name, found.stored)
        there = {each.name for each in queues}
        shards = [shard for shard in was.former_shards() if shard.queue in there]
        await all_of(shards, self._letters.finish_redrives)
        if queues:
            await self._former.keep(stored.id, queues)
            now = await self._registry.find(name)
            if now is None or now.stored.id != stored.id:  # it was removed meanwhile, and nobody else would forget them
                await self._former.forget(stored.id)
                return False
        await all_of(shards, lambda shard: self._queues.remove(shard, stored.id, None))
        try:
            await self._registry.swap(name, found, replace(stored, former=[]))
        except MismatchError:
            return False  # an attribute was changed, or another process was first: the next look finds out
        return True

    async def former_queues(self, topic: Topic) -> Sequence[FormerQueue]:
        """See `ports.administration`."""
        await self._registry.existing(topic)
        return await self._former.kept(topic.id) if topic.generation else ()


async def _complete_committed(log: RequestLog[L], name: str, generation: int) -> bool:
    """Complete every request that was committed in a layout of the topic up to this one before it was shut.

    What is committed later has nothing in its queues. False where there are too many to see all.
    """
    entries = (await log.schedule.entries())[DueAction.COMPLETE]
    if len(entries) >= MOST_WATCHED:
        return False
    for entry in entries:
        if not log.kind.OF_SEVERAL_TOPICS and own_topic_name(entry.name) != name:
            continue
        try:
            known = await log.intents.load(entry.name)
        except StoreDamaged:  # nobody can complete it, however long the layouts are kept; recovery names it in the log
            continue
        if known is not None and known.state is IntentState.COMMITTED:
            members = [intent for _, intent in known.intent.members if intent.topic_name == name]
            if any(intent.generation <= generation for intent in members):
                await log.finisher.complete(entry.name, known.intent)
    return True
