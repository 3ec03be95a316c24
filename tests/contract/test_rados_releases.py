"""Which queues are left to radosgw, as it is kept in a real cluster."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace

import pytest

from devkit.clusters.ceph import Ceph, reached
from devkit.waits import until
from remora.config import RadosSettings
from remora.model.errors import StoreUnavailable
from remora.model.shard import Origin, Shard
from remora.storage.rados import RadosStore

pytestmark = pytest.mark.ceph

# All of a cluster's tests share the object that this is kept in.
MARK = uuid.uuid4().hex
A, B, C = Shard(f"a-{MARK}"), Shard(f":b-{MARK}"), Shard(f"tenant:c-{MARK}")


async def released(store: RadosStore) -> set[Shard]:
    """What is released of this test's queues."""
    return {each for each in await store.releases.released() if each.queue.endswith(MARK)}


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_releases_are_seen_by_all_and_outlive_who_made_them(settings: RadosSettings) -> None:
    """What one client releases and takes back another one sees, also after the first has gone; others stay."""
    async with reached(settings) as reader:
        assert await released(reader) == set()
        async with reached(settings) as writer:
            await writer.releases.set_released([A, B, C], released=True)
            await writer.releases.set_released([A, B], released=True)
            await writer.releases.set_released([B], released=False)

        assert await released(reader) == {A, C}
        assert await reader.releases.released() is await reader.releases.released()
        await reader.releases.set_released([A, B, C], released=False)
        assert await released(reader) == set()


async def test_queues_of_remoras_own_are_not_released(settings: RadosSettings) -> None:
    """No radosgw comes to a queue of remora's own, so it is refused, and nothing is kept."""
    async with reached(settings) as store:
        with pytest.raises(ValueError, match="own"):
            await store.releases.set_released([A, Shard("own", Origin.REMORA)], released=True)

        assert await released(store) == set()


async def test_what_was_never_read_is_not_taken_for_nothing(ceph: Ceph, settings: RadosSettings) -> None:
    """Before the first answer it is not known what is released, and an error says so; later the last answer stands."""
    quick = replace(settings, op_timeout_s=6)
    async with reached(quick) as known, reached(quick) as new:
        await known.releases.set_released([A], released=True)
        assert await released(known) == {A}
        with ceph.frozen("osd.0", "osd.1"):
            assert await released(known) == {A}
            with pytest.raises(StoreUnavailable):
                await new.releases.released()
        await until(lambda: _took_back(known))


async def _took_back(store: RadosStore) -> bool:
    with suppress(StoreUnavailable):
        await store.releases.set_released([A], released=False)
        return True
    return False


async def test_an_operator_s_permissions_suffice(ceph: Ceph) -> None:
    """The user that the documentation asks for reads and changes what is released."""
    async with reached(replace(ceph.least, op_timeout_s=60)) as store:
        await store.releases.set_released([A], released=True)
        assert await released(store) == {A}
        await store.releases.set_released([A], released=False)
