"""Makes, changes and removes topics of remora's own: the registry first, then the queues, then the registry again.

Any process can finish a topic that another one left half made or half removed.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import NamedTuple

from msgspec.structs import replace

from remora.bounded import all_of
from remora.model.errors import (
    ShardGone,
    StoreError,
    StoreUnavailable,
    TopicClosed,
    TopicMoved,
    TopicNamed,
    TopicNotSequenced,
    TopicRefused,
    TopicUnknown,
)
from remora.model.ingest import Removed
from remora.model.shard import Origin, Shard
from remora.model.topic import MOST_SHARDS, NAME, SequenceState, Topic
from remora.model.words import several
from remora.policy.ingest.notification_rules import check_removal
from remora.storage.rados.cluster.refusals import ChangedError, MismatchError
from remora.storage.rados.queues.inspection import RadosInspection
from remora.storage.rados.queues.own_queues import OwnQueues, there_of
from remora.storage.rados.queues.sealed_queues import FormerQueues, SealedQueues
from remora.storage.rados.topics.holds import HoldsObject
from remora.storage.rados.topics.notifications import RadosNotifications
from remora.storage.rados.topics.registry import Registry, TopicRecord, TopicState, as_stored, as_topic, changed

_TRIES = 20
_COUNTS = 3


class OwnTopicsParts(NamedTuple):
    """The parts of the store that topics of remora's own need."""

    registry: Registry
    queues: OwnQueues
    sealed: SealedQueues
    inspection: RadosInspection
    holds: HoldsObject
    former: FormerQueues
    notifications: RadosNotifications


class RadosOwnTopics:
    """Topics with their queues; see `ports.administration.OwnTopics`."""

    def __init__(self, parts: OwnTopicsParts) -> None:
        (
            self._registry, self._queues, self._sealed, self._inspection, self._holds, self._former,
            self._notifications,
        ) = parts  # fmt: skip

    # --- looking ---------------------------------------------------------------------------------------

    async def find(self, name: str) -> Topic | None:
        """The topic of this name as it is now, None when there is none; one whose removal was cut short is closed."""
        found = await self._registry.find(name)
        return None if found is None or found.stored.state == "creating" else as_topic(name, found.stored)

    async def check(self, topic: Topic) -> None:
        """Raise TopicUnknown when the topic is gone."""
        await self._registry.existing(topic)

    async def refusal(self, topic: Topic) -> StoreError:
        """The error that says why a queue of this topic refused a reservation or a commit.

        Where nothing in the registry says why, a process that was to open or close the queue may have been killed when
        it came to that late. Nobody else would do it, so it is done here.
        """
        try:
            found = await self._registry.existing(topic)
        except TopicUnknown as exc:
            return exc
        if as_topic(topic.name, found.stored).closed:
            return TopicClosed(f"topic {topic.label} takes no new events")
        if found.stored.coming is not None or found.stored.generation != topic.generation:
            return TopicMoved(f"topic {topic.label} is being re-sharded, or was since it was looked up")
        with contextlib.suppress(StoreError):
            await self._align(topic)
        return StoreUnavailable(f"topic {topic.label} is being changed")

    async def sequence(self, topic: Topic) -> SequenceState:
        """Raises NotSequenced: no topic of this store numbers its events."""
        await self._registry.existing(topic)
        raise TopicNotSequenced(f"topic {topic.name} numbers no events: those of the embedded store can")

    # --- making ----------------------------------------------------------------------------------------

    async def create(self, topic: Topic) -> Topic:
        """Make a topic with its empty queues, all or nothing, and return it with its id."""
        _check_makeable(topic)
        announced = await self._announce(topic)
        made = as_topic(topic.name, announced.stored)

        async def check() -> None:
            if await self._registry.find(topic.name) != announced:
                raise TopicRefused(f"another process is making topic {topic.name}")

        await all_of(made.all_shards(), lambda shard: self._queues.make(shard, made.id, check))
        try:
            await self._registry.swap(topic.name, announced, replace(announced.stored, state="ready"))
        except MismatchError as exc:
            raise TopicRefused(f"another process has just made topic {topic.name}") from exc
        return made

    async def _announce(self, topic: Topic) -> TopicRecord:
        """Register the topic as being made; a half-made one of this name takes on the attributes wanted now."""
        for _ in range(_TRIES):
            found = await self._registry.find(topic.name)
            if found is not None and found.stored.state != "creating":
                if found.stored.is_leaving:
                    raise TopicRefused(f"topic {topic.name} is being removed; finish that first")
                shards = several(found.stored.shards, "shard")
                raise TopicRefused(f"there is a topic {topic.name} already, with {shards}")
            # Another number of shards is another topic: queues that this one does not have stay unreachable.
            same = found is not None and found.stored.shards == topic.shards
            wanted = as_stored(topic, found.stored.id if found and same else secrets.token_hex(16), "creating")
            if found is not None and found.stored == wanted:
                return found
            with contextlib.suppress(MismatchError):
                return await self._registry.swap(topic.name, found, wanted)
        raise StoreUnavailable(f"making topic {topic.name}: other processes keep changing it")

    # --- changing --------------------------------------------------------------------------------------

    async def change(self, topic: Topic) -> None:
        """Replace the attributes of the topic of this name and id.

        Queues close after the registry says so and open before it does, so a change that is cut short leaves a topic
        that the registry calls closed.
        """
        _check_own(topic)
        _check_unsequenced(topic)
        _check_capacity(topic)
        for _ in range(_TRIES):
            found = await self._registry.existing(topic)
            if found.stored.shards != topic.shards:
                there = several(found.stored.shards, "shard")
                raise TopicRefused(f"{topic.name} has {there}, not {topic.shards}")
            if found.stored.is_leaving:
                raise TopicRefused(f"topic {topic.name} is being removed")
            if found.stored.closed and not topic.closed:
                await self._close(as_topic(topic.name, found.stored), closed=False)
            with contextlib.suppress(MismatchError):
                await self._registry.swap(topic.name, found, changed(found.stored, topic))
                if topic.closed or found.stored.closed:
                    await self._align(topic)
                return
        raise StoreUnavailable(f"changing topic {topic.name}: other processes keep changing it")

    async def _align(self, topic: Topic) -> None:
        """Open or close the queues as the registry has it.

        The registry is read again afterwards: of several workers that open and close a topic, the last one to touch a
        queue leaves it as the registry has it then.
        """
        stored = (await self._registry.existing(topic)).stored
        for _ in range(_TRIES):
            await self._close(as_topic(topic.name, stored), closed=stored.closed)
            now = (await self._registry.existing(topic)).stored
            if (now.closed, now.generation) == (stored.closed, stored.generation):
                return
            stored = now
        raise StoreUnavailable(f"changing topic {topic.name}: other processes keep changing it")

    async def _close(self, topic: Topic, *, closed: bool) -> None:
        try:
            await all_of(topic.open_shards(), lambda shard: self._queues.close(shard, topic.id, closed=closed))
        except ShardGone as exc:
            raise TopicUnknown(f"topic {topic.name} is being removed") from exc

    # --- removing --------------------------------------------------------------------------------------

    async def remove(self, topic: Topic, *, discard: bool) -> Removed:
        """Remove a topic with its queues. Raises TopicNamed, and TopicRefused while entries wait, unless `discard`."""
        _check_own(topic)
        for look in range(_TRIES):
            try:
                found = await self._registry.existing(topic)
            except TopicUnknown:
                if look:
                    return Removed(topic.shards, 0)  # another process has removed it meanwhile
                raise
            if found.stored.is_ready:
                check_removal(topic.name, await self._notifications.definitions())
            if not discard and found.stored.is_ready:
                await self._check_empty(as_topic(topic.name, found.stored))
            with contextlib.suppress(MismatchError):  # another removal has decided: look again
                if (removed := await self._removed(topic, discard=discard)) is not None:
                    return removed
        raise StoreUnavailable(f"removing topic {topic.name}: other processes keep changing it")

    async def _removed(self, topic: Topic, *, discard: bool) -> Removed | None:
        """Carry a removal out; None where another one had decided that the topic stays, which is carried out then.

        Raises TopicRefused as `remove`, and MismatchError when another one decides first.
        """
        leaving, state = await self._leave(topic)
        was = as_topic(topic.name, leaving.stored)  # another layout may have been opened since the first look
        if leaving.stored.fate == "stays":
            await self._stay(was, leaving, state)
            return None
        if not leaving.stored.fate:
            try:
                await self._notifications.keep_off(topic.name)
            except TopicNamed:
                await self._stay(was, leaving, state)
                raise
        shards = [*was.all_shards(), *(was.shards_of(was.coming) if was.coming else ())]
        await all_of(shards, lambda shard: self._queues.fence(shard, was.id))
        if not discard:
            try:
                await self._check_empty(was)
            except TopicRefused:
                await self._stay(was, leaving, state)
                raise
        if not leaving.stored.fate:
            leaving = await self._registry.swap(topic.name, leaving, replace(leaving.stored, fate="goes"))
        counts = await all_of(shards, lambda shard: self._remove_queue(shard, was.id))
        await self._former.forget(was.id)
        await self._holds.forget(topic.first_shard)
        with contextlib.suppress(MismatchError):  # another one has removed it meanwhile
            await self._registry.drop(topic.name, leaving)
        await self._former.forget(was.id)  # once more: who keeps some looks afterwards whether the topic is there yet
        return Removed(was.shards, sum(counts))

    async def _check_empty(self, topic: Topic) -> None:
        counts = await all_of(topic.all_shards(), self._count)
        if waiting := sum(counts):
            raise TopicRefused(
                f"{several(waiting, f'entry of {topic.name} waits', f'entries of {topic.name} wait')}; nothing was"
                " removed. Close it and wait until all is delivered, or discard what waits"
            )

    async def _leave(self, topic: Topic) -> tuple[TopicRecord, TopicState]:
        """Register the topic as being removed; returns also in which state it was before."""
        for _ in range(_TRIES):
            found = await self._registry.existing(topic)
            if found.stored.is_leaving:  # of one layout nobody knows: there may be runs, until a look finds none
                return found, "resharded" if found.stored.state == "leaving" else "spilling"
            state: TopicState = "leaving" if found.stored.state == "resharded" else "removing"
            with contextlib.suppress(MismatchError):
                leaving = await self._registry.swap(topic.name, found, replace(found.stored, state=state))
                return leaving, found.stored.state
        raise StoreUnavailable(f"removing topic {topic.name}: other processes keep changing it")

    async def _stay(self, topic: Topic, leaving: TopicRecord, state: TopicState) -> None:
        """Undo a removal that has removed nothing yet: the topic is in this state again.

        Raises TopicRefused for one that can only be finished, and MismatchError when another one decides first.
        """
        # Those of a layout that is coming need not be there yet. Those of a former one also go when they are delivered;
        # then their ledgers are kept.
        there = await there_of(topic.all_shards(), self._queues.version)
        gone = [shard for shard in topic.all_shards() if shard not in there]
        kept = {each.name for each in await self._former.kept(topic.id)} if gone else set()
        if leaving.stored.fate == "goes" or any(shard.queue not in kept for shard in gone):
            raise TopicRefused(
                f"the removal of topic {topic.name} with its entries has begun, and can only be finished so"
            )
        if not leaving.stored.fate:
            leaving = await self._registry.swap(topic.name, leaving, replace(leaving.stored, fate="stays"))
        # A former queue that was sealed is shut now, which is where it was to come to.
        await all_of(topic.open_shards(), lambda shard: self._queues.unfence(shard, topic.id))
        if topic.coming is not None:
            await all_of(topic.shards_of(topic.coming), lambda shard: self._queues.unfence(shard, topic.id))
        with contextlib.suppress(MismatchError):
            await self._registry.swap(topic.name, leaving, replace(leaving.stored, state=state, fate=""))

    async def _remove_queue(self, shard: Shard, topic_id: str) -> int:
        """Remove a fenced queue and return the number of entries in it.

        Its owner may still be removing delivered entries. The count is exact when the owner removes none between the
        count and the removal in one of several attempts. The owner then finds the queue gone.
        """
        for left in reversed(range(_COUNTS)):
            try:
                version = await self._queues.version(shard)
            except ShardGone:
                return 0
            count = await self._count(shard)
            with contextlib.suppress(ChangedError):
                await self._queues.remove(shard, topic_id, version if left else None)
                return count
        raise AssertionError("the last attempt asks for no version")

    async def _count(self, shard: Shard) -> int:
        try:
            return (await self._inspection.stats(shard, exact=True)).entries
        except ShardGone:
            return 0


def _check_own(topic: Topic) -> None:
    if topic.origin is not Origin.REMORA:
        raise TopicRefused(f"topic {topic.label} is a radosgw's: it is only changed there")


def _check_makeable(topic: Topic) -> None:
    _check_own(topic)
    if topic.tenant or not NAME.fullmatch(topic.name):
        raise TopicRefused(f'"{topic.label}" cannot be a topic\'s name: 1 to 200 letters, digits, "_" and "-"')
    check_shards(topic.shards)
    _check_unsequenced(topic)
    _check_capacity(topic)


def _check_capacity(topic: Topic) -> None:
    if topic.capacity_bytes is not None:
        raise TopicRefused(
            f"topic {topic.name} cannot have a capacity of its own: a queue on RADOS has the size of a radosgw's;"
            " topics of the embedded store can"
        )


def check_shards(shards: int) -> None:
    """Raise TopicRefused for a number of shards that there cannot be."""
    if not 1 <= shards <= MOST_SHARDS:
        raise TopicRefused(f"a topic has 1 to {MOST_SHARDS} shards, not {shards}")


def _check_unsequenced(topic: Topic) -> None:
    if topic.is_sequenced:
        raise TopicRefused(
            f"topic {topic.name} cannot have a sequence: its queues lie on many OSDs, without a transaction in common"
            " that could number their events; topics of the embedded store can"
        )
