"""The registry of remora's own topics, which no radosgw reads.

Object `remora.topics` in remora's namespace has one omap key for each topic. Its value is replaced by comparison with
the one that was read: of several workers that make, change or remove a topic at once, each sees what the others did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from remora.model.errors import StoreError, TopicUnknown
from remora.model.shard import Origin, Shard
from remora.model.topic import LayoutState, Target, Topic, TopicLayout
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import OWN, MissingError

_log = logging.getLogger(__name__)

_REGISTRY = "remora.topics"
_VERSION = 1
_PAGE = 1024


TopicState: TypeAlias = Literal["creating", "ready", "spilling", "resharded", "removing", "leaving"]


class StoredLayout(msgspec.Struct, frozen=True):
    """A layout that takes no events yet, or no longer: then it is `sealed`, and `shut` when all its queues are."""

    generation: int
    shards: int
    state: Literal["preparing", "sealed", "shut"]


class StoredTopic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic as it is stored. Fields may be added, and are skipped by those that do not know them; another meaning of
    these fields is another version, which is refused.

    It is `creating` until all its queues exist, and `removing` once the first of them may be gone. `spilling` is a
    ready one of which entries may stand in runs; remoras that know nothing of runs cannot read it, and leave it alone.
    So do those that know one layout only with a `resharded` topic, which is ready, and has or gets another layout than
    its first one, and with a `leaving` one, which is such a topic that is being removed.

    `fate` is what a removal has decided, of several at once the first one that decides: the topic `goes`, so that its
    queues may be removed, or it `stays`, so that they may take events again.
    """

    version: int
    id: str
    state: TopicState
    shards: int
    uri: str
    args: str
    target: str
    opaque_data: bytes | None
    time_to_live_s: int | None
    max_retries: int | None
    retry_sleep_s: int | None
    closed: bool
    generation: int = 0
    former: list[StoredLayout] = []
    coming: StoredLayout | None = None
    fate: Literal["", "goes", "stays"] = ""

    @property
    def is_ready(self) -> bool:
        """Whether all its queues exist, and stay."""
        return self.state in ("ready", "spilling", "resharded")

    @property
    def is_leaving(self) -> bool:
        """Whether its removal has begun."""
        return self.state in ("removing", "leaving")


class TopicRecord(NamedTuple):
    """A stored topic, and its bytes as read, for the comparison that replaces it."""

    stored: StoredTopic
    raw: bytes


_decoder = msgspec.msgpack.Decoder(StoredTopic)


@dataclass(frozen=True, slots=True)
class ReadyTopics:
    """The topics that are ready, by their first shard, and all their shards in name order."""

    topics: Mapping[Shard, Topic]
    shards: Sequence[Shard]


NONE = ReadyTopics(MappingProxyType({}), ())


class Registry(RadosPart):
    """Reads and replaces topics as they are stored."""

    def __init__(self, connection: ClusterConnection, changed: Callable[[], None]) -> None:
        """`changed` is called after each change of a topic."""
        super().__init__(connection)
        self._changed = changed
        self.last_known = NONE
        """The topics that are ready, as this process read them last."""
        self._known_version = -1
        self._remarked = ""

    async def known(self) -> ReadyTopics:
        """The topics that are ready.

        While the registry cannot be read they are as last read, none at first: radosgw's queues are delivered all the
        same.
        """
        try:
            await self._refresh()
        except MissingError:
            self._keep(NONE, -1)
        except StoreError as exc:
            reason = str(exc)
            if reason != self._remarked:
                self._remarked = reason
                _log.warning("cannot read the topics of remora's own: %s", reason)
        else:
            self._remarked = ""
        return self.last_known

    async def _refresh(self) -> None:
        """Read the registry if it has changed."""
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
        self._keep(ReadyTopics({topic.first_shard: topic for topic in topics}, tuple(shards)), version)

    def _keep(self, own: ReadyTopics, version: int) -> None:
        self._known_version = version
        if own != self.last_known:
            self.last_known = own

    async def find(self, name: str) -> TopicRecord | None:
        """The topic of this name in any state; None when there is none."""
        operation = ReadOp().assert_exists()
        values = operation.omap_values([name])
        try:
            await self._run(operation)
        except MissingError:
            return None
        raw = values.values.get(name)
        return None if raw is None else TopicRecord(_decode(name, raw), raw)

    async def existing(self, topic: Topic) -> TopicRecord:
        """The topic of this name and id. Raises TopicUnknown when it is another one or not made yet."""
        found = await self.find(topic.name)
        if found is None or found.stored.id != topic.id or found.stored.state == "creating":
            raise TopicUnknown(f"there is no topic {topic.label}, or it was made anew")
        return found

    async def swap(self, name: str, old: TopicRecord | None, new: StoredTopic) -> TopicRecord:
        """Replace a topic, or add one where `old` is None. Raises MismatchError when it has changed."""
        raw = msgspec.msgpack.encode(new)
        await self._run(_on(name, old).set_omap({name: raw}))
        self._changed()
        return TopicRecord(new, raw)

    async def drop(self, name: str, old: TopicRecord) -> None:
        """Remove a topic. Raises MismatchError when it has changed."""
        await self._run(_on(name, old).remove_omap([name]))
        self._changed()

    async def _run(self, operation: ReadOp | WriteOp) -> int:
        return await self._connection.run(operation, _REGISTRY, f"looking into {_REGISTRY}", OWN, self._own)


def _on(name: str, old: TopicRecord | None) -> WriteOp:
    """A write that passes only while the stored topic is `old`; a missing key compares as an empty value."""
    return WriteOp().create(exclusive=False).assert_omap(name, old.raw if old else b"")


def _readable(name: str, raw: bytes) -> Topic | None:
    """The topic if it is ready and can be read, else None."""
    try:
        stored = _decode(name, raw)
    except StoreError as exc:
        _log.warning("%s", exc)
        return None
    return as_topic(name, stored) if stored.is_ready else None


def _decode(name: str, raw: bytes) -> StoredTopic:
    try:
        stored = _decoder.decode(raw)
    except msgspec.MsgspecError as exc:
        raise StoreError(f"topic {name} in {_REGISTRY} cannot be read: {exc}") from exc
    if stored.version > _VERSION:
        raise StoreError(f"topic {name} in {_REGISTRY} is a newer remora's: version {stored.version}, not {_VERSION}")
    return stored


def as_stored(topic: Topic, topic_id: str, state: TopicState) -> StoredTopic:
    """A topic as it is stored."""
    target = topic.target
    return StoredTopic(
        _VERSION, topic_id, state, topic.shards, target.uri, target.args, target.topic,
        topic.opaque_data, topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s, topic.closed,
    )  # fmt: skip


def changed(stored: StoredTopic, topic: Topic) -> StoredTopic:
    """A stored topic with the attributes of this one, and with its own id, state and layouts."""
    target = topic.target
    return msgspec.structs.replace(
        stored, uri=target.uri, args=target.args, target=target.topic, opaque_data=topic.opaque_data,
        time_to_live_s=topic.time_to_live_s, max_retries=topic.max_retries, retry_sleep_s=topic.retry_sleep_s,
        closed=topic.closed,
    )  # fmt: skip


def as_topic(name: str, stored: StoredTopic) -> Topic:
    """The topic of a stored one; a topic that is being removed is closed."""
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
        closed=stored.closed or stored.is_leaving,
        generation=stored.generation,
        former=tuple(map(_layout, stored.former)),
        coming=_layout(stored.coming) if stored.coming else None,
    )


def _layout(stored: StoredLayout) -> TopicLayout:
    return TopicLayout(stored.generation, stored.shards, LayoutState(stored.state))
