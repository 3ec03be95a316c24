"""The peaks of topics: a key for each topic and day in the omap of object `remora.peaks`.

It lies in remora's namespace. The key begins with the day, so that old ones come first, and ends with the topic's id,
so that a topic which is made anew has none. The value has the day's peaks. A key is replaced by comparing what it had:
of two workers at once the later one merges with what the other has written.

At most 31 keys for each topic, of some 500 bytes: a deep scrub warns at 200,000 keys, which 6,400 topics reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from remora.model.errors import StoreUnavailable
from remora.model.peaks import KEPT_HOURS, HourPeak, merged
from remora.model.topic import Topic
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import OWN, MismatchError, MissingError

_OBJECT = "remora.peaks"
_AT_ONCE = 64
_OLD_AT_ONCE = 1024
_TRIES = 8
_DAYS = KEPT_HOURS // 24


class _StoredPeak(msgspec.Struct, array_like=True, frozen=True):
    """A peak as it is stored; a newer version may add fields at the end, which are skipped, but never change these."""

    hour: int
    shards: int
    events: int
    bytes: int


_decoder = msgspec.msgpack.Decoder(list[_StoredPeak])


class RadosPeaks(RadosPart):
    """Keeps peaks, those of 64 topics in one operation."""

    async def keep(self, peaks: Mapping[Topic, HourPeak]) -> None:
        """Keep an hour's peak of each of these topics, and forget the days before the last 30."""
        by_key = {_key(topic, each.day): each for topic, each in peaks.items()}
        if not by_key:
            return
        await self._forget(max(each.day for each in by_key.values()) - _DAYS)
        keys = list(by_key)
        for start in range(0, len(keys), _AT_ONCE):
            await self._merge({key: by_key[key] for key in keys[start : start + _AT_ONCE]})

    async def _merge(self, peaks: Mapping[str, HourPeak]) -> None:
        for _ in range(_TRIES):
            try:
                before = await self._values(list(peaks))
            except MissingError:
                await self._run(WriteOp().create(exclusive=False))
                continue
            after = {key: _encoded(merged(*_decoded(before.get(key, b"")), peak)) for key, peak in peaks.items()}
            operation = WriteOp().assert_exists()
            for key in peaks:
                operation.assert_omap(key, before.get(key, b""))
            with suppress(MismatchError, MissingError):
                await self._run(operation.set_omap(after))
                return
        raise StoreUnavailable(f"{_OBJECT}: other workers keep changing it")

    async def _forget(self, day: int) -> None:
        """Forget the days before this one, some of them at a time."""
        operation = ReadOp().assert_exists()
        page = operation.omap_keys("", _OLD_AT_ONCE)
        with suppress(MissingError):
            await self._run(operation)
            old = [key for key in page.values if key < _day(day)]
            if old:
                await self._run(WriteOp().assert_exists().remove_omap(old))

    async def kept(self, topic: Topic, since: int) -> Sequence[HourPeak]:
        """What is kept of a topic from this hour on, oldest first."""
        days = range(since // 24, since // 24 + _DAYS + 2)
        try:
            found = await self._values([_key(topic, day) for day in days])
        except MissingError:
            return []
        return [each for value in found.values() for each in _decoded(value) if each.hour >= since]

    async def _values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        operation = ReadOp().assert_exists()
        found = operation.omap_values(keys)
        await self._run(operation)
        return found.values

    async def _run(self, operation: ObjectOperation) -> None:
        await self._connection.run(operation, _OBJECT, f"looking into {_OBJECT}", OWN, self._own)


def _day(day: int) -> str:
    return f"{max(day, 0):06d}/"


def _key(topic: Topic, day: int) -> str:
    return f"{_day(day)}{topic.origin}/{topic.queue}/{topic.id}"


def _encoded(peaks: Sequence[HourPeak]) -> bytes:
    return msgspec.msgpack.encode([(each.hour, each.shards, each.events, each.bytes) for each in peaks])


def _decoded(value: bytes) -> Iterator[HourPeak]:
    """The peaks of a value; of one that cannot be read there are none, and it is replaced."""
    with suppress(msgspec.MsgspecError):
        for each in _decoder.decode(value) if value else ():
            yield HourPeak(each.hour, each.shards, each.events, each.bytes)
