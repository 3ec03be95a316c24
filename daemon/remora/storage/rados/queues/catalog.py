"""The catalog of queues, from radosgw's registry and remora's own, and of their topics.

Topics' metadata is read again every few seconds by every delivering process, at little cost: each metadata object is
kept with its version; a look asks for the version alone, and reads the object when that has changed. Its name is
guessed from the queues' names, which finds a new topic at once; all objects are listed now and then for queues whose
names do not tell.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from remora.bounded import all_of
from remora.codec.queue_ops import decode_listing, encode_list
from remora.codec.queue_state import spill_in
from remora.codec.topic import decode_topic, decode_topics
from remora.model.errors import CodecError, StoreError, StoreMisconfigured, StoreUnavailable
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.storage.librados import ReadOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import QUEUE_CLASS, RadosPart, all_keys, decoded
from remora.storage.rados.cluster.placement import Locator, Placement
from remora.storage.rados.cluster.refusals import QUEUE, MissingError, PoolMissing
from remora.storage.rados.cluster.state import SPILL
from remora.storage.rados.queues.runs import Runs, oldest_spilled, spilled_view
from remora.storage.rados.topics.registry import NONE, ReadyTopics, Registry

_REGISTRY = "queues_list_object"


class RadosCatalog(RadosPart):
    """Lists queues and topics without any lock."""

    def __init__(
        self, connection: ClusterConnection, registry: Registry, runs: Runs, changed: Callable[[], Awaitable[None]]
    ) -> None:
        """`changed` returns when a notice says that topics have changed."""
        super().__init__(connection)
        self._changed = changed
        self._runs = runs
        self._topics = TopicReader(connection)
        self._registry = registry
        self._registered: list[str] | None = None
        self._ready: ReadyTopics = NONE
        self._shards: Sequence[Shard] = ()

    async def shards(self) -> Sequence[Shard]:
        """Every registered queue in name order; empty when none was ever registered."""
        session = self._connection.session
        names = await all_keys(self._connection, _REGISTRY, session.placement.notif)
        # A pool that was deleted answers like an object that never was.
        if not names and not await session.has_pool(session.placement.notif.pool):
            raise StoreMisconfigured(f"there is no pool {session.placement.notif.pool} any more")
        names.sort()
        own = await self._registry.known()
        if names != self._registered or own is not self._ready:
            self._registered, self._ready = names, own
            self._shards = sorted([*map(Shard, names), *own.shards], key=lambda shard: shard.queue)
        return self._shards

    async def topics(self) -> Mapping[Shard, Topic]:
        """The persistent topics whose metadata can be read, by their first shard."""
        if self._registered is None:
            await self.shards()
        found = await self._topics.read(self._registered or ())
        own = await self._registry.known()
        return {**{topic.first_shard: topic for topic in found.values()}, **own.topics}

    async def changed(self) -> None:
        """Return when a topic of remora's own was changed, or any was held; nobody tells of radosgw's."""
        await self._changed()

    async def peek(self, shard: Shard) -> bytes | None:
        """The first entry of a queue, read without its lock; None when it is empty. Raises ShardGone."""
        what = f"peeking into {shard}"
        operation = ReadOp().assert_exists()
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", encode_list(1))
        xattrs = operation.xattrs()
        await self._connection.run(operation, shard.queue, what, QUEUE, self._locator(shard))
        if decoded(spill_in, xattrs.values.get(SPILL, b""), what).entries:
            view = await spilled_view(self._connection, shard, self._locator(shard), self._runs)
            if (oldest := await oldest_spilled(view)) is not None:
                return oldest
        entries = decoded(decode_listing, reply.data, what).entries
        return entries[0] if entries else None


_log = logging.getLogger(__name__)

_LIST_EVERY_S = 30.0
_AT_ONCE = 64
_FIRST_READ = 64 << 10

# `pubsub.<tenant>`; the notifications of a bucket lie beside it as `pubsub.<tenant>.bucket.<name>/<marker>`.
_TENANT_OBJECT = re.compile(r"pubsub\.[^./]*")


class _MetadataObject(NamedTuple):
    """A metadata object."""

    locator: Locator
    oid: str


@dataclass(frozen=True, slots=True)
class _KnownObject:
    """The topics of a metadata object at a version."""

    version: int
    topics: tuple[Topic, ...]


class TopicReader:
    """Reads the topics of a zone: version 1 (an object for each tenant), then version 2 (an object for each topic)."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._known: dict[_MetadataObject, _KnownObject] = {}
        self._next_listing = 0.0
        self._looked_for: frozenset[str] = frozenset()
        self._denied: set[Locator] = set()
        self._warned_of: set[Locator] = set()

    async def read(self, queues: Iterable[str]) -> Mapping[str, Topic]:
        """The persistent topics by the name of their first queue; `queues` are the registered ones."""
        placement, names = self._connection.session.placement, frozenset(queues)
        await self._look({_MetadataObject(placement.log, "pubsub."), *self._known})
        await self._look(_candidates(placement.topics, self._unexplained(names)))
        now, unexplained = asyncio.get_running_loop().time(), self._unexplained(names)
        if now >= self._next_listing or unexplained - self._looked_for:
            self._next_listing, self._looked_for = now + _LIST_EVERY_S, unexplained
            self._denied.clear()
            await self._look(set(await self._list(placement)) - self._known.keys())
        return self._by_queue()

    def _by_queue(self) -> dict[str, Topic]:
        """While a tenant has an object of version 1, radosgw uses that one; so it comes first."""
        found: dict[str, Topic] = {}
        order = sorted(self._known, key=lambda name: (not _TENANT_OBJECT.fullmatch(name.oid), name.oid))
        for topic in (topic for name in order for topic in self._known[name].topics):
            if topic.persistent:
                found.setdefault(topic.queue, topic)
        return found

    def _unexplained(self, queues: frozenset[str]) -> frozenset[str]:
        """The queues that belong to no topic seen so far."""
        return queues - {shard.queue for topic in self._by_queue().values() for shard in topic.all_shards()}

    async def _look(self, names: Iterable[_MetadataObject]) -> None:
        """Read these objects if they have changed; one that does not answer stays as it was."""

        async def one(name: _MetadataObject) -> None:
            try:
                await self._update(name)
            except StoreUnavailable as exc:
                _log.debug("topic metadata stays as it was: %s", exc)
            except StoreMisconfigured as exc:
                self._deny(name.locator, exc)

        await all_of([name for name in names if name.locator not in self._denied], one, at_once=_AT_ONCE)

    async def _update(self, name: _MetadataObject) -> None:
        known = self._known.get(name)
        try:
            if known is not None and await self._run(ReadOp().assert_exists(), name) == known.version:
                return
            data, version = await self._content(name)
        except MissingError:
            self._known.pop(name, None)
            return
        self._known[name] = _KnownObject(version, _decode(name.oid, data))

    async def _content(self, name: _MetadataObject) -> tuple[bytes, int]:
        """All bytes of an object, and its version."""
        size = _FIRST_READ
        while True:
            operation = ReadOp().assert_exists()
            content = operation.read(0, size)
            version = await self._run(operation, name)
            if len(content.data) < size:
                return content.data, version
            size *= 8

    async def _run(self, operation: ReadOp, name: _MetadataObject) -> int:
        return await self._connection.run(operation, name.oid, f"reading {name.oid}", locator=name.locator)

    async def _list(self, placement: Placement) -> list[_MetadataObject]:
        """Every metadata object that the user may list."""
        found = []
        for locator, prefix, wanted in (
            (placement.log, "pubsub.", _TENANT_OBJECT.fullmatch),
            (placement.topics, "topic.", bool),
        ):
            try:
                oids = await self._connection.session.list_objects(locator, prefix)
                # A pool that was deleted answers like an empty one.
                if not oids and not await self._connection.session.has_pool(locator.pool):
                    self._known = {name: each for name, each in self._known.items() if name.locator != locator}
                    raise StoreMisconfigured(f"there is no pool {locator.pool} any more")
            except StoreUnavailable as exc:
                _log.debug("topic metadata stays as it was: %s", exc)
                continue
            except StoreMisconfigured as exc:
                self._deny(locator, exc)
                continue
            self._warned_of.discard(locator)
            found += [_MetadataObject(locator, oid) for oid in oids if wanted(oid)]
        return found

    def _deny(self, locator: Locator, why: StoreError) -> None:
        """Skip a pool that may not be read, or does not exist, until the next listing; say so once.

        A pool that never was is no fault where nobody but a zone or a default names it: `open_session` has refused one
        that the settings name.
        """
        self._denied.add(locator)
        if locator not in self._warned_of and not isinstance(why, PoolMissing):
            self._warned_of.add(locator)
            _log.warning("topics in pool %s cannot be read: %s", locator, why)


def _candidates(locator: Locator, queues: Iterable[str]) -> Iterator[_MetadataObject]:
    """The version 2 objects that these queues' topics may have; an old queue's name lacks the tenant."""
    for queue in queues:
        yield _MetadataObject(locator, f"topic.{queue}")
        if ":" not in queue:
            yield _MetadataObject(locator, f"topic.:{queue}")


def _decode(oid: str, data: bytes) -> tuple[Topic, ...]:
    try:
        return tuple(decode_topics(data)) if oid.startswith("pubsub.") else (decode_topic(data),)
    except CodecError as exc:
        _log.warning(
            "metadata object %s cannot be decoded; its queue is delivered by what its entries say: %s", oid, exc
        )
        return ()
