"""Queues that an operator has released to radosgw: a key each in the omap of object `remora.released`.

It lies in remora's namespace, which no radosgw reads. The key is the queue's name in the registry, so a queue that is
deleted and made anew under its name stays released.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from remora.model.errors import StoreError, StoreMisconfigured
from remora.model.shard import Origin, Shard
from remora.storage.librados import WriteOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.omap import all_keys
from remora.storage.rados.part import RadosPart

_log = logging.getLogger(__name__)

_OBJECT = "remora.released"


class Releases(RadosPart):
    """Reads and changes the released queues."""

    def __init__(self, connection: ClusterConnection) -> None:
        super().__init__(connection)
        self._known: frozenset[Shard] | None = None
        self._remarked = ""

    async def released(self) -> frozenset[Shard]:
        """The released queues; as last read while they cannot be read.

        Raises StoreError when they were never read: taking one of them would break the release. A user without
        permission to read them cannot have released any, and gets none.
        """
        try:
            found = frozenset(map(Shard, await all_keys(self._connection, _OBJECT, self._own)))
        except StoreError as exc:
            if self._known is None and not isinstance(exc, StoreMisconfigured):
                raise
            self._remark(str(exc))
            return self._known or frozenset()
        self._remarked = ""
        if found != self._known:
            self._known = found
        return self._known

    async def set_released(self, shards: Sequence[Shard], *, released: bool) -> None:
        """Release queues to radosgw, or take them back. Raises ValueError for queues of remora's own."""
        if own := [each.queue for each in shards if each.origin is not Origin.RADOSGW]:
            raise ValueError(f"no radosgw comes to queues of remora's own: {', '.join(own)}")
        operation, queues = WriteOp().create(exclusive=False), [each.queue for each in shards]
        if released:
            operation.set_omap(dict.fromkeys(queues, b"1"))
        else:
            operation.remove_omap(queues)
        await self._connection.run(operation, _OBJECT, f"writing to {_OBJECT}", locator=self._own)

    def _remark(self, reason: str) -> None:
        if reason != self._remarked:
            self._remarked = reason
            _log.warning("which queues are released is not looked at: %s", reason)
