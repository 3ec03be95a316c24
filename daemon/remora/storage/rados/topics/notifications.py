"""Notifications for remora's own topics: a key each in the omap of object `remora.notifications`.

It lies in remora's namespace. Those of a radosgw's buckets stay radosgw's. A change compares the object's version with
the one that was read, so that of two at once one sees what the other did. It looks at the topics in between; and a
removal of a topic, which the registry tells first, writes to the object, too. So a change that saw the topic before it
began to go meets another version, and looks again.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import MappingProxyType

import msgspec

from remora.bounded import all_of
from remora.model.errors import StoreError, StoreUnavailable
from remora.model.notification import MOST_NOTIFICATIONS, Definitions, Notification
from remora.policy.ingest.notification_rules import check_removal, check_replacement, check_topics
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import OWN, ChangedError, ExistsError, MissingError, Refusals
from remora.storage.rados.topics.registry import Registry

_OBJECT = "remora.notifications"
_NONE = Definitions(version=-1)
_REMOVED = "topic_removed"
"""The attribute that a removal writes: the topic's name."""

_TRIES = 20

_CHANGED: Refusals = MappingProxyType(
    {
        **OWN,
        errno.ERANGE: (ChangedError, "it has changed"),
        errno.EOVERFLOW: (ChangedError, "it has been made anew"),
    }
)

# A newer version may add fields, which are skipped, but never change these.
_decoder = msgspec.json.Decoder(Notification)


class RadosNotifications(RadosPart):
    """Reads and replaces them; an unchanged object costs a look at its version."""

    def __init__(self, connection: ClusterConnection, registry: Registry) -> None:
        super().__init__(connection)
        self._registry = registry
        self._known = _NONE

    async def definitions(self) -> Definitions:
        """All of them as they are now; the same object while nothing changed."""
        try:
            if await self._run(ReadOp().assert_exists()) != self._known.version:
                self._known = await self._read()
        except MissingError:
            self._known = _NONE
        return self._known

    async def change(self, before: Notification | None, after: Notification | None) -> None:
        """Replace one by another of its id, where it is as `before` says."""
        given = after or before
        assert given is not None
        for _ in range(_TRIES):
            known = await self._now()
            if after is not None:
                check_topics(after, await self.topics_there(after.topics))
            there = next((each for each in known.notifications if each.id == given.id), None)
            check_replacement(given.id, there, before, len(known.notifications))
            operation = _upon(known)
            if after is None:
                operation.remove_omap([given.id])
            else:
                operation.set_omap({given.id: msgspec.json.encode(after)})
            if await self._is_written(operation):
                return
        raise StoreUnavailable(f"notification {given.id}: other processes keep changing notifications")

    async def keep_off(self, topic: str) -> None:
        """See that no notification names a topic whose removal the registry tells, nor any that is being made.

        Raises TopicNamed.
        """
        for _ in range(_TRIES):
            known = await self._now()
            check_removal(topic, known)
            if await self._is_written(_upon(known).set_xattr(_REMOVED, topic)):
                return
        raise StoreUnavailable(f"removing topic {topic}: other processes keep changing notifications")

    async def topics_there(self, names: Sequence[str]) -> Sequence[str]:
        """Those of the names that topics have which are ready now."""
        found = await all_of(names, self._registry.find)
        return [name for name, each in zip(names, found, strict=True) if each is not None and each.stored.is_ready]

    async def _is_written(self, operation: WriteOp) -> bool:
        try:
            await self._run(operation)
        except (ChangedError, ExistsError, MissingError):
            return False
        return True

    async def _now(self) -> Definitions:
        try:
            return await self._read()
        except MissingError:
            return _NONE

    async def _read(self) -> Definitions:
        """All of them, of one version. Raises MissingError where there never was any."""
        operation = ReadOp().assert_exists()
        page = operation.omap_page("", "", MOST_NOTIFICATIONS + 1)
        version = await self._run(operation)
        return Definitions(tuple(_decoded(name, raw) for name, raw in sorted(page.values.items())), version)

    async def _run(self, operation: ObjectOperation) -> int:
        return await self._connection.run(operation, _OBJECT, f"looking into {_OBJECT}", _CHANGED, self._own)


def _upon(known: Definitions) -> WriteOp:
    """A write that passes only while they are as they were read."""
    if known.version < 0:
        return WriteOp().create(exclusive=True)
    return WriteOp().assert_version(known.version)


def _decoded(name: str, definition: bytes) -> Notification:
    try:
        return _decoder.decode(definition)
    except msgspec.MsgspecError as exc:
        raise StoreError(f"notification {name} cannot be read: {exc}") from exc
