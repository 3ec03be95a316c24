"""The catalog of queues, from radosgw's registry and remora's own, and of their topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from remora.codec.queue_ops import decode_listing, encode_list
from remora.codec.queue_state import spill_in
from remora.model.errors import StoreMisconfigured
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.storage.librados import ReadOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.part import QUEUE_CLASS, RadosPart, all_keys, decoded
from remora.storage.rados.refusals import QUEUE
from remora.storage.rados.registry import NONE, ReadyTopics, Registry
from remora.storage.rados.runs import Runs
from remora.storage.rados.spilled_view import oldest_spilled, spilled_view
from remora.storage.rados.state import SPILL
from remora.storage.rados.topics import TopicReader

_REGISTRY = "queues_list_object"


class RadosCatalog(RadosPart):
    """Lists queues and topics without any lock."""

    def __init__(
        self, connection: ClusterConnection, registry: Registry, runs: Runs, changed: Callable[[], Awaitable[None]]
    ) -> None:
        """`changed` waits until this process hears that topics have changed."""
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
