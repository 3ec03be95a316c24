"""An embedded store of several directories: a topic lies whole in one of them and stays there, and one that is lost
costs its topics only."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from devkit.entries.entries import delivered
from remora.config import SqliteSettings
from remora.model.errors import (
    DirectoryLost,
    StoreAway,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    TopicRefused,
)
from remora.model.fan_out import FannedOut, TopicCopies
from remora.model.ingest import IdempotencyKey
from remora.model.shard import LockHolder
from remora.model.store_files import DirectoryReport
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite import store as sqlite_store
from remora.storage.sqlite.files import directories, open_files
from remora.storage.sqlite.repair.backup import back_up, restore
from remora.storage.sqlite.repair.checks import check_directory, check_file
from support.stores import held, own_topic, renew, spread

LEASE_S = 60.0


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    """A store of two directories of two files each."""
    return SqliteSettings(directories=(str(tmp_path / "one"), str(tmp_path / "two")), files=2)


@pytest.fixture(autouse=True)
def no_look_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store looks after its files when the test has it do so."""
    monkeypatch.setattr(sqlite_store, "LOOK_EVERY_S", 3600.0)


def folder(settings: SqliteSettings, number: int) -> Path:
    """One of its directories."""
    return Path(settings.directories[number])


def lies_in(store: SqliteStore, topic: str) -> str:
    """The name of the directory that a topic lies in."""
    return store._files.file_of(topic).path.parent.name


async def made(store: SqliteStore, *names: str) -> list[Topic]:
    """Topics of two shards."""
    return [await store.own_topics.create(own_topic(name, 2)) for name in names]


async def one_in(store: SqliteStore, directory: str, mark: str = "t") -> Topic:
    """A new topic that lies in this directory."""
    name = next(name for i in range(100) if lies_in(store, name := f"{mark}{i}") == directory)
    return (await made(store, name))[0]


async def waiting(store: SqliteStore, topic: Topic) -> list[bytes]:
    """What waits in a topic."""
    return [entry for shard in topic.all_shards() async for _, entry in store.inspection.dump(shard)]


async def deliver(store: SqliteStore, topic: Topic) -> int:
    """Read and remove what waits in a topic; how many entries that were."""
    count = 0
    for shard in topic.all_shards():
        token = await held(store, shard)
        while (page := await store.queue.read(token, b"", 100)).entries:
            await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
            count += len(page.entries)
        await store.locks.release(token)
    return count


def payloads(topic: Topic, count: int) -> list[bytes]:
    """What `spread` has, by shards."""
    return [each.payload for shard in range(topic.shards) for each in spread(topic, count) if each.shard == shard]


# --------------------------------------------------------------------------------------------- placing


async def test_topics_lie_in_all_directories_and_stay(settings: SqliteSettings) -> None:
    """Names choose the directories, files have names of their own over all of them, and another opening finds the
    topics whatever its settings say of directories."""
    names = [f"t{i}" for i in range(12)]
    async with SqliteStore(settings) as store:
        topics = await made(store, *names)
        for topic in topics:
            await store.ingest.publish(topic, spread(topic, 4))
        places = {name: lies_in(store, name) for name in names}
        assert sorted(store.writers) == [f"queues-{number:03}.db" for number in range(4)]

    async with SqliteStore(replace(settings, directories=(), directory=settings.directories[0])) as again:
        assert {name: lies_in(again, name) for name in names} == places
        assert [await waiting(again, topic) for topic in topics] == [payloads(topic, 4) for topic in topics]
        assert [await deliver(again, topic) for topic in topics] == [4] * 12
    assert set(places.values()) == {"one", "two"}


async def test_adding_a_directory_moves_nothing(tmp_path: Path) -> None:
    """Topics, what waits in them and the letters' names stay where they are; new topics lie in both directories, and a
    store that was open before finds them and keeps its locks."""
    alone = SqliteSettings(directory=str(tmp_path / "one"), files=2)
    names = [f"t{i}" for i in range(8)]
    async with SqliteStore(alone) as store:
        topics = await made(store, *names)
        for topic in topics:
            await store.ingest.publish(topic, spread(topic, 2))
        token = await held(store, topics[1].first_shard)

        assert await asyncio.to_thread(directories.add, tmp_path / "one", tmp_path / "two", alone)
        assert not await asyncio.to_thread(directories.add, tmp_path / "one", tmp_path / "two", alone)
        with pytest.raises(StoreUnavailable, match="being changed"):
            await made(store, "unaware")
        synced = store.synced
        await store._watch.look()
        assert store.synced >= synced > 0, "a count of the metrics page fell, which ends the worker"
        await renew(store, token, LEASE_S)
        async with SqliteStore(alone) as other:
            holder = await other.locks.acquire(token.shard, "other", LEASE_S)
            assert isinstance(holder, LockHolder)
            assert holder.lease_left_s > 0

        later = await made(store, *(f"u{i}" for i in range(8)))
        assert {lies_in(store, name) for name in names} == {"one"}
        assert {lies_in(store, topic.name) for topic in later} == {"one", "two"}
        assert [await waiting(store, topic) for topic in topics] == [payloads(topic, 2) for topic in topics]
        assert len(await store.catalog.topics()) == 16
        await store.own_topics.remove(topics[0], discard=True)
        (remade,) = await made(store, topics[0].name)
        assert remade.id != topics[0].id


async def test_events_for_topics_of_several_directories(settings: SqliteSettings) -> None:
    """One request stores its copies in all of them or in none, and is recognised when it is repeated."""
    async with SqliteStore(settings) as store:
        topics = [await one_in(store, "one"), await one_in(store, "two")]
        once = IdempotencyKey("k", b"d")
        copies = [TopicCopies(topic, spread(topic, 2)) for topic in topics]

        first = await store.ingest.fan_out(copies, FannedOut(2, 0, {}), once)
        again = await store.ingest.fan_out(copies, FannedOut(2, 0, {}), once)

        assert (first.repeated, again.repeated) == (False, True)
        assert [await waiting(store, topic) for topic in topics] == [payloads(topic, 2) for topic in topics]


async def test_check_backup_and_restore_know_all_directories(settings: SqliteSettings, tmp_path: Path) -> None:
    """A check reads the files of all, a backup has them in one directory, and a restore makes each directory again at
    the paths of the settings; into another number of directories it is refused."""
    async with SqliteStore(settings) as store:
        topics = [await one_in(store, "one"), await one_in(store, "two")]
        for topic in topics:
            await store.ingest.publish(topic, spread(topic, 3))
        back_up(folder(settings, 0), tmp_path / "copies")
    assert [(each.path.parent.name, each.entries, each.problems) for each in check_directory(folder(settings, 0))] == [
        (name, entries, []) for name, entries in zip(("one", "one", "two", "two"), held_in(settings), strict=True)
    ]
    (folder(settings, 1) / "queues-003.db").rename(tmp_path / "elsewhere")
    assert [each.path.name for each in check_directory(folder(settings, 0)) if each.problems] == ["queues-003.db"]
    with pytest.raises(StoreMisconfigured, match="of a store of 2 directories"):
        restore(tmp_path / "copies", [tmp_path / "new"])

    new = replace(settings, directories=(str(tmp_path / "new" / "one"), str(tmp_path / "new" / "two")))
    reports = restore(tmp_path / "copies", [Path(each) for each in new.directories])

    assert sum(each.entries for each in reports) == 6
    async with SqliteStore(new) as store:
        assert [await waiting(store, topic) for topic in topics] == [payloads(topic, 3) for topic in topics]
        assert {file.path.parent.parent.name for file in store._files.all} == {"new"}


def held_in(settings: SqliteSettings) -> list[int]:
    """How many entries each file has, by number."""
    found = [path for each in settings.directories for path in sorted(Path(each).glob("queues-*.db"))]
    return [check_file(path).entries for path in found]


# ------------------------------------------------------------------------------------------------ lost


async def test_a_lost_directory_costs_its_topics_only(settings: SqliteSettings, tmp_path: Path) -> None:
    """While it is away the others take in and deliver, the store says which one it is, and no topic of its name is made
    elsewhere; when it is there again it goes on with what it had."""
    async with SqliteStore(settings) as store:
        here, gone = await one_in(store, "one"), await one_in(store, "two")
        for topic in (here, gone):
            await store.ingest.publish(topic, spread(topic, 4))
        assert len(await store.catalog.topics()) == 2
        folder(settings, 1).rename(tmp_path / "away")
        await store._watch.look()

        await refused(store, gone)
        assert await deliver(store, here) == 4
        await store.ingest.publish(here, spread(here, 2))
        assert store.connected
        assert "two is lost" in store.failing["directory"]
        assert list(store.damaged) == [settings.directories[1]]
        assert gone.first_shard in await store.catalog.topics()

        synced = store.synced
        (tmp_path / "away").rename(folder(settings, 1))
        await store._watch.look()
        assert not store.failing
        assert store.synced >= synced > 0, "a count of the metrics page fell, which ends the worker"
        assert await deliver(store, gone) == 4


async def test_arrivals_are_awaited_while_a_directory_comes_back(settings: SqliteSettings, tmp_path: Path) -> None:
    """Who waits for arrivals waits on while a directory is away, and gets what it holds when it is back."""
    async with SqliteStore(settings) as store:
        here, gone = await one_in(store, "one"), await one_in(store, "two")
        await store.ingest.publish(gone, spread(gone, 4))
        folder(settings, 1).rename(tmp_path / "away")
        await store._watch.look()
        (tmp_path / "away").rename(folder(settings, 1))

        await store._files.look()
        store.arrivals._looked_at = 0.0  # a look is due
        found = set(await store.arrivals.wait())

        assert found >= set(gone.all_shards())
        await store._watch.look()
        await store.ingest.publish(here, spread(here, 4))
        assert set(await store.arrivals.wait()) >= set(here.all_shards())
    store.arrivals._heard(None)  # a doorbell that rings while the files are closed is no error


async def refused(store: SqliteStore, gone: Topic) -> None:
    """Whatever is asked of a topic in a lost directory says so."""
    with pytest.raises(DirectoryLost):
        await store.ingest.publish(gone, spread(gone, 1))
    with pytest.raises(DirectoryLost):
        await store.own_topics.create(own_topic(gone.name))
    with pytest.raises(DirectoryLost):
        await store.own_topics.find(gone.name)
    with pytest.raises(DirectoryLost):
        await held(store, gone.shard(0))


async def test_a_directory_that_is_not_there_at_a_start_is_waited_for(settings: SqliteSettings, tmp_path: Path) -> None:
    """The others are used at once; nothing is made in its place; it is used as soon as it is there."""
    async with SqliteStore(settings) as store:
        here, gone = await one_in(store, "one"), await one_in(store, "two")
        await store.ingest.publish(gone, spread(gone, 3))
    folder(settings, 1).rename(tmp_path / "away")

    async with SqliteStore(settings, waits=True) as store:
        await store.ingest.publish(here, spread(here, 2))
        await store._watch.look()
        await refused(store, gone)
        assert list(store.damaged) == [settings.directories[1]]
        assert not folder(settings, 1).exists()
        folder(settings, 1).mkdir(0o700)  # the mount point, without its disk
        await store._watch.look()
        assert not list(folder(settings, 1).iterdir())
        folder(settings, 1).rmdir()
        (tmp_path / "away").rename(folder(settings, 1))
        await store._watch.look()

        assert not store.failing
        assert await deliver(store, gone) == 3
        assert gone.first_shard in await store.catalog.topics()


async def test_without_the_first_directory_nothing_is_begun(settings: SqliteSettings, tmp_path: Path) -> None:
    """A store whose first directory is not there waits for it, though others are."""
    async with SqliteStore(settings) as store:
        topic = await one_in(store, "two")
    folder(settings, 0).rename(tmp_path / "away")

    async with SqliteStore(replace(settings, if_missing="wait"), make=False, waits=True) as store:
        assert list(store.failing) == ["gone"]
        (tmp_path / "away").rename(folder(settings, 0))
        await store._watch.look()
        assert store.connected
        assert await store.own_topics.find(topic.name) == topic


async def test_what_others_wait_for_is_kept_while_the_list_of_directories_is_damaged(
    settings: SqliteSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a start finds the first file damaged, topics of further directories are lost and not gone: what is decided
    for them, and the mark of what they took, stay until the file is back."""
    once, first = IdempotencyKey("k", b"d"), folder(settings, 0) / "queues-000.db"
    async with SqliteStore(settings) as store:
        gone = await one_in(store, "two")
        home = store.ingest._home(once)
        assert store._files.numbered(home).path.name == "queues-001.db"
        with monkeypatch.context() as patch:
            patch.setattr(store.ingest, "_take", kept_waiting)
            with pytest.raises(StoreUnavailable):
                await store.ingest.fan_out([TopicCopies(gone, spread(gone, 2))], FannedOut(2, 0, {}), once)
        await store._files.numbered(home).write(lambda found: found.execute(MARK_OF_UNKNOWN))
    whole = first.read_bytes()
    first.write_bytes(b"\xa5" * len(whole))

    async with SqliteStore(settings) as store:
        with pytest.raises(StoreUnavailable, match="is decided"):
            await store.ingest.fanned_out(once)
        await store._finisher.sweep(-1)
        for act in (store.own_topics.find(gone.name), store.own_topics.create(own_topic("new"))):
            with pytest.raises(DirectoryLost, match="has the list of the store's directories"):
                await act

    first.write_bytes(whole)
    async with SqliteStore(settings) as store:
        assert await waiting(store, gone) == payloads(gone, 2)
        assert await store._files.numbered(home).read(lambda found: found.execute("SELECT home FROM taken").fetchall())


MARK_OF_UNKNOWN = "INSERT INTO taken (id, home, boot, since_ns) VALUES ('id', 2, '', 0)"


async def test_a_damaged_file_keeps_no_store_from_being_opened(settings: SqliteSettings) -> None:
    """A directory that the settings name and that was never added is not used, also where a file is damaged that may
    have had topics."""
    async with SqliteStore(replace(settings, directories=(), directory=settings.directories[0])):
        pass
    damaged = folder(settings, 0) / "queues-001.db"
    damaged.write_bytes(b"\xa5" * len(damaged.read_bytes()))

    async with SqliteStore(settings) as store:
        assert list(store.damaged) == [str(damaged)]
        assert store._files.directories == [folder(settings, 0)]


async def kept_waiting(*_: object) -> None:
    """What a file that others keep busy says."""
    raise StoreUnavailable("busy")


# --------------------------------------------------------------------------------------------- removing


async def test_a_directory_is_removed_when_nothing_lies_in_it(settings: SqliteSettings) -> None:
    """It takes no topics from the first try on, is kept while a topic lies in it, and then goes; its topics' names are
    free for the others."""
    first, second = folder(settings, 0), folder(settings, 1)
    async with SqliteStore(settings) as store:
        last = await one_in(store, "two")
        with pytest.raises(StoreError, match="has 1 topic with 0 entries"):
            await asyncio.to_thread(directories.remove, first, second, discard=False)
        await store._watch.look()
        assert {lies_in(store, f"n{i}") for i in range(20)} == {"one"}
        assert lies_in(store, last.name) == "two"
        await store.own_topics.remove(last, discard=False)
        with pytest.raises(StoreUnavailable):
            await made(store, last.name)

        await asyncio.to_thread(directories.remove, first, second, discard=False)
        await store._watch.look()

        assert [each.path for each in directories.reports(first)] == [str(first)]
        (again,) = await made(store, last.name)
        assert lies_in(store, again.name) == "one"
    with pytest.raises(StoreMisconfigured, match="first directory"):
        directories.remove(first, first, discard=True)


async def test_a_lost_directory_is_given_up(settings: SqliteSettings, tmp_path: Path) -> None:
    """Without it nothing is known of its topics, so it goes by --discard only, and its names can be made anew."""
    first, second = folder(settings, 0), folder(settings, 1)
    async with SqliteStore(settings) as store:
        gone = await one_in(store, "two")
    second.rename(tmp_path / "broken")

    with pytest.raises(StoreUnavailable, match="is lost"):
        directories.remove(first, second, discard=False)
    directories.remove(first, second, discard=True)

    async with SqliteStore(settings) as store:
        assert not store.failing
        assert (await made(store, gone.name))[0].id != gone.id


async def test_a_directory_that_was_moved_is_found_at_its_new_path(settings: SqliteSettings, tmp_path: Path) -> None:
    """Adding it under the new path changes where it is looked for, and nothing else."""
    async with SqliteStore(settings) as store:
        topic = await one_in(store, "two")
        await store.ingest.publish(topic, spread(topic, 2))
    moved = folder(settings, 1).rename(tmp_path / "moved")

    assert directories.add(folder(settings, 0), moved, settings)

    async with SqliteStore(settings) as store:
        assert lies_in(store, topic.name) == "moved"
        assert await waiting(store, topic) == payloads(topic, 2)


async def test_another_stores_directory_is_not_added(settings: SqliteSettings, tmp_path: Path) -> None:
    """It is refused, and so is what has lost a file; nothing has changed then."""
    for each in ("one", "other"):
        async with SqliteStore(SqliteSettings(directory=str(tmp_path / each), files=2)):
            pass

    with pytest.raises(StoreMisconfigured):
        directories.add(tmp_path / "one", tmp_path / "other", settings)

    assert names(directories.reports(tmp_path / "one")) == ["one"]


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE meta",
        "DELETE FROM meta WHERE key = 'store'",
        "UPDATE meta SET value = 'x' WHERE key = 'files'",
        "UPDATE meta SET value = 'x' WHERE key = 'directories'",
        "UPDATE meta SET value = 5 WHERE key = 'directories'",
    ],
)
async def test_a_list_of_directories_that_cannot_be_read_is_named(settings: SqliteSettings, statement: str) -> None:
    """The commands name the file, and so does the look of a store that waits for one of them."""
    first, second = folder(settings, 0), folder(settings, 1)
    async with SqliteStore(settings) as store:
        gone = second.rename(second.with_name("gone"))
        await store._watch.look()
        gone.rename(second)
        with closing(sqlite3.connect(first / "queues-000.db")) as connection, connection:
            connection.execute(statement)

        for ask in (
            lambda: directories.reports(first),
            lambda: directories.add(first, first.with_name("three"), settings),
            lambda: directories.remove(first, second, discard=True),
            lambda: store._files._prepare_again(store._files.placement.directories[1]),
        ):
            with pytest.raises(StoreError, match=r"queues-000\.db"):
                await asyncio.to_thread(ask)


async def test_a_directory_whose_lock_cannot_be_had_is_waited_for(
    settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that refuses to open the lock of the first directory is named by a look, which is no defect."""

    def refused(directory: Path) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error", str(directory))

    async with SqliteStore(settings) as store:
        gone = folder(settings, 1).rename(folder(settings, 1).with_name("gone"))
        await store._watch.look()
        gone.rename(folder(settings, 1))
        with monkeypatch.context() as patch:
            patch.setattr(open_files, "locked", refused)
            with pytest.raises(StoreAway, match="Input/output error"):
                await store._watch.look()

        await store._watch.look()
        assert not store.failing


def names(reports: Sequence[DirectoryReport]) -> list[str]:
    """The directories' names."""
    return [Path(each.path).name for each in reports]


async def test_an_interrupted_change_is_repeated(settings: SqliteSettings, tmp_path: Path) -> None:
    """A change that was cut short leaves files that take no new topics, and everything else as it was; the same command
    completes it."""
    third = tmp_path / "three"
    async with SqliteStore(settings) as store:
        topic = await one_in(store, "two")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(directories, "keep_placement", cut_short)
            with pytest.raises(KeyboardInterrupt):
                directories.add(folder(settings, 0), third, settings)
        await store._watch.look()
        await store.ingest.publish(topic, spread(topic, 2))
        with pytest.raises((StoreUnavailable, TopicRefused)):
            await one_in(store, "two", "u")

        assert directories.add(folder(settings, 0), third, settings)
        await store._watch.look()

        await one_in(store, "three")
        assert await deliver(store, topic) == 2


def cut_short(*_: object) -> None:
    """What a killed command does."""
    raise KeyboardInterrupt
