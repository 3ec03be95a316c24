"""The workers that deliver from this pool: a key each in the omap of object `remora.members`.

A worker is live while its row changes: each announcement has another number, and a row that stayed the same for its
time to live, on the reader's monotonic clock, belongs to a dead worker. So no two hosts need to agree on the time. A
row that is seen for the first time counts as live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from remora.model.errors import StoreError
from remora.model.member import Member
from remora.storage.librados import WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart, all_values
from remora.storage.rados.cluster.refusals import MissingError

_OBJECT = "remora.members"

_FORGOTTEN_AFTER_S = 600.0
"""A row that did not change for this long, far beyond any time to live, is deleted by the worker that sees it."""


class _MemberRow(msgspec.Struct, frozen=True):
    """An announcement. A newer version may add fields, which are skipped, but never change these."""

    number: int
    ttl_s: float
    member: Member


class _SeenRow(NamedTuple):
    """A row's bytes, and since when they have been the same, in seconds of the monotonic clock."""

    value: bytes
    since: float


_decoder = msgspec.msgpack.Decoder(_MemberRow)


class RadosMembers(RadosPart):
    """Announces workers and lists them."""

    def __init__(self, connection: ClusterConnection) -> None:
        super().__init__(connection)
        self._number = 0
        self._seen: dict[str, _SeenRow] = {}

    async def announce(self, member: Member, ttl_s: float) -> None:
        """Announce this worker to the others for `ttl_s` seconds."""
        self._number += 1
        value = msgspec.msgpack.encode(_MemberRow(self._number, ttl_s, member))
        await self._write(WriteOp().set_omap({member.cookie: value}))

    async def withdraw(self, cookie: str) -> None:
        """Delete a worker's row, so that no other counts it."""
        self._seen.pop(cookie, None)
        with suppress(MissingError):
            await self._write(WriteOp().assert_exists().remove_omap([cookie]))

    async def live(self) -> Sequence[Member]:
        """Every live worker, ordered by cookie."""
        rows, now = await all_values(self._connection, _OBJECT, self._own), asyncio.get_running_loop().time()
        self._seen = {cookie: self._look(cookie, value, now) for cookie, value in rows.items()}
        found: list[Member] = []
        for cookie, seen in sorted(self._seen.items()):
            silent_s = now - seen.since
            if silent_s > _FORGOTTEN_AFTER_S:
                with suppress(StoreError):
                    await self._write(WriteOp().assert_exists().assert_omap(cookie, seen.value).remove_omap([cookie]))
                continue
            with suppress(msgspec.MsgspecError):
                row = _decoder.decode(seen.value)
                if silent_s <= row.ttl_s:
                    found.append(row.member)
        return found

    def _look(self, cookie: str, value: bytes, now: float) -> _SeenRow:
        known = self._seen.get(cookie)
        return known if known is not None and known.value == value else _SeenRow(value, now)

    async def _write(self, operation: WriteOp) -> None:
        await self._connection.run(operation, _OBJECT, f"writing to {_OBJECT}", locator=self._own)
