"""Files of every version that the embedded store ever had: what they hold is delivered, and they go on."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from devkit.processes.programs import ENVIRONMENT
from remora.codec.event_entry import decode
from remora.config import SqliteSettings
from remora.model.errors import StoreMisconfigured, StoreUnavailable
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import directory as opened_by
from remora.storage.sqlite.repair.checks import check_directory
from remora.storage.sqlite.tables import schema
from support.sqlite_older import BEFORE_THE_LOG, THEIRS
from support.stores import QUIET_S, by_shard, own_topic, settle_all, spread

DATA = Path(__file__).parents[1] / "data"
"""The stores in it are what `scripts/try-upgrade --fixture` keeps: those of killed daemons of earlier commits."""

EARLIER = {"store-of-version-5": 5, "store-of-release-0.1.0": 9}
"""The version of each one's files."""

NEWEST = len(schema.MIGRATIONS)
FIRST_WITH_LEDGERS = 3
COOKIE = "remora/h/b/w1"


def as_version(path: Path, version: int) -> None:
    """Make the file what a remora of this version would have made: its tables, with what they could hold of the rows.

    Later versions only added tables and columns, and entries that have settled lie as all did before there was a log:
    so an older one would have stored these very values.
    """
    with closing(sqlite3.connect(path)) as connection:
        settle_all(connection)
        connection.commit()
    older = path.with_suffix(".older")
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("BEGIN")
        for step in schema.MIGRATIONS[:version]:
            step(connection)
        connection.execute("COMMIT")
        connection.execute("ATTACH ? AS newer", (str(path),))
        for (table,) in connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall():
            names = [name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})")]
            connection.execute(f"DELETE FROM main.{table}")
            columns = ", ".join(f'"{name}"' for name in names)
            newer = "settled" if table == "entries" else table
            connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{newer}")
        connection.execute("DETACH newer")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
    older.chmod(0o600)
    os.replace(older, path)


def versions(directory: Path) -> set[int]:
    found = set()
    for path in directory.glob("*.db"):
        with closing(sqlite3.connect(path)) as connection:
            found |= {version for (version,) in connection.execute("PRAGMA user_version")}
    return found


async def held(store: SqliteStore, shard: Shard) -> LockToken:
    token = await store.locks.acquire(shard, COOKIE, QUIET_S)
    assert isinstance(token, LockToken)
    return token


async def deliver(store: SqliteStore, token: LockToken, most: int = 1024) -> list[bytes]:
    """Read what waits in a shard, up to this many entries, and remove it as delivered."""
    page = await store.queue.read(token, b"", most)
    if page.entries:
        await store.queue.remove(token, page.positions[-1], len(page.entries), Tally(delivered=len(page.entries)))
    return list(page.entries)


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("version", range(1, NEWEST + 1))
async def test_a_store_of_each_version_is_delivered(tmp_path: Path, version: int) -> None:
    """What waits in a store of any earlier version is delivered once and booked; it takes events, and is the newest."""
    settings = SqliteSettings(directory=str(tmp_path / "store"), files=2)
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t"))
        await store.ingest.publish(topic, spread(topic, 9))
        first = []
        for shard in topic.all_shards():
            token = await held(store, shard)
            first.append(await deliver(store, token, 2))
            await store.locks.release(token)
    for path in (tmp_path / "store").glob("*.db"):
        as_version(path, version)
    assert versions(tmp_path / "store") == {version}

    async with SqliteStore(settings) as store:
        assert versions(tmp_path / "store") == {NEWEST}
        assert await store.own_topics.find("t") == topic
        await store.ingest.publish(topic, spread(topic, 6, "later"))
        delivered = []
        for shard in topic.all_shards():
            token = await held(store, shard)
            delivered.append(await deliver(store, token))
            assert await deliver(store, token) == []
            balance = await store.ledger.balance(shard)
            earlier = 2 if version >= FIRST_WITH_LEDGERS else 0
            assert (balance.unaccounted, balance.removed) == (0, Tally(delivered=earlier + len(delivered[-1])))

    assert [[*a, *b] for a, b in zip(first, delivered, strict=True)] == by_shard(
        topic, spread(topic, 9), spread(topic, 6, "later")
    )


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("name", EARLIER)
async def test_files_that_an_earlier_wheel_has_left_are_delivered(tmp_path: Path, name: str) -> None:
    """What a killed daemon of an earlier commit left is delivered in order, once, and booked; its dead letter stays."""
    shutil.unpack_archive(DATA / f"{name}.tar.xz", tmp_path / "store")
    (tmp_path / "store").chmod(0o700)
    assert versions(tmp_path / "store") == {EARLIER[name]}

    found: list[tuple[bytes, int]] = []
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as store:
        topic = await store.own_topics.find("kept")
        assert topic is not None
        for shard in topic.all_shards():
            token = await held(store, shard)
            for entry in await deliver(store, token):
                event = decode(entry).event
                found.append((event.object_key, event.object_size))
            assert (await store.ledger.balance(shard)).unaccounted == 0
        booked = [(await store.ledger.balance(shard)).removed.delivered for shard in topic.all_shards()]
        letters = [each async for each in store.letters.stored()]

    assert versions(tmp_path / "store") == {NEWEST}
    assert sorted(number for _, number in found) == list(range(60))
    assert all(a[1] < b[1] for a, b in itertools.pairwise(sorted(found, key=lambda each: each[0])) if a[0] == b[0])
    assert sum(booked) == 60
    assert [each.cause for each in letters] == ["expired"]


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.full("opens a store of release 0.1.0 as often as its migration has steps")
async def test_killed_while_migrating(tmp_path: Path) -> None:
    """At whatever step a process dies that brings a store of release 0.1.0 to the newest version, all entries of it are
    there afterwards, and the books and the check are content."""
    command = [sys.executable, "-W", "error", "-m", "support.sqlite_victim", "migrate", str(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run, command, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    assert list(outcomes.values()) == ["killed"] * (len(outcomes) - 1) + ["answered"], done.stderr
    found = {version for step in outcomes for version in versions(tmp_path / f"migrate-{step}")}
    assert found == set(range(EARLIER["store-of-release-0.1.0"], NEWEST + 1))  # each step is one transaction

    for step in outcomes:
        directory = tmp_path / f"migrate-{step}"
        async with SqliteStore(SqliteSettings(directory=str(directory), files=1)) as store:
            topic = await store.own_topics.find("kept")
            assert topic is not None
            delivered = 0
            for shard in topic.all_shards():
                delivered += len(await deliver(store, await held(store, shard)))
                assert (await store.ledger.balance(shard)).unaccounted == 0
        assert (step, delivered) == (step, 60)
        assert [report.problems for report in check_directory(directory)] == [[]]


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize(
    ("version", "where"),
    [(BEFORE_THE_LOG, "before"), (BEFORE_THE_LOG, "reading"), (BEFORE_THE_LOG, "within"), (NEWEST - 1, "before"),
     (NEWEST - 1, "within")],
)  # fmt: skip
async def test_an_older_process_that_is_frozen_while_its_file_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, where: str
) -> None:
    """A process of an older release that has the file open and stands still: in a transaction that stores an event it
    keeps the newer one from migrating, and the event is there whole once it goes on; else the file is migrated, and
    what it wanted to store is refused. The books and the check are content, and all is delivered once."""
    settings = SqliteSettings(directory=str(tmp_path / "store"), files=1)
    path = tmp_path / "store" / "queues-000.db"
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        await store.ingest.publish(topic, spread(topic, 3))
    as_version(path, version)

    async with frozen(path, version, where) as older:
        if where == "within":
            with monkeypatch.context() as patch:
                patch.setattr(opened_by, "_BUSY_FOR_S", 0.1)
                with pytest.raises(StoreUnavailable, match="others kept it busy"):
                    await SqliteStore(settings).__aenter__()
            assert versions(tmp_path / "store") == {version}
            said = await thawed(older)
            assert said == "committed\n"
        async with SqliteStore(settings) as store:
            assert versions(tmp_path / "store") == {NEWEST}
            if where != "within":
                said = await thawed(older)
                assert said.startswith("refused: "), said
            await store.ingest.publish(topic, spread(topic, 2, "later"))
            token = await held(store, topic.shard(0))
            found = await deliver(store, token)
            balance = await store.ledger.balance(topic.shard(0))

    theirs = [THEIRS] if where == "within" else []
    ours, later = spread(topic, 3), spread(topic, 2, "later")
    assert found == [*(each.payload for each in ours), *theirs, *(each.payload for each in later)]
    assert (balance.unaccounted, balance.pending) == (0, 0)
    assert [report.problems for report in check_directory(tmp_path / "store")] == [[]]


async def test_a_process_says_that_its_files_were_outgrown(tmp_path: Path) -> None:
    """One that goes on while a newer remora has migrated its files refuses events, and does not count as connected."""
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        with closing(sqlite3.connect(tmp_path / "store" / "queues-000.db")) as connection:
            connection.execute(f"PRAGMA user_version = {NEWEST + 1}")

        await store._watch.look()

        assert "by a newer remora" in store.failing["unusable"]
        assert not store.connected
        with pytest.raises(StoreUnavailable, match="by a newer remora"):
            await store.ingest.publish(topic, spread(topic, 1))


@asynccontextmanager
async def frozen(path: Path, version: int, where: str) -> AsyncIterator[subprocess.Popen[str]]:
    """A process of a release of this version that stands still on a file; see `support.sqlite_older`."""
    command = [sys.executable, "-W", "error", "-m", "support.sqlite_older", str(path), str(version), where]
    with subprocess.Popen(  # noqa: ASYNC220 - asyncio's watcher of children would take the news that it has stopped
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as older:
        try:
            _, status = await asyncio.to_thread(os.waitpid, older.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
            yield older
        finally:
            older.kill()


async def thawed(older: subprocess.Popen[str]) -> str:
    """What a frozen process says at its end, when it goes on."""
    older.send_signal(signal.SIGCONT)
    said, _ = await asyncio.to_thread(older.communicate)
    return said


@pytest.mark.parametrize("version", [1, NEWEST - 1])
async def test_an_older_release_refuses_what_a_newer_one_has_migrated(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that knows fewer versions names the file and both versions, and changes nothing in any file."""
    settings = SqliteSettings(directory=str(tmp_path / "store"), files=2)
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t"))
        await store.ingest.publish(topic, spread(topic, 9))
    before = {path.name: path.read_bytes() for path in (tmp_path / "store").glob("*.db")}
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])

    said = rf"queues-000.db was made by a newer remora \(version {NEWEST}, this one knows up to {version}\)"
    with pytest.raises(StoreMisconfigured, match=said):
        async with SqliteStore(settings):
            pass

    assert {path.name: path.read_bytes() for path in (tmp_path / "store").glob("*.db")} == before
