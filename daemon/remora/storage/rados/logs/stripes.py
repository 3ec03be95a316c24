"""The stripes of a log, on stock OSDs: objects `remora.stripe.<id>.<slot>`, of which each takes a position once.

Position p lies in slot p mod width, under the omap key 2^64 - 1 - p in 16 hex digits: keys descend, so the largest
position is the first key. Its value is one byte, 1 for data and 0 for a position that was filled, and the data. Two
xattrs decide with the key whether a write lands, all compared in its own operation: `remora.epoch`, and
`remora.trimmed`, below which nothing is written. A maximum in an xattr would need a write that compares, since writes
arrive out of order; ZLog's object class keeps one, but is on no stock OSD.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from remora.bounded import all_of
from remora.model.errors import StoreError, StoreUnavailable
from remora.model.log import Cell, LogName, PositionTaken, PositionTrimmed, Projection, StaleEpoch
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.placement import Locator
from remora.storage.rados.cluster.refusals import OWN, ExistsError, MismatchError, MissingError, Refusals

T = TypeVar("T")

_EPOCH, _TRIMMED = "remora.epoch", "remora.trimmed"
_DATA, _FILLED = b"\x01", b"\x00"
_LAST_KEY = (1 << 64) - 1
_AT_ONCE = 64
_PAGE = 1024
_TRIES = 5

_STRIPE: Refusals = MappingProxyType({**OWN, errno.ENOENT: (MissingError, "there is no such stripe")})


class SealedAboveError(StoreError):
    """A stripe has a later epoch than it should be sealed with; never leaves the store."""

    def __init__(self, text: str, epoch: int) -> None:
        super().__init__(text)
        self.epoch = epoch


class Stripes(NamedTuple):
    """Where the stripes of a log are; the same for as long as the log has this id."""

    log: LogName
    locator: Locator
    id: str
    width: int

    @classmethod
    def of(cls, log: LogName, locator: Locator, projection: Projection) -> Stripes:
        return cls(log, locator, projection.id, projection.width)

    def oid(self, slot: int) -> str:
        return f"remora.stripe.{self.id}.{slot}"


class StripeEnd(NamedTuple):
    """A stripe's largest position and what is trimmed; 0 for none."""

    last: int
    trimmed: int


class _Found(NamedTuple):
    """A stripe's xattrs, as numbers, and the value of a position, None where nothing is written."""

    epoch: int
    trimmed: int
    value: bytes | None


class LogStripes(RadosPart):
    """Seals, writes, reads and trims stripes. A missing one raises MissingError, unless something else is said."""

    def __init__(self, connection: ClusterConnection) -> None:
        super().__init__(connection)

    # --------------------------------------------------------------------------------------- epochs

    async def seal_all(self, stripes: Stripes, epoch: int) -> None:
        """Refuse every write with another epoch from now on; stripes that are missing are made.

        Raises SealedAboveError where a stripe has a later epoch, and the error of any stripe that cannot be asked.
        """
        await _each(stripes.width, lambda slot: self._seal(stripes, slot, epoch))

    async def _seal(self, stripes: Stripes, slot: int, epoch: int) -> None:
        for _ in range(_TRIES):
            try:
                look = ReadOp().assert_exists()
                xattrs = look.xattrs()
                await self._run(look, stripes, slot, "looking at")
                known = _value(xattrs.values.get(_EPOCH, b""), stripes, slot)
            except MissingError:
                with suppress(ExistsError):
                    made = WriteOp().create(exclusive=True).set_xattr(_EPOCH, _number(epoch))
                    await self._run(made, stripes, slot, "making")
                    return
                continue
            if known == epoch:
                return
            if known > epoch:
                raise SealedAboveError(f"stripe {slot} of {stripes.log} has epoch {known}, not {epoch}", known)
            with suppress(MismatchError):
                operation = WriteOp().assert_exists().assert_xattr(_EPOCH, _number(known))
                await self._run(operation.set_xattr(_EPOCH, _number(epoch)), stripes, slot, "sealing")
                return
        raise StoreUnavailable(f"sealing stripe {slot} of {stripes.log}: others seal it again and again")

    async def last(self, stripes: Stripes, epoch: int) -> int:
        """The largest position that was written or trimmed, over all stripes, each of which must have this epoch.

        Raises StaleEpoch where one does not: its answer would say nothing about later writes.
        """

        async def one(slot: int) -> StripeEnd:
            try:
                return await self._end(stripes, slot, epoch)
            except MismatchError as exc:
                raise StaleEpoch(f"stripe {slot} of {stripes.log} has a later epoch than {epoch}") from exc

        return max(max(each) for each in await _each(stripes.width, one))

    async def ends(self, stripes: Stripes) -> list[StripeEnd]:
        """The end of each stripe, whatever its epoch is."""
        return await _each(stripes.width, lambda slot: self._end(stripes, slot))

    async def _end(self, stripes: Stripes, slot: int, epoch: int | None = None) -> StripeEnd:
        operation = ReadOp().assert_exists()
        if epoch is not None:
            operation.assert_xattr(_EPOCH, _number(epoch))
        xattrs, first = operation.xattrs(), operation.omap_keys("", 1)
        await self._run(operation, stripes, slot, "reading the end of")
        trimmed = _value(xattrs.values.get(_TRIMMED, b""), stripes, slot)
        return StripeEnd(max((_position(each, stripes, slot) for each in first.values), default=0), trimmed)

    # -------------------------------------------------------------------------------------- entries

    async def put(self, stripes: Stripes, epoch: int, position: int, data: bytes | None) -> None:
        """Write data, or fill where there is none. Raises StaleEpoch, PositionTrimmed and PositionTaken."""
        value = _FILLED if data is None else _DATA + data
        for _ in range(_TRIES):
            operation = WriteOp().assert_exists().assert_xattr(_EPOCH, _number(epoch))
            operation.assert_xattr_below(_TRIMMED, _number(position)).assert_omap(_key(position), b"")
            operation.set_omap({_key(position): value})
            try:
                await self._run(operation, stripes, position % stripes.width, f"writing position {position} to")
            except MismatchError:  # for all comparisons the same
                if await self._is_filled_already(stripes, epoch, position, data):
                    return
                continue
            return
        raise StoreUnavailable(f"writing position {position} of {stripes.log}: the stripe keeps changing")

    async def _is_filled_already(self, stripes: Stripes, epoch: int, position: int, data: bytes | None) -> bool:
        """Why a write was refused, by the exception; True for a fill of what is filled, False when it may pass now."""
        found, log = await self._look(stripes, position), stripes.log
        if found.epoch != epoch:
            raise StaleEpoch(f"stale epoch: {log} has epoch {found.epoch} by now, not {epoch}")
        if position <= found.trimmed:
            raise PositionTrimmed(f"trimmed: {log} is trimmed up to {found.trimmed}")
        if found.value is None:
            return False
        is_filled = found.value[:1] == _FILLED
        if data is None and is_filled:
            return True
        raise PositionTaken(f"taken: position {position} of {log} is {'filled' if is_filled else 'written'} already")

    async def get(self, stripes: Stripes, position: int) -> tuple[Cell, bytes]:
        """What stands at a position."""
        found = await self._look(stripes, position)
        if position <= found.trimmed:
            return Cell.TRIMMED, b""
        if found.value is None:
            return Cell.UNWRITTEN, b""
        return (Cell.FILLED, b"") if found.value[:1] == _FILLED else (Cell.DATA, found.value[1:])

    async def _look(self, stripes: Stripes, position: int) -> _Found:
        slot, key = position % stripes.width, _key(position)
        operation = ReadOp().assert_exists()
        xattrs, values = operation.xattrs(), operation.omap_values([key])
        await self._run(operation, stripes, slot, f"reading position {position} of")
        epoch, trimmed = (_value(xattrs.values.get(name, b""), stripes, slot) for name in (_EPOCH, _TRIMMED))
        return _Found(epoch, trimmed, values.values.get(key))

    # ------------------------------------------------------------------------------------- trimming

    async def trim(self, stripes: Stripes, upto: int) -> None:
        """Trim every stripe, then delete what is trimmed, page by page; an interrupted trim is repeated."""
        await _each(stripes.width, lambda slot: self._raise_trimmed(stripes, slot, upto))
        await _each(stripes.width, lambda slot: self._delete(stripes, slot, upto))

    async def _raise_trimmed(self, stripes: Stripes, slot: int, upto: int) -> None:
        operation = WriteOp().assert_exists().assert_xattr_below(_TRIMMED, _number(upto))
        with suppress(MismatchError):  # it is trimmed as far, or further
            await self._run(operation.set_xattr(_TRIMMED, _number(upto)), stripes, slot, "trimming")

    async def _delete(self, stripes: Stripes, slot: int, upto: int) -> None:
        more = True
        while more:
            operation = ReadOp().assert_exists()
            page = operation.omap_keys(_key(upto + 1), _PAGE)  # begins behind that key
            await self._run(operation, stripes, slot, "reading the keys of")
            if page.values:
                await self._run(WriteOp().assert_exists().remove_omap(list(page.values)), stripes, slot, "trimming")
            more = page.more and bool(page.values)

    async def keys(self, stripes: Stripes) -> int:
        """The number of keys of the fullest stripe."""
        return max(await _each(stripes.width, lambda slot: self._count(stripes, slot)))

    async def _count(self, stripes: Stripes, slot: int) -> int:
        count, last, more = 0, "", True
        while more:
            operation = ReadOp().assert_exists()
            page = operation.omap_keys(last, _PAGE)
            await self._run(operation, stripes, slot, "counting the keys of")
            count, last = count + len(page.values), max(page.values, default=last)
            more = page.more and bool(page.values)
        return count

    async def remove(self, stripes: Stripes) -> None:
        """Delete all stripes; those that are missing are no error."""

        async def one(slot: int) -> None:
            with suppress(MissingError):
                await self._run(WriteOp().assert_exists().remove(), stripes, slot, "deleting")

        await _each(stripes.width, one)

    async def _run(self, operation: ReadOp | WriteOp, stripes: Stripes, slot: int, doing: str) -> None:
        what = f"{doing} stripe {slot % stripes.width} of log {stripes.log}"
        await self._connection.run(operation, stripes.oid(slot % stripes.width), what, _STRIPE, stripes.locator)


async def _each(width: int, work: Callable[[int], Awaitable[T]]) -> list[T]:
    """Do something with every stripe; raises the first error once all have ended."""
    return await all_of(range(width), work, at_once=_AT_ONCE)


def _number(value: int) -> str:
    return f"{value:016x}"


def _key(position: int) -> str:
    return _number(_LAST_KEY - position)


def _position(key: str, stripes: Stripes, slot: int) -> int:
    return _LAST_KEY - _value(key.encode(errors="surrogateescape"), stripes, slot)


def _value(text: bytes, stripes: Stripes, slot: int) -> int:
    try:
        return int(text or b"0", 16)
    except ValueError as exc:
        raise StoreError(f"stripe {slot} of {stripes.log} is damaged: {text!r} is no number") from exc
