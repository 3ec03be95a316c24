"""The embedded store while its disk cannot be used: it says why, begins nothing anew, and goes on when it can be."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devkit.processes.faulty_disk import FAULTS, faulty_disk
from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.errors import LockLetGo, OwnershipLost, StoreAway, StoreDamaged, StoreMisconfigured
from remora.model.ingest import PublishResult, RoutedEvent
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite import store as sqlite_store
from remora.storage.sqlite.files import refusals
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.open_files import Files
from support.stores import QUIET_S, by_shard, own_topic, renew, spread

LONG_S = 120
SLOW_S = 0.2
"""How long a disk takes to say that a file is gone."""


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    """A directory of two files."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=2)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store looks after itself more often than it usually does."""
    monkeypatch.setattr(sqlite_store, "LOOK_EVERY_S", 0.02)


class States:
    """What a store told of its state; `news` gets each."""

    def __init__(self) -> None:
        self.last = (False, "")

    def __call__(self, connected: bool, text: str) -> None:
        self.last = (connected, text)

    async def are(self, connected: bool) -> str:
        """Wait until this was told last, by whomever it was found out; the text."""

        async def told() -> bool:
            return self.last[0] is connected

        await until(told)
        return self.last[1]


@asynccontextmanager
async def in_use(settings: SqliteSettings) -> AsyncIterator[tuple[SqliteStore, Topic, States]]:
    """A store with a topic that has more entries than are kept in memory."""
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t", 2))
        await store.ingest.publish(topic, entries(topic))
    states = States()
    async with SqliteStore(settings, states) as store:
        assert await states.are(True)
        yield store, topic, states


def entries(topic: Topic) -> list[RoutedEvent]:
    return [each._replace(payload=each.payload * 1000) for each in spread(topic, 400)]


async def assert_as_left(store: SqliteStore, topic: Topic) -> None:
    """Everything that was stored is there, and the store takes and gives."""
    found = [[entry async for _, entry in store.inspection.dump(shard)] for shard in topic.all_shards()]
    assert found == by_shard(topic, entries(topic))
    assert await store.ingest.publish(topic, spread(topic, 2)) == PublishResult(2)


def aside(settings: SqliteSettings) -> Path:
    """Where `take_away` puts a store."""
    return Path(f"{settings.directory}-aside")


def take_away(settings: SqliteSettings) -> None:
    """Let the store's directory be gone."""
    Path(settings.directory).rename(aside(settings))


def bring_back(settings: SqliteSettings) -> None:
    """Put the directory where it was, in which nothing may have been made."""
    if is_there(settings):
        Path(settings.directory).rmdir()
    aside(settings).rename(settings.directory)


def is_there(settings: SqliteSettings) -> bool:
    """Whether there is anything where the store's directory was."""
    return Path(settings.directory).exists()


async def read(store: SqliteStore, topic: Topic) -> None:
    async for _ in store.inspection.dump(topic.shard(1)):
        pass


async def write(store: SqliteStore, topic: Topic) -> None:
    await store.ingest.publish(topic, spread(topic, 2))


async def test_a_look_that_fails_is_not_the_last_one(
    settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A look that fails in a way that nobody expected is logged once, and the store is found away and back all the
    same."""
    failures, look = iter([ValueError("a defect")] * 3), Files.look

    async def failing(files: Files) -> None:
        if failure := next(failures, None):
            raise failure
        await look(files)

    async with in_use(settings) as (store, topic, states):
        monkeypatch.setattr(Files, "look", failing)
        take_away(settings)
        assert "is gone" in await states.are(False)
        bring_back(settings)
        await states.are(True)
        await assert_as_left(store, topic)
    assert [each.levelname for each in caplog.records if each.name == sqlite_store.__name__] == ["ERROR"]


@pytest.mark.parametrize(("doing", "code"), [("reading", errno.EIO), ("writing", errno.EIO), ("writing", errno.EROFS)])
async def test_a_disk_that_fails(
    settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch, doing: str, code: int
) -> None:
    """A disk that refuses to read or write is called what it is, and nothing is damaged; when it works again the store
    is there again with all it had, though nobody asked it for anything."""
    use, cause = {"reading": read, "writing": write}[doing], FAULTS[code]
    with faulty_disk(Path(settings.directory), monkeypatch) as disk:
        async with in_use(settings) as (store, topic, states):
            disk.fails[doing] = code
            with pytest.raises(StoreAway) as caught:
                await use(store, topic)
            assert caught.value.cause == cause

            text = await states.are(False)
            assert (list(store.failing), store.connected, dict(store.damaged)) == ([cause], False, {})
            assert "queues-00" in text
            with pytest.raises(StoreAway):
                await use(store, topic)

            disk.fails.clear()
            await states.are(True)
            assert (dict(store.failing), store.connected) == ({}, True)
            await assert_as_left(store, topic)


async def test_a_large_file_that_cannot_be_read(settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes long to tell an unreadable disk from a damaged file, the verdict is corrected in the end."""
    monkeypatch.setattr(refusals, "_LOOKED_THROUGH_AT_ONCE", 0)
    with faulty_disk(Path(settings.directory), monkeypatch) as disk:
        async with in_use(settings) as (store, topic, states):
            disk.fails["reading"] = errno.EIO
            with pytest.raises(StoreDamaged):
                await read(store, topic)

            async def corrected() -> bool:
                return (list(store.failing), dict(store.damaged)) == (["io_error"], {})

            await states.are(False)
            await until(corrected)

            disk.fails.clear()
            await states.are(True)
            await assert_as_left(store, topic)


async def test_a_directory_that_is_gone(settings: SqliteSettings) -> None:
    """A directory that goes while the store is open is noticed though nobody asks, nothing is made or taken in its
    place, and when it is back everything goes on, also the locks that were held."""
    async with in_use(settings) as (store, topic, states):
        token = await store.locks.acquire(topic.shard(0), "w", QUIET_S)
        assert isinstance(token, LockToken)
        take_away(settings)

        assert "is gone" in await states.are(False)
        for use in (read, write):
            with pytest.raises(StoreAway, match="is gone"):
                await use(store, topic)
        assert list(store.failing) == ["gone"]
        assert not is_there(settings)

        bring_back(settings)
        await states.are(True)
        await renew(store, token, QUIET_S)
        await assert_as_left(store, topic)


async def test_files_that_are_looked_for_one_after_the_other(
    settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the state tells that a file is gone, none of the directory's files is used, also where the disk is slow to
    say so of another."""
    monkeypatch.setattr(sqlite_store, "LOOK_EVERY_S", 3600.0)
    find, were_used = File.find, threading.Event()

    def find_slowly(file: File) -> StoreAway | None:
        if file.path.name == "queues-000.db":
            were_used.wait(SLOW_S)
        return find(file)

    async with in_use(settings) as (store, topic, states):
        take_away(settings)
        monkeypatch.setattr(File, "find", find_slowly)
        looking = asyncio.create_task(store._watch.look())

        assert "is gone" in await states.are(False)
        with pytest.raises(StoreAway, match="is gone"):
            await read(store, topic)

        were_used.set()
        await looking


async def test_nothing_is_written_to_files_that_are_gone(
    settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event is not taken into a file that nobody will find again, also before the store has looked for it."""
    monkeypatch.setattr(sqlite_store, "LOOK_EVERY_S", 3600.0)
    async with in_use(settings) as (store, topic, _):
        take_away(settings)
        shutil.copytree(aside(settings), settings.directory)

        with pytest.raises(StoreAway, match="another file"):
            await write(store, topic)


async def test_other_files_in_their_place(settings: SqliteSettings) -> None:
    """Files that came back from elsewhere are opened as at a start: whatever was held is held no more, their entries
    are there, arrivals are told, and what was synced before stays counted."""
    backup = Path(f"{settings.directory}-backup")
    async with in_use(settings):
        shutil.copytree(settings.directory, backup)
    async with in_use_again(settings) as (store, topic, states):
        token = await store.locks.acquire(topic.shard(0), "w", QUIET_S)
        assert isinstance(token, LockToken)
        await store.ingest.publish(topic, spread(topic, 2))
        synced = store.synced
        take_away(settings)
        await states.are(False)

        shutil.copytree(backup, settings.directory)
        await states.are(True)

        assert store.synced >= synced > 0, "a count of the metrics page fell, which ends the worker"
        with pytest.raises(OwnershipLost):
            await renew(store, token, QUIET_S)
        telling = asyncio.create_task(told_of(store, topic))
        await assert_as_left(store, topic)
        await asyncio.wait_for(telling, LONG_S)


async def test_locks_of_files_that_came_back_are_let_go_and_not_broken(settings: SqliteSettings) -> None:
    """Where the same files come back as others, as those of a disk that is mounted anew, the store says of a lock that
    it let it go itself, in a renewal and to a reader, and its worker gets the lock again at once. One that another
    worker has taken by then is simply lost."""
    async with in_use(settings) as (store, topic, states):
        tokens = [await store.locks.acquire(topic.shard(at), "w", QUIET_S) for at in range(2)]
        mine, taken = (token for token in tokens if isinstance(token, LockToken))
        take_away(settings)
        await states.are(False)
        shutil.copytree(aside(settings), settings.directory)
        await states.are(True)
        async with SqliteStore(settings) as other:
            assert isinstance(await other.locks.acquire(taken.shard, "other", QUIET_S), LockToken)

            found = await store.locks.renew_all([mine, taken], QUIET_S)

        assert [type(each) for each in found] == [LockLetGo, OwnershipLost]
        with pytest.raises(LockLetGo, match="let go"):
            await store.queue.read(mine, b"", 1)
        assert isinstance(await store.locks.acquire(mine.shard, "w", QUIET_S), LockToken)
        await renew(store, mine, QUIET_S)


@asynccontextmanager
async def in_use_again(settings: SqliteSettings) -> AsyncIterator[tuple[SqliteStore, Topic, States]]:
    """The store as `in_use` has left it."""
    states = States()
    async with SqliteStore(settings, states) as store:
        topic = await store.own_topics.find("t")
        assert topic is not None
        yield store, topic, states


async def told_of(store: SqliteStore, topic: Topic) -> None:
    """Return when new entries of all queues were told."""
    missing = set(topic.all_shards())
    while missing:
        missing -= set(await store.arrivals.wait())


@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
async def test_a_store_that_is_waited_for(settings: SqliteSettings, left: str) -> None:
    """Where there has to be a store and none is found nothing is made; it is used as soon as it comes."""
    states = States()
    async with in_use(settings) as (_, topic, _):
        pass
    take_away(settings)
    if left != "nothing":
        os.mkdir(settings.directory, 0o700)

    async with SqliteStore(settings, states, make=False, waits=True) as store:
        assert "is its disk mounted?" in await states.are(False)
        for use in (read, write):
            with pytest.raises(StoreAway, match="there is no store"):
                await use(store, topic)
        assert list(store.failing) == ["gone"]

        bring_back(settings)
        await states.are(True)
        await assert_as_left(store, topic)


async def test_a_command_does_not_wait(settings: SqliteSettings) -> None:
    """Who asks for a store that is there, or for nothing, is refused at once where there is none."""
    with pytest.raises(StoreMisconfigured, match="there is no store"):
        async with SqliteStore(settings, make=False):
            pass
