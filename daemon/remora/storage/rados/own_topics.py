"""Topics of remora's own, in a registry that no radosgw looks into.

Object `remora.topics` in remora's namespace has one omap key for each topic. Its value is replaced by comparison
with the one that was read, so of several workers that make, change or remove a topic at once each sees what the
others did. A topic is `creating` until all its queues exist, and `removing` from when the first of them may be gone;
whoever finds it so can go on where the other one stopped. Delivered and listed are topics that are `ready`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from remora.model.errors import (
    ShardGone,
    StoreError,
    StoreUnavailable,
    TopicClosed,
    TopicRefused,
    TopicUnknown,
)
from remora.model.ingest import Removed
from remora.model.shard import Origin, Shard
from remora.model.topic import MOST_SHARDS, NAME, Target, Topic
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.connection import Connection
from remora.storage.rados.face import Face
from remora.storage.rados.inspection import Inspection
from remora.storage.rados.own_queues import OwnQueues, all_of
from remora.storage.rados.refusals import OWN, ChangedError, MismatchError, MissingError

_log = logging.getLogger(__name__)

_REGISTRY = "remora.topics"
_VERSION = 1
_PAGE = 1024
_TRIES = 20
_COUNTS = 3


class _Stored(msgspec.Struct, frozen=True):
    """A topic as it is stored. A newer version may add fields, which are skipped, but never change these."""

    version: int
    id: str
    state: Literal["creating", "ready", "removing"]
    shards: int
    uri: str
    args: str
    target: str
    opaque_data: bytes | None
    time_to_live_s: int | None
    max_retries: int | None
    retry_sleep_s: int | None
    closed: bool


class _Found(NamedTuple):
    """A topic as it is stored, with the very bytes."""

    stored: _Stored
    raw: bytes


_decoder = msgspec.msgpack.Decoder(_Stored)


@dataclass(frozen=True, slots=True)
class Own:
    """The topics that are ready, by their first shard, and all their shards in name order."""

    topics: Mapping[Shard, Topic]
    shards: Sequence[Shard]


NONE = Own(MappingProxyType({}), ())


class OwnTopics(Face):
    """Makes, changes and removes topics."""

    def __init__(self, connection: Connection, queues: OwnQueues, inspection: Inspection) -> None:
        super().__init__(connection)
        self._queues = queues
        self._inspection = inspection
        self._known = NONE
        self._known_version = -1
        self._remarked = ""

    # --- looking ---------------------------------------------------------------------------------------

    async def own_topic(self, name: str) -> Topic | None:
        """The topic of this name as it is now; one whose removal was cut short is closed."""
        found = await self._find(name)
        return None if found is None or found.stored.state == "creating" else _topic(name, found.stored)

    async def check(self, topic: Topic) -> None:
        """Raise TopicUnknown when there is no such topic any more."""
        found = await self._find(topic.name)
        if found is None or found.stored.id != topic.id or found.stored.state == "creating":
            raise TopicUnknown(f"there is no topic {topic.label}, or it is another one by now")

    async def refusal(self, topic: Topic) -> StoreError:
        """Why a queue of this topic took nothing."""
        try:
            await self.check(topic)
        except TopicUnknown as exc:
            return exc
        found = await self.own_topic(topic.name)
        if found is None or found.closed:
            return TopicClosed(f"topic {topic.label} takes no new events")
        return StoreUnavailable(f"topic {topic.label} is being changed")

    async def known(self) -> Own:
        """The topics that are ready.

        A registry that cannot be reached is as it was last, and one that may not be read is empty: neither is a
        reason to stop delivering a radosgw's queues.
        """
        try:
            await self._refresh()
        except MissingError:
            self._keep(NONE, -1)
        except StoreError as exc:
            self._remark(str(exc))
        else:
            self._remarked = ""
        return self._known

    def _remark(self, reason: str) -> None:
        if reason != self._remarked:
            self._remarked = reason
            _log.warning("topics of remora's own are not looked at: %s", reason)

    async def _refresh(self) -> None:
        """Read the registry when it has changed."""
        version = await self._run(ReadOp().assert_exists())
        if version == self._known_version:
            return
        found: dict[str, bytes] = {}
        more = True
        while more:
            operation = ReadOp().assert_exists()
            page = operation.omap_page(next(reversed(found), ""), "", _PAGE)
            await self._run(operation)
            found |= page.values
            more = page.more and bool(page.values)
        topics = [topic for name, raw in found.items() if (topic := _readable(name, raw))]
        shards = sorted((shard for topic in topics for shard in topic.all_shards()), key=lambda each: each.queue)
        # The version is the one from before: what changed while pages were read is found by the next look.
        self._keep(Own({topic.first_shard: topic for topic in topics}, tuple(shards)), version)

    def _keep(self, own: Own, version: int) -> None:
        self._known_version = version
        if own != self._known:
            self._known = own

    async def _find(self, name: str) -> _Found | None:
        operation = ReadOp().assert_exists()
        values = operation.omap_values([name])
        try:
            await self._run(operation)
        except MissingError:
            return None
        raw = values.values.get(name)
        return None if raw is None else _Found(_decode(name, raw), raw)

    # --- making ----------------------------------------------------------------------------------------

    async def create_topic(self, topic: Topic) -> Topic:
        """Make a topic with its empty queues, all or nothing, and answer it with its id."""
        _check_makeable(topic)
        announced = await self._announce(topic)
        made = _topic(topic.name, announced.stored)

        async def check() -> None:
            if await self._find(topic.name) != announced:
                raise TopicRefused(f"topic {topic.name} is just being made by somebody else")

        await all_of(made.all_shards(), lambda shard: self._queues.make(shard, made.id, check))
        try:
            await self._swap(topic.name, announced.raw, _encode(replace(announced.stored, state="ready")))
        except MismatchError as exc:
            raise TopicRefused(f"topic {topic.name} has just been made by somebody else") from exc
        return made

    async def _announce(self, topic: Topic) -> _Found:
        """State that the topic is being made; one that somebody began to make is gone on with as it is wanted now."""
        for _ in range(_TRIES):
            found = await self._find(topic.name)
            if found is not None and found.stored.state != "creating":
                raise TopicRefused(_why_not_made(topic.name, found.stored))
            # Another number of shards is another topic: queues that this one does not have stay unreachable.
            same = found is not None and found.stored.shards == topic.shards
            wanted = _stored(topic, found.stored.id if found and same else secrets.token_hex(16), "creating")
            raw = _encode(wanted)
            if found is not None and found.raw == raw:
                return found
            with contextlib.suppress(MismatchError):
                await self._swap(topic.name, found.raw if found else b"", raw)
                return _Found(wanted, raw)
        raise StoreUnavailable(f"making topic {topic.name}: others keep changing it")

    # --- changing --------------------------------------------------------------------------------------

    async def change_topic(self, topic: Topic) -> None:
        """Replace the attributes of the topic of this name and id.

        The queues close after the registry says so and open before, so that a change which is cut short leaves a
        topic that is called closed.
        """
        _check_own(topic)
        for _ in range(_TRIES):
            found = await self._existing(topic)
            if found.stored.shards != topic.shards:
                raise TopicRefused(
                    f"topic {topic.name} has {found.stored.shards} shards and keeps them: with another number events "
                    "would change their shard and overtake each other. Make another topic with that many shards, send "
                    "new events there, and remove this one when it is empty"
                )
            if found.stored.state == "removing":
                raise TopicRefused(f"topic {topic.name} is being removed")
            if found.stored.closed and not topic.closed:
                await self._close(topic, closed=False)
            with contextlib.suppress(MismatchError):
                await self._swap(topic.name, found.raw, _encode(_stored(topic, topic.id, "ready")))
                if topic.closed:
                    await self._close(topic, closed=True)
                return
        raise StoreUnavailable(f"changing topic {topic.name}: others keep changing it")

    async def _close(self, topic: Topic, *, closed: bool) -> None:
        try:
            await all_of(topic.all_shards(), lambda shard: self._queues.close(shard, topic.id, closed=closed))
        except ShardGone as exc:
            raise TopicUnknown(f"topic {topic.name} is being removed") from exc

    # --- removing --------------------------------------------------------------------------------------

    async def remove_topic(self, topic: Topic, *, discard: bool) -> Removed:
        """Remove a topic with its queues; entries are only given up with `discard`."""
        _check_own(topic)
        found = await self._existing(topic)
        was = _topic(topic.name, found.stored)
        if not discard and found.stored.state == "ready":
            await self._check_empty(was)
        leaving = await self._leave(topic)
        await all_of(was.all_shards(), lambda shard: self._queues.fence(shard, was.id))
        if not discard:
            try:
                await self._check_empty(was)
            except TopicRefused:
                await self._stay(was, leaving)
                raise
        counts = await all_of(was.all_shards(), lambda shard: self._remove_queue(shard, was.id))
        with contextlib.suppress(MismatchError):  # another one has removed it meanwhile
            await self._drop(topic.name, leaving.raw)
        return Removed(was.shards, sum(counts))

    async def _check_empty(self, topic: Topic) -> None:
        counts = await all_of(topic.all_shards(), self._count)
        if waiting := sum(counts):
            raise TopicRefused(
                f"topic {topic.name} has {waiting} entries that wait to be delivered; nothing was removed. "
                "Close it and wait until they are, or give them up"
            )

    async def _leave(self, topic: Topic) -> _Found:
        """State that the topic is being removed."""
        for _ in range(_TRIES):
            found = await self._existing(topic)
            if found.stored.state == "removing":
                return found
            leaving = replace(found.stored, state="removing")
            with contextlib.suppress(MismatchError):
                await self._swap(topic.name, found.raw, _encode(leaving))
                return _Found(leaving, _encode(leaving))
        raise StoreUnavailable(f"removing topic {topic.name}: others keep changing it")

    async def _stay(self, topic: Topic, leaving: _Found) -> None:
        """Take back a removal that has removed nothing yet."""
        try:
            await all_of(topic.all_shards(), self._queues.version)
        except ShardGone as exc:
            raise TopicRefused(
                f"the removal of topic {topic.name} with its entries has begun, and can only be finished so"
            ) from exc
        await all_of(topic.all_shards(), lambda shard: self._queues.unfence(shard, topic.id))
        with contextlib.suppress(MismatchError):
            await self._swap(topic.name, leaving.raw, _encode(replace(leaving.stored, state="ready")))

    async def _remove_queue(self, shard: Shard, topic_id: str) -> int:
        """Remove a fenced queue and answer how many entries went with it.

        Its owner may be removing delivered entries yet. The count is exact when he lets the queue be between the
        count and the removal at one of several attempts; he finds it gone afterwards.
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

    # --- the registry ----------------------------------------------------------------------------------

    async def _existing(self, topic: Topic) -> _Found:
        found = await self._find(topic.name)
        if found is None or found.stored.id != topic.id or found.stored.state == "creating":
            raise TopicUnknown(f"there is no topic {topic.label}, or it is another one by now")
        return found

    async def _swap(self, name: str, old: bytes, new: bytes) -> None:
        """Replace a topic's value; MismatchError when it is not `old` (empty for none) any more."""
        await self._run(_registry_write().assert_omap(name, old).set_omap({name: new}))

    async def _drop(self, name: str, old: bytes) -> None:
        await self._run(_registry_write().assert_omap(name, old).remove_omap([name]))

    async def _run(self, operation: ReadOp | WriteOp) -> int:
        place = self._connection.session.places.own
        return await self._connection.run(operation, _REGISTRY, f"looking into {_REGISTRY}", OWN, place)


def _registry_write() -> WriteOp:
    return WriteOp().create(exclusive=False)


def _check_own(topic: Topic) -> None:
    if topic.origin is not Origin.REMORA:
        raise TopicRefused(f"topic {topic.label} is a radosgw's: it is only changed there")


def _check_makeable(topic: Topic) -> None:
    _check_own(topic)
    if topic.tenant or not NAME.fullmatch(topic.name):
        raise TopicRefused(f'"{topic.label}" cannot be a topic\'s name: 1 to 200 letters, digits, "_" and "-"')
    if not 1 <= topic.shards <= MOST_SHARDS:
        raise TopicRefused(f"a topic has 1 to {MOST_SHARDS} shards, not {topic.shards}")


def _why_not_made(name: str, stored: _Stored) -> str:
    if stored.state == "removing":
        return f"topic {name} is being removed; finish that first"
    return f"there is a topic {name} already, with {stored.shards} shards"


def _readable(name: str, raw: bytes) -> Topic | None:
    """A topic that is ready; None for others, and for one that cannot be read."""
    try:
        stored = _decode(name, raw)
    except StoreError as exc:
        _log.warning("%s", exc)
        return None
    return _topic(name, stored) if stored.state == "ready" else None


def _decode(name: str, raw: bytes) -> _Stored:
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as exc:
        raise StoreError(f"topic {name} in {_REGISTRY} cannot be read: {exc}") from exc


def _encode(stored: _Stored) -> bytes:
    return msgspec.msgpack.encode(stored)


def _stored(topic: Topic, topic_id: str, state: Literal["creating", "ready", "removing"]) -> _Stored:
    target = topic.target
    return _Stored(
        _VERSION, topic_id, state, topic.shards, target.uri, target.args, target.topic,
        topic.opaque_data, topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s, topic.closed,
    )  # fmt: skip


def _topic(name: str, stored: _Stored) -> Topic:
    return Topic(
        name=name,
        tenant="",
        queue=name,
        target=Target(stored.uri, stored.args, stored.target),
        opaque_data=stored.opaque_data,
        time_to_live_s=stored.time_to_live_s,
        max_retries=stored.max_retries,
        retry_sleep_s=stored.retry_sleep_s,
        shards=stored.shards,
        origin=Origin.REMORA,
        id=stored.id,
        closed=stored.closed or stored.state == "removing",
    )
