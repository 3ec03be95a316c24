"""Notifications for remora's own topics: a key each in the omap of object `remora.notifications`.

It lies in remora's namespace. Those of a radosgw's buckets stay radosgw's. A change compares the object's version with
the one that was read, so that of two at once one sees what the other did.
"""

from __future__ import annotations

import errno
from types import MappingProxyType

import msgspec

from remora.model.errors import StoreError, StoreUnavailable
from remora.model.notification import MOST_NOTIFICATIONS, Definitions, Notification
from remora.policy.ingest.notification_rules import check_replacement
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import OWN, ChangedError, ExistsError, MissingError, Refusals

_OBJECT = "remora.notifications"
_NONE = Definitions(version=-1)
_TRIES = 5

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

    def __init__(self, connection: ClusterConnection) -> None:
        super().__init__(connection)
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
            try:
                known = await self._read()
            except MissingError:
                known = _NONE
            there = next((each for each in known.notifications if each.id == given.id), None)
            check_replacement(given.id, there, before, len(known.notifications))
            operation = WriteOp()
            if known.version < 0:
                operation.create(exclusive=True)
            else:
                operation.assert_version(known.version)
            if after is None:
                operation.remove_omap([given.id])
            else:
                operation.set_omap({given.id: msgspec.json.encode(after)})
            try:
                await self._run(operation)
            except (ChangedError, ExistsError, MissingError):
                continue
            return
        raise StoreUnavailable(f"notification {given.id}: other processes keep changing notifications")

    async def _read(self) -> Definitions:
        """All of them, of one version. Raises MissingError where there never was any."""
        operation = ReadOp().assert_exists()
        page = operation.omap_page("", "", MOST_NOTIFICATIONS + 1)
        version = await self._run(operation)
        return Definitions(tuple(_decoded(name, raw) for name, raw in sorted(page.values.items())), version)

    async def _run(self, operation: ObjectOperation) -> int:
        return await self._connection.run(operation, _OBJECT, f"looking into {_OBJECT}", _CHANGED, self._own)


def _decoded(name: str, definition: bytes) -> Notification:
    try:
        return _decoder.decode(definition)
    except msgspec.MsgspecError as exc:
        raise StoreError(f"notification {name} cannot be read: {exc}") from exc
