"""Peaks of topics on RADOS: workers that write one key at once, versions to come, and the days that go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
import pytest

from devkit.clusters.ceph import reached
from remora.config import RadosSettings
from remora.model.peaks import HourPeak
from remora.storage.librados import WriteOp
from remora.storage.rados import RadosStore
from remora.storage.rados.cluster.part import all_keys
from support.stores import own_topic

pytestmark = pytest.mark.ceph

HOUR = 494_000


@pytest.fixture
async def store(settings: RadosSettings) -> AsyncIterator[RadosStore]:
    """An open store."""
    async with reached(settings) as store:
        yield store


async def keys_of(store: RadosStore) -> list[str]:
    """The keys of the object."""
    return await all_keys(store.peaks._connection, "remora.peaks", store.peaks._own)


async def test_what_is_written_between_a_look_and_the_write_stays(
    store: RadosStore, settings: RadosSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that finds another one's peak in place of what it has read merges with it."""
    topic = await store.own_topics.create(own_topic("t"))
    await store.peaks.keep({topic: HourPeak(HOUR - 1, 3, 1, 1)})
    look = store.peaks._values
    async with reached(settings) as other:

        async def overtaken(keys: Sequence[str]) -> Mapping[str, bytes]:
            found = await look(keys)
            monkeypatch.setattr(store.peaks, "_values", look)
            await other.peaks.keep({topic: HourPeak(HOUR, 3, 9, 1)})
            return found

        monkeypatch.setattr(store.peaks, "_values", overtaken)
        await store.peaks.keep({topic: HourPeak(HOUR, 3, 5, 50)})

    assert list(await store.peaks.kept(topic, HOUR - 1)) == [HourPeak(HOUR - 1, 3, 1, 1), HourPeak(HOUR, 3, 9, 50)]


async def test_values_of_versions_to_come(store: RadosStore) -> None:
    """Fields that a newer version adds are skipped; a value that cannot be read counts as none, and is replaced."""
    topic = await store.own_topics.create(own_topic("t"))
    await store.peaks.keep({topic: HourPeak(HOUR, 3, 1, 1)})
    (key,) = await keys_of(store)
    newer = msgspec.msgpack.encode([[HOUR, 3, 7, 8, "more"]])

    for value, expected in ((newer, [HourPeak(HOUR, 3, 7, 8)]), (b"\xc1", [])):
        await store.peaks._run(WriteOp().set_omap({key: value}))
        assert list(await store.peaks.kept(topic, HOUR)) == expected

    await store.peaks.keep({topic: HourPeak(HOUR, 3, 2, 2)})
    assert list(await store.peaks.kept(topic, HOUR)) == [HourPeak(HOUR, 3, 2, 2)]


async def test_days_that_are_over_leave_no_key(store: RadosStore) -> None:
    """Whoever keeps an hour removes the keys of the days before the last 30, of all topics, those that are gone too."""
    topic, gone = [await store.own_topics.create(own_topic(name)) for name in ("t", "gone")]
    for day in (0, 29, 30, 31, 40):
        await store.peaks.keep({gone: HourPeak(HOUR + 24 * day, 3, 1, 1)})
    await store.own_topics.remove(gone, discard=False)

    await store.peaks.keep({topic: HourPeak(HOUR + 24 * 60, 3, 1, 1)})

    first = HOUR // 24
    assert [int(key.partition("/")[0]) - first for key in await keys_of(store)] == [30, 31, 40, 60]
