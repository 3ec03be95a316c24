"""Failed attempts at entries of held queues: key `remora.attempts` in the omap of the queue object.

A radosgw does not use that omap, and the key is deleted with the object.
"""

from __future__ import annotations

from collections.abc import Mapping

from remora.codec.attempts import decode_attempts, encode_attempts
from remora.model.position import Position
from remora.model.record import Attempt
from remora.model.shard import LockToken
from remora.storage.librados import ObjectOperation, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart, held_read, held_write
from remora.storage.rados.cluster.refusals import FULL, HELD, Refusals

_KEY = "remora.attempts"
_REFUSALS: Refusals = {**HELD, **FULL}


class RadosAttempts(RadosPart):
    """Stores attempts; the removal that takes the last of their entries deletes them in the same operation."""

    def __init__(self, connection: ClusterConnection) -> None:
        super().__init__(connection)
        self._last: dict[LockToken, Position] = {}

    async def note(self, token: LockToken, attempts: Mapping[bytes, Attempt]) -> None:
        """Store these attempts in place of all that were stored before."""
        self._remember(token, attempts)
        operation = held_write(token)
        if attempts:
            operation.set_omap({_KEY: encode_attempts(attempts)})
        else:
            operation.remove_omap([_KEY])
        await self._run(operation, token, f"storing attempts of {token.shard}")

    async def noted(self, token: LockToken) -> Mapping[bytes, Attempt]:
        """The attempts that were stored last, by position."""
        operation = held_read(token)
        found = operation.omap_values([_KEY])
        await self._run(operation, token, f"reading attempts of {token.shard}")
        noted = decode_attempts(found.values[_KEY]) if _KEY in found.values else {}
        self._remember(token, noted)
        return noted

    def forget(self, operation: WriteOp, token: LockToken, end: Position) -> None:
        """Delete the attempts in the removal of the entries before `end`, if that takes the last of them."""
        if token in self._last and self._last[token] < end:
            operation.remove_omap([_KEY])

    def forgotten(self, token: LockToken, end: Position) -> None:
        """Note that this removal has succeeded."""
        if token in self._last and self._last[token] < end:
            del self._last[token]

    def let_go(self, token: LockToken) -> None:
        """Note that the lock is no longer held."""
        self._last.pop(token, None)

    def _remember(self, token: LockToken, attempts: Mapping[bytes, Attempt]) -> None:
        if attempts:
            self._last[token] = max(Position.parse(each.decode("ascii")) for each in attempts)

    async def _run(self, operation: ObjectOperation, token: LockToken, what: str) -> None:
        await self._connection.run(operation, token.shard.queue, what, _REFUSALS, self._locator(token.shard))
