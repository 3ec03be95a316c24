"""Copies of a whole embedded store, made while it is in use, and stores that are made of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from devkit.testing.cases import cases
from devkit.waits import until
from remora.cli import group
from remora.config import SqliteSettings
from remora.model.errors import StoreFull, StoreMisconfigured
from remora.model.exits import Exit
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.repair import backup
from remora.storage.sqlite.repair.backup import back_up, restore
from remora.storage.sqlite.tables import schema
from support.sqlite import append
from support.stores import deliver_all, held, own_topic, spread

FILES = 4


def settings_of(directory: Path) -> SqliteSettings:
    return SqliteSettings(directory=str(directory), files=FILES)


async def waiting(store: SqliteStore, queue: str) -> list[bytes]:
    """The entries of a queue, in order."""
    token = await held(store, Shard(queue))
    start, found = b"", list[bytes]()
    while (page := await store.queue.read(token, start, 100)).entries:
        found += page.entries
        start = page.positions[-1]
    return found


async def filled(directory: Path) -> dict[str, str]:
    """A store with some topics, each with entries; closed. The incarnation of each queue."""
    async with SqliteStore(settings_of(directory)) as store:
        for number in range(8):
            topic = await store.own_topics.create(own_topic(f"t{number}", 1))
            await store.ingest.publish(topic, spread(topic, 30, f"n{number}-"))
    return incarnations(directory)


def incarnations(directory: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in directory.glob("queues-*.db"):
        with closing(sqlite3.connect(path)) as connection:
            found |= dict(connection.execute("SELECT name, incarnation FROM queues").fetchall())
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_what_was_copied_delivers_again(tmp_path: Path) -> None:
    """Every topic, entry and request that was remembered is in the new store; its queues have other incarnations."""
    before = await filled(tmp_path / "store")
    copied = await asyncio.to_thread(back_up, tmp_path / "store", tmp_path / "copies")
    restored = await asyncio.to_thread(restore, tmp_path / "copies", [tmp_path / "new"])

    for reports in (copied, restored):
        assert [each.problems for each in reports] == [[]] * FILES
        assert sum(each.entries for each in reports) == 8 * 30
    assert not set(incarnations(tmp_path / "new").values()) & set(before.values())
    assert incarnations(tmp_path / "copies") == before
    async with SqliteStore(settings_of(tmp_path / "store")) as old, SqliteStore(settings_of(tmp_path / "new")) as new:
        for queue in before:
            assert await waiting(new, queue) == await waiting(old, queue)
        await append(new, Shard("t3"), b"later")
        assert (await waiting(new, "t3"))[-1] == b"later"


async def test_a_change_of_shards_goes_on_in_what_was_copied(tmp_path: Path) -> None:
    """A topic that was copied while its former shards had entries delivers these first, takes events by the new ones,
    and then forgets the former ones, one of which was empty when it was copied."""
    async with SqliteStore(settings_of(tmp_path / "store")) as store:
        old = await store.own_topics.create(own_topic("t", 2))
        await store.ingest.publish(old, spread(old, 20, "first-"))
        before = await waiting(store, "t")
        await deliver_all(store, old.shard(1))
        new = await store.own_topics.reshard(old, 3)
        await store.ingest.publish(new, spread(new, 20, "second-"))
    await asyncio.to_thread(back_up, tmp_path / "store", tmp_path / "copies")
    await asyncio.to_thread(restore, tmp_path / "copies", [tmp_path / "new"])

    async with SqliteStore(settings_of(tmp_path / "new")) as store:
        assert await store.own_topics.find("t") == new
        assert [await waiting(store, each.queue) for each in new.open_shards()] == [[], [], []]
        await store.ingest.publish(new, spread(new, 20, "third-"))
        assert await deliver_all(store, new.former_shards()[0]) == before
        assert not await deliver_all(store, new.former_shards()[1])
        later = [len(await deliver_all(store, each)) for each in new.open_shards()]
        assert await store.own_topics.forget_former(new)
        ended = await store.own_topics.former_queues(new)

    assert sum(later) == 40
    assert sum(each.committed for each in ended) == 20


async def test_all_files_are_of_one_moment_and_nobody_is_refused(tmp_path: Path) -> None:
    """While events come and go, each copy that is made has of two topics in different files as many as were there
    together: of the second never more than of the first, and at most one less."""
    async with SqliteStore(settings_of(tmp_path / "store")) as store:
        first, second = await topics_of_different_files(store)
        written = [0]
        is_over = asyncio.Event()

        async def write() -> None:
            while not is_over.is_set():
                await store.ingest.publish(first, spread(first, 1, f"{written[0]}-"))
                await store.ingest.publish(second, spread(second, 1, f"{written[0]}-"))
                written[0] += 1

        async def deliver() -> None:
            token = await store.locks.acquire(Shard(first.name), "w", 3600.0)
            assert isinstance(token, LockToken)
            while not is_over.is_set():
                await store.queue.read(token, b"", 10)
                await asyncio.sleep(0)  # a look into a file waits for nothing

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            tasks.create_task(deliver())
            for number in range(3):
                before = written[0]
                await until(partial(more_than, written, before))
                target = tmp_path / f"copies{number}"
                reports = await asyncio.to_thread(back_up, tmp_path / "store", target)
                assert [each.problems for each in reports] == [[]] * FILES
                of_first, of_second = (tail(target, each.name) for each in (first, second))
                assert before < of_first <= written[0] + 1
                assert 0 <= of_first - of_second <= 1
            is_over.set()


def more_than(written: list[int], before: int) -> bool:
    return written[0] > before


async def topics_of_different_files(store: SqliteStore) -> tuple[Topic, Topic]:
    found: dict[Path, Topic] = {}
    for number in range(20):
        topic = own_topic(f"t{number}", 1)
        found.setdefault(store._files.file_of(topic.name).path, topic)
    first, second = [await store.own_topics.create(each) for each in list(found.values())[:2]]
    return first, second


def tail(directory: Path, queue: str) -> int:
    for path in directory.glob("queues-*.db"):
        with closing(sqlite3.connect(path)) as connection:
            for (found,) in connection.execute("SELECT tail FROM queues WHERE name = ?", (queue,)):
                return int(found)
    raise LookupError(queue)


async def test_a_copy_is_no_place_for_another_one(tmp_path: Path) -> None:
    """A directory with something in it is refused by name, and so is a store that is not whole; nothing changes."""
    await filled(tmp_path / "store")
    back_up(tmp_path / "store", tmp_path / "copies")
    before = names(tmp_path / "copies")

    with pytest.raises(StoreMisconfigured, match="copies is not empty"):
        back_up(tmp_path / "store", tmp_path / "copies")
    with pytest.raises(StoreMisconfigured, match=r"there is no store in .*nowhere: queues-000.db is missing"):
        back_up(tmp_path / "nowhere", tmp_path / "more")
    with pytest.raises(StoreMisconfigured, match=r"queues-000.db is there already"):
        restore(tmp_path / "copies", [tmp_path / "store"])
    assert names(tmp_path / "copies") == before
    assert not (tmp_path / "more").exists()


def another_stores(copies: Path) -> None:
    asyncio.run(filled(copies.parent / "other"))
    (copies.parent / "other" / "queues-002.db").replace(copies / "queues-002.db")


def renamed(copies: Path) -> None:
    (copies / "queues-001.db").rename(copies / "aside")
    (copies / "queues-002.db").rename(copies / "queues-001.db")
    (copies / "aside").rename(copies / "queues-002.db")


def damaged(copies: Path) -> None:
    path = copies / "queues-001.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 16384 // 2 * 16384)
        file.write(b"\xff" * 16384)


def newer(copies: Path) -> None:
    with closing(sqlite3.connect(copies / "queues-001.db")) as connection:
        connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")


HURT: tuple[tuple[Callable[[Path], object], str], ...] = (
    (lambda copies: (copies / "queues-001.db").unlink(), r"queues-001.db is missing: its store has 4 files"),
    (another_stores, r"queues-002.db belongs to another store, or had another name"),
    (renamed, r"queues-001.db belongs to another store, or had another name"),
    (lambda copies: (copies / "queues-004.db").write_bytes(b""), r"queues-004.db cannot be read: it is empty"),
    (damaged, r"queues-001.db: .*salvage"),
    (newer, r"queues-001.db was made by a newer remora"),
)


@pytest.mark.parametrize("case", cases(HURT[0], HURT[4], more=[HURT[1], HURT[2], HURT[3], HURT[5]]))
def test_what_is_not_one_whole_store_is_not_restored(
    tmp_path: Path, case: tuple[Callable[[Path], object], str]
) -> None:
    """A file that is missing, another store's, renamed, damaged or of a newer remora is named; nothing is made."""
    asyncio.run(filled(tmp_path / "store"))
    back_up(tmp_path / "store", tmp_path / "copies")
    hurt, message = case
    hurt(tmp_path / "copies")

    with pytest.raises(StoreMisconfigured, match=message):
        restore(tmp_path / "copies", [tmp_path / "new"])
    assert not (tmp_path / "new").exists() or not set(names(tmp_path / "new")) - {"lock"}


async def test_damage_is_copied_and_told(tmp_path: Path) -> None:
    """A copy of a damaged file is made all the same, and the command says what is wrong, with exit code 1."""
    await filled(tmp_path / "store")
    damaged(tmp_path / "store")
    configuration = tmp_path / "remora.toml"
    configuration.write_text(
        f'[store]\nkind = "sqlite"\n[sqlite]\ndirectory = "{tmp_path / "store"}"\nfiles = {FILES}\n'
    )

    told = CliRunner().invoke(group, ["store", "backup", str(tmp_path / "copies"), "--config", str(configuration)])

    assert told.exit_code == Exit.FAILURE, told.output
    assert re.search(r"copies/queues-001\.db: [0-9]+ problem", told.output)
    assert names(tmp_path / "copies") == [f"queues-{number:03}.db" for number in range(FILES)]


async def test_a_store_of_an_earlier_version_is_restored_as_one_of_this(tmp_path: Path) -> None:
    """A restore migrates its own files and leaves the copies as they were. Its report has their last names."""
    directory = tmp_path / "store"
    directory.mkdir(mode=0o700)
    for number in range(2):
        path = directory / f"queues-{number:03}.db"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            schema.MIGRATIONS[0](connection)
            meta = {"store": "s", "files": 2, "number": number, "catalogue": 0}
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute("PRAGMA user_version = 1")
            if not number:
                connection.execute(
                    "INSERT INTO topics (name, uid, shards, closed, attributes) VALUES ('t', 'u', 1, 0, x'')"
                )
                connection.execute(
                    "INSERT INTO queues (topic, number, name, incarnation, tail, used_bytes, capacity_bytes)"
                    " VALUES (1, 0, 't', 'i', 1, 15, 1000)"
                )
                connection.execute("INSERT INTO entries VALUES (?, x'0102030405')", (schema.rowid(1, 0),))

    reports = restore(directory, [tmp_path / "new"])

    assert [each.path for each in reports] == sorted((tmp_path / "new").glob("queues-*.db"))

    assert [(each.entries, each.problems) for each in reports] == [(1, []), (0, [])]
    with closing(sqlite3.connect(directory / "queues-000.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)


class Killed(BaseException):
    """The end of a process, as far as the code that it runs can tell."""


STEPS = [*[("_restored", number) for number in range(FILES)], *[("replace", number) for number in range(FILES)]]


@pytest.mark.parametrize(
    "step", cases(STEPS[1], STEPS[6], more=[each for each in STEPS if each not in (STEPS[1], STEPS[6])])
)
async def test_a_restore_that_is_cut_short_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[str, int]
) -> None:
    """Wherever it is killed no store opens the directory, empty or in part, and the same command completes it."""
    await filled(tmp_path / "store")
    back_up(tmp_path / "store", tmp_path / "copies")
    count = itertools.count()
    name, at = step
    module = backup if name == "_restored" else Path
    real = getattr(module, name)

    def killed(*arguments: Any) -> Any:
        if next(count) == at:
            raise Killed
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, killed)
        patch.setattr(backup, "discard", lambda _: None)  # who is killed undoes nothing
        with pytest.raises(Killed):
            restore(tmp_path / "copies", [tmp_path / "new"])

    with pytest.raises(StoreMisconfigured, match="was cut short: repeat `remora store restore`"):
        async with SqliteStore(settings_of(tmp_path / "new")):
            raise AssertionError
    assert sum(each.entries for each in restore(tmp_path / "copies", [tmp_path / "new"])) == 8 * 30
    async with SqliteStore(settings_of(tmp_path / "new")) as store:
        assert len(await waiting(store, "t5")) == 30
    assert "restoring" not in names(tmp_path / "new")


async def test_a_copy_for_which_there_is_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says so with the directory's name, and no file stays."""
    await filled(tmp_path / "store")
    real = sqlite3.connect

    def small(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(database, *arguments, **options)
        if Path(str(database)).parent == tmp_path / "copies":
            connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StoreFull, match="copies: no room for a copy of the store"):
        back_up(tmp_path / "store", tmp_path / "copies")
    assert names(tmp_path / "copies") == []
