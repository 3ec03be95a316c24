"""How a worker shows that it lives, and whose locks it holds for those of the dead."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devkit.clock import in_virtual_time
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, running, until
from remora.config import Settings, SqliteSettings, SupervisorSettings
from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.member import Member, WorkerCookie
from remora.process.liveness_lock import LivenessLock, has_been_used, remember_store
from remora.process.pipe import Start
from remora.worker.dead_owner_sweep import DeadOwnerSweep


def died(presence: LivenessLock) -> None:
    """End as a process does that is killed: its lock goes, its file stays."""
    os.close(presence._descriptor)


def test_the_dead_are_told_from_the_living(tmp_path: Path) -> None:
    """A file that somebody locks is alive, one that nobody does is dead, and one that is gone is neither."""
    own = LivenessLock(tmp_path, "own", "store")
    dead, alive, ended = (LivenessLock(tmp_path, name, "store") for name in ("dead", "alive", "ended"))
    died(dead)
    ended.close()

    assert own.dead() == {"dead"}
    own.forget(own.dead())
    assert own.dead() == frozenset()
    alive.close()
    own.close()


def test_the_dead_of_another_store_are_not_ours(tmp_path: Path) -> None:
    """Who shares a folder and not a store clears nothing, and so forgets nobody."""
    own, other, longer = (LivenessLock(tmp_path, name, name) for name in ("store", "other", "store-2"))
    died(other)
    died(longer)

    assert own.dead() == frozenset()
    own.close()


def test_who_cannot_be_asked_for_is_not_dead(tmp_path: Path) -> None:
    """A file that cannot be opened or read, and one that goes meanwhile, say nothing of their worker."""
    own = LivenessLock(tmp_path, "own", "store")
    folder = tmp_path / "workers"
    (folder / "loop").symlink_to("loop")
    (folder / "gone").symlink_to("nowhere")
    (folder / "folder").mkdir()

    assert own.dead() == frozenset()
    own.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file in its place raises OSError, which the worker logs and lives with."""
    (tmp_path / "run").write_text("")

    with pytest.raises(OSError, match="run"):
        LivenessLock(tmp_path / "run", "own", "store")


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """The first worker of a host, whose supervisor has reaped one before."""
    return Start(
        number=1,
        cookie="remora/host/boot/own",
        settings=Settings(
            supervisor=SupervisorSettings(run_directory=str(tmp_path)), sqlite=SqliteSettings(directory="/q")
        ),
        listeners={},
        load=-1,
        workers=1,
        dead=("remora/host/boot/reaped",),
        sweeps=True,
        drains=False,
    )


def test_only_the_surely_dead_lose_their_locks(start: Start, tmp_path: Path) -> None:
    """Those that were reaped, those of an earlier boot of this host, and those whose file is free; nobody else."""
    died(LivenessLock(tmp_path, "left", "sqlite /q"))
    with DeadOwnerSweep(start, Telemetry()) as clearing:
        assert clearing._liveness is not None
        clearing._left = clearing._liveness.dead()

        assert clearing.is_dead("remora/host/boot/reaped", announced=False)
        assert clearing.is_dead("remora/host/boot/left", announced=False)
        assert clearing.is_dead("remora/host/earlier/any", announced=False)
        assert not clearing.is_dead("remora/host/boot/own", announced=False)
        assert not clearing.is_dead("remora/host/boot/unknown", announced=False)
        assert not clearing.is_dead("remora/elsewhere/earlier/any", announced=False)
        assert not clearing.is_dead("remora/claim/0123", announced=False)
        assert not clearing.is_dead("gatewaycookie016", announced=False)
        assert clearing.is_dead("remora/host/boot/left", announced=True)
        assert not clearing.is_dead("remora/host/earlier/any", announced=True)


@pytest.mark.parametrize("is_clean", [True, False])
def test_who_left_locks_behind_is_found(start: Start, tmp_path: Path, is_clean: bool) -> None:
    """A worker that ends with locks is among the dead once its process is gone; one that released all is not."""
    other = LivenessLock(tmp_path, "other", "sqlite /q")
    with DeadOwnerSweep(start, Telemetry()) as clearing:
        presence = clearing._liveness
        assert presence is not None
        if is_clean:
            clearing.finished()

    if not is_clean:
        died(presence)

    assert other.dead() == (frozenset() if is_clean else {"own"})
    other.close()


@asynccontextmanager
async def clearing_for(worker: Worker, start: Start) -> AsyncIterator[None]:
    """What a worker does about the dead, beside all else that it does."""
    with DeadOwnerSweep(start, Telemetry()) as clearing:
        async with running(worker), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(clearing.run(worker))
            try:
                yield
            finally:
                task.cancel()


def a_store(holder: str) -> FakeStore:
    """A queue that somebody has locked for an hour."""
    store = FakeStore()
    store.make("t")
    store.metadata["t"] = a_topic()
    store.steal("t", holder, 3600)
    return store


@pytest.mark.guarantee("many-workers-and-hosts")
@in_virtual_time
async def test_a_second_supervisor_of_the_host_takes_what_a_killed_one_held(start: Start, tmp_path: Path) -> None:
    """A worker that runs already sees within seconds that a process beside it was killed, and has its queue then."""
    store = a_store("remora/host/boot/beside")
    beside = LivenessLock(tmp_path, "beside", "sqlite /q")
    worker = a_worker(store, FakeEndpoint(), cookie=start.cookie)

    async with clearing_for(worker, start):
        await asyncio.sleep(60)
        assert not worker.shards, "a worker that lives keeps its queues"
        died(beside)
        await until(lambda: worker.shards, within_s=3)
        looks = store.calls["evict_all"]
        await asyncio.sleep(60)

    assert looks == store.calls["evict_all"], "nothing is looked for again and again"


@pytest.mark.guarantee("many-workers-and-hosts")
@in_virtual_time
async def test_a_live_worker_of_a_host_of_the_same_name_keeps_its_queues(start: Start) -> None:
    """Who announces itself lives, though its cookie names this host and another boot; once silent it has ended."""
    store = a_store("remora/host/otherboot/clone")
    clone = Member("remora/host/otherboot/clone", "host", 1)
    worker = a_worker(store, FakeEndpoint(), cookie=start.cookie)
    await store.members.announce(clone, 10)

    async with clearing_for(worker, start):
        for _ in range(100):
            await store.members.announce(clone, 10)
            await asyncio.sleep(3)
            assert store.announced[clone.cookie]
            holder = store.queues["t"].holder
            assert holder is not None
            assert holder.cookie == clone.cookie
        assert store.calls["evict_all"] <= 3
        await until(lambda: worker.shards, within_s=15)


@in_virtual_time
async def test_locks_of_an_earlier_boot_are_broken(start: Start) -> None:
    """Nobody waits for the lease of a worker that ended with its host."""
    store = a_store("remora/host/otherboot/gone")
    worker = a_worker(store, FakeEndpoint(), cookie=start.cookie)

    async with clearing_for(worker, start):
        await until(lambda: worker.shards, within_s=3)


def test_cookies_are_taken_apart_as_they_are_put_together() -> None:
    """A worker's cookie names host, boot and worker; all others are nobody's."""
    cookie = WorkerCookie("host", "boot", "worker")

    assert WorkerCookie.parse(str(cookie)) == cookie
    for other in ("", "remora/claim/x", "remora//boot/worker", "gateway", "remora/a/b/c/d"):
        assert WorkerCookie.parse(other) is None


def test_which_stores_have_been_in_use(tmp_path: Path) -> None:
    """A store that was in use is known from then on, and no other one; a folder that is not there knows of none."""
    folder = tmp_path / "run"
    assert not has_been_used(folder, "sqlite /a")

    remember_store(folder, "sqlite /a")
    remember_store(folder, "sqlite /a")

    assert has_been_used(folder, "sqlite /a")
    assert not has_been_used(folder, "sqlite /b")
