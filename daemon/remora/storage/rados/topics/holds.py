"""Holds of topics: a key each in the omap of object `remora.holds`, where the workers of all hosts read them.

It lies in remora's namespace, which no radosgw reads. The key has the origin and the name of the topic's first queue. A
topic of radosgw's has no id, so one that is deleted and made anew under its name is still held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import msgspec

from remora.model.errors import StoreError, StoreMisconfigured
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic, TopicHold
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart, all_values
from remora.storage.rados.cluster.refusals import MissingError
from remora.storage.rados.topics.registry import Registry

_log = logging.getLogger(__name__)

_OBJECT = "remora.holds"
_NONE: Mapping[Shard, TopicHold] = MappingProxyType({})

# A newer version may add fields, which are skipped, but never change these.
_decoder = msgspec.msgpack.Decoder(TopicHold)


class HoldsObject(RadosPart):
    """Reads and changes the holds; an unchanged object costs a look at its version."""

    def __init__(self, connection: ClusterConnection, registry: Registry, changed: Callable[[], None]) -> None:
        """`changed` is called after each change of a hold."""
        super().__init__(connection)
        self._changed = changed
        self._registry = registry
        self._known: Mapping[Shard, TopicHold] | None = None
        self._known_version = -1
        self._remarked = ""

    async def held(self) -> Mapping[Shard, TopicHold]:
        """The holds; as last read while they cannot be read, and none for a user that may not read them."""
        try:
            await self._refresh()
        except StoreError as exc:
            if self._known is None and not isinstance(exc, StoreMisconfigured):
                raise
            if self._remarked != str(exc):
                self._remarked = str(exc)
                _log.warning("cannot read which topics are held: %s", exc)
        else:
            self._remarked = ""
        return self._known or _NONE

    async def _refresh(self) -> None:
        try:
            version = await self._connection.run(
                ReadOp().assert_exists(), _OBJECT, f"looking into {_OBJECT}", locator=self._own
            )
        except MissingError:
            self._known, self._known_version = _NONE, -1
            return
        if version == self._known_version:
            return
        values = await all_values(self._connection, _OBJECT, self._own)
        # The version is the one from before: what changed while pages were read is found by the next look.
        self._known, self._known_version = _decoded(values), version

    async def set_hold(self, topic: Topic, hold: TopicHold | None) -> None:
        """Hold a topic from now on, or no longer."""
        if topic.origin is Origin.REMORA:
            await self._registry.existing(topic)
        if hold is None:
            await self.forget(topic.first_shard)
            return
        value = msgspec.msgpack.encode(replace(hold, topic_id=topic.id))
        await self._write(WriteOp().create(exclusive=False).set_omap({_key(topic.first_shard): value}))

    async def forget(self, first: Shard) -> None:
        """Hold the topic of this first shard no longer."""
        with suppress(MissingError):
            await self._write(WriteOp().assert_exists().remove_omap([_key(first)]))

    async def _write(self, operation: WriteOp) -> None:
        await self._connection.run(operation, _OBJECT, f"writing to {_OBJECT}", locator=self._own)
        self._changed()


def _key(first: Shard) -> str:
    return f"{first.origin}/{first.queue}"


def _decoded(values: Mapping[str, bytes]) -> Mapping[Shard, TopicHold]:
    """The holds that can be read; the log has a line for each other one."""
    found: dict[Shard, TopicHold] = {}
    for key, value in values.items():
        origin, _, queue = key.partition("/")
        try:
            found[Shard(queue, Origin(origin))] = _decoder.decode(value)
        except ValueError as exc:  # msgspec's errors are ValueErrors, too
            _log.warning("hold %s of %s cannot be read, and has no effect: %s", key, _OBJECT, exc)
    return found
