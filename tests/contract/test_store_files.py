"""The check of an embedded store's files, and what is salvaged of damaged ones."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.test_sqlite_checksums import committed_in_every_way
from devkit.processes.daemon import complaints
from devkit.processes.mounts import with_mount
from remora.cli import group
from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged, StoreMisconfigured
from remora.model.exits import Exit
from remora.model.ingest import IdempotencyKey, ReservedRoom
from remora.model.peaks import HourPeak
from remora.model.record import CorruptBytes, DeadLetter
from remora.model.shard import Shard
from remora.model.store_files import Salvaged
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.repair import salvager
from remora.storage.sqlite.repair.checks import LETTERS, check_directory, check_file
from remora.storage.sqlite.repair.salvager import salvage
from remora.storage.sqlite.tables.schema import END_OF_QUEUE, POSITION_BITS
from remora.storage.sqlite.tables.soundness import changed, changed_letter
from support.sqlite import append
from support.stores import change, held, own_topic, settle_all, spread, unhurried

ENTRIES = 40


async def filled(store: SqliteStore) -> list[bytes]:
    """Topics with entries of all kinds, a dead letter and open reservations; the entries of the queue `t`."""
    topic = await store.own_topics.create(own_topic("t", 1))
    entries = await committed_in_every_way(store, topic)
    token = await held(store, topic.shard(0))
    page = await store.queue.read(token, b"", 1)
    at, behind = (each.decode() for each in page.positions)
    await store.letters.store(
        token, DeadLetter("t", token.incarnation, at, behind, "expired", "why", 1, 1.0, 1.0, b"l")
    )
    await store.ingest.reserve(topic, [ReservedRoom(0, b"k", 100)])
    numbered = await store.own_topics.create(replace(own_topic("numbered", 2), is_sequenced=True))
    await store.ingest.publish(numbered, spread(numbered, ENTRIES, "n-"))
    await store.ingest.reserve(numbered, [ReservedRoom(1, b"k", 100), ReservedRoom(1, b"l", 7)])
    return entries


def problems(configured: SqliteSettings) -> list[tuple[str, str]]:
    """What is wrong with the files, by what it is about."""
    found = check_directory(Path(configured.directory))
    return [(each.what, each.text) for report in found for each in report.problems]


async def test_a_store_that_is_in_use_is_good(store: SqliteStore, configured: SqliteSettings) -> None:
    """While the store is open, each file is counted and nothing is wrong with it."""
    await filled(store)

    reports = check_directory(Path(configured.directory))
    assert [each.problems for each in reports] == [[] for _ in reports]
    assert sum(each.topics for each in reports) == 2
    assert sum(each.letters for each in reports) == 1
    assert sum(each.entries for each in reports) > ENTRIES


async def test_a_store_is_good_when_its_topics_are_removed(store: SqliteStore, configured: SqliteSettings) -> None:
    """What is remembered of requests outlives a topic for a while, and is right; so is what waits to be swept."""
    await filled(store)
    for name in ("t", "numbered"):
        topic = await store.own_topics.find(name)
        assert topic is not None
        await store.ingest.publish(topic, spread(topic, 1), IdempotencyKey("key", b"digest"))
        await store.own_topics.remove(topic, discard=True)
        assert problems(configured) == []


@pytest.mark.parametrize(
    ("sql", "what", "text"),
    [
        ("UPDATE settled SET data = x'00' WHERE id = (SELECT max(id) FROM settled)", "queue ", "checksum is"),
        ("DELETE FROM settled WHERE id = (SELECT min(id) FROM settled)", "queue ", "1 entry is missing, from "),
        ("DELETE FROM settled WHERE id = (SELECT max(id) FROM settled)", "queue ", "1 entry is missing, from "),
        ("UPDATE queues SET tail = tail + 3", "queue ", "3 entries are missing, from "),
        ("UPDATE queues SET tail = tail - 1 WHERE name = 't'", "entries", "belongs to no queue as it is now"),
        ("UPDATE queues SET head = tail + 1", "queue ", "its entries at "),
        ("UPDATE queues SET used_bytes = used_bytes + 1", "queue ", " bytes, and it counts "),
        ("UPDATE queues SET delivered = delivered + 1", "queue ", "entries have left it, and its ledger has "),
        (
            "UPDATE queues SET reserved_bytes = 0 WHERE name = 't'",
            "queue t",
            "1 open reservation for 1 entry of 100",
        ),
        ("UPDATE topics SET sequence = 1 WHERE name = 'numbered'", "queue numbered", "and the topic has given 1"),
        ("UPDATE topics SET shards = 3 WHERE name = 'numbered'", "topic numbered", "it has 3 queues, and the numbers"),
        ("DELETE FROM topics WHERE name = 't'", "queue t", "its topic is not there"),
        (
            "UPDATE reservations SET topic = 99 WHERE state = 'open'",
            "reservations",
            "2 rows are of topics that are ",
        ),
        ("UPDATE letters SET letter = x'00'", "dead letter of t at ", "its letter has changed"),
        ("UPDATE letters SET position = 999, checksum = NULL", "dead letter of t at ", "has no entry there"),
    ],
)
async def test_what_is_wrong_is_told(
    store: SqliteStore, configured: SqliteSettings, sql: str, what: str, text: str
) -> None:
    """A row that is changed, missing, or counted wrongly shows, with the queue or letter that it is about."""
    await filled(store)
    change(configured, sql)

    found = problems(configured)
    assert any(about.startswith(what) and text in told for about, told in found), found


async def test_a_file_that_is_away_or_of_others_is_told(tmp_path: Path) -> None:
    """A missing file, one of another store, one of another program, one of a newer remora, and one that is none."""
    directory = tmp_path / "queues"
    async with SqliteStore(SqliteSettings(directory=str(directory), files=3), lambda *_: None) as store:
        await store.own_topics.create(own_topic("t"))
    assert [each.problems for each in check_directory(directory)] == [[], [], []]
    first, second, third = (directory / f"queues-{number:03}.db" for number in range(3))
    with closing(sqlite3.connect(second)) as connection:
        connection.execute("UPDATE meta SET value = 'another' WHERE key = 'store'")
        connection.commit()
    third.unlink()
    missing, *others = sorted(check_directory(directory), key=lambda each: each.path, reverse=True)
    assert [each.text for each in missing.problems] == ["it is missing, though its store has 3 files"]
    assert [[each.text for each in report.problems] for report in others] == [
        ["it belongs to another store than queues-000.db"],
        [],
    ]

    strange, newer, nonsense = (tmp_path / name for name in ("strange.db", "newer.db", "nonsense.db"))
    with closing(sqlite3.connect(strange)) as connection:
        connection.execute("CREATE TABLE t (x)")
    shutil.copy(first, newer)
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA user_version = 99")
    nonsense.write_bytes(b"no database at all" * 1000)
    told = [check_file(each).problems[0].text for each in (strange, newer, nonsense)]
    assert "another program's database" in told[0]
    assert "a newer remora made it: version 99" in told[1]
    assert "it cannot be read" in told[2]


async def test_what_can_be_read_is_salvaged_and_delivered(
    store: SqliteStore, configured: SqliteSettings, tmp_path: Path
) -> None:
    """Lost entries are named, the others are read from the new file by a store as they were, and the old one stays."""
    entries = await filled(store)
    (path,) = (each.path for each in check_directory(Path(configured.directory)) if each.letters)
    damaged, new = tmp_path / "damaged" / path.name, tmp_path / "new" / path.name
    for folder in (damaged.parent, new.parent):
        folder.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(damaged)) as target:
        source.backup(target)
        settle_all(target)
        (queue, head) = target.execute("SELECT id, head FROM queues WHERE name = 't'").fetchone()
        target.execute("DELETE FROM settled WHERE id = ?", (queue << 40 | head + 2,))
        target.execute("UPDATE settled SET data = x'00' WHERE id = ?", (queue << 40 | head + 4,))
        target.execute("UPDATE meta SET value = 1 WHERE key = 'files'")
        target.execute("UPDATE meta SET value = 0 WHERE key = 'number'")
        target.execute("INSERT INTO peaks SELECT id, 494000, 1, 2, 3 FROM topics WHERE name = 't'")
        target.commit()
    before = damaged.read_bytes()

    found = salvage(damaged, new)

    assert damaged.read_bytes() == before
    assert [each.split(": ")[0] for each in found.lost] == [f"queue t, entry {head + 2}", f"queue t, entry {head + 4}"]
    problems_left = [each.text for each in check_file(new).problems]
    assert len(problems_left) == 2
    assert all("checksum is" in each for each in problems_left)
    new.rename(new.with_name("queues-000.db"))
    async with SqliteStore(replace(configured, directory=str(new.parent), files=1), lambda *_: None) as again:
        read = [data async for _, data in again.inspection.dump(Shard("t", own_topic("t", 1).origin))]
        letters = [each async for each in again.letters.stored("t")]
        topic = await again.own_topics.find("t")
        assert topic is not None
        assert list(await again.peaks.kept(topic, 494_000)) == [HourPeak(494_000, 1, 2, 3)]
    assert [i for i, data in enumerate(read) if isinstance(data, CorruptBytes)] == [2, 4]
    assert [data for i, data in enumerate(read) if i not in (2, 4)] == [
        data for i, data in enumerate(entries) if i not in (2, 4)
    ]
    assert [each.raw for each in letters] == [b"l"]

    with pytest.raises(StoreMisconfigured, match="is there already"):
        salvage(damaged, new.with_name("queues-000.db"))
    nothing = tmp_path / "nothing.db"
    nothing.write_bytes(b"")
    with pytest.raises(StoreDamaged, match="nothing of it can be salvaged"):
        salvage(nothing, tmp_path / "never.db")
    assert not (tmp_path / "never.db").exists()


class Sound:
    """A file without damage, and the bytes of its entries by position."""

    def __init__(self, path: Path, rows: Mapping[Any, bytes]) -> None:
        self.path, self.rows = path, rows

    def __repr__(self) -> str:  # hypothesis shows arguments, and those of dataclasses with all of their fields
        return f"Sound({self.path})"


def made_unhurried(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have something made before `unhurried_stores`, which is for one test, is in force."""
    with pytest.MonkeyPatch.context() as patch:
        unhurried(patch.setattr)
        asyncio.run(make())


@pytest.fixture(scope="module", params=["settled", "in the log"])
def sound(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Sound:
    """A file with a topic of 400 entries, all of them in the file, and the bytes of each."""
    folder = tmp_path_factory.mktemp("sound") / "queues"
    wanted = [b"%05d-" % number + bytes([number % 251]) * 300 for number in range(400)]

    async def make() -> None:
        async with SqliteStore(SqliteSettings(directory=str(folder), files=1), lambda *_: None) as made:
            topic = await made.own_topics.create(own_topic("t", 1))
            await append(made, topic.shard(0), *wanted)

    made_unhurried(make)
    path = folder / "queues-000.db"
    with closing(sqlite3.connect(path)) as connection:
        if request.param == "settled":
            settle_all(connection)
            connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    return Sound(path, dict(enumerate(wanted)))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(["flip", "zero", "cut", "shuffle"]))
def test_damage_never_makes_a_wrong_entry(sound: Sound, tmp_path: Path, seed: int, kind: str) -> None:
    """Of a file with flipped bytes, empty or exchanged pages, or a missing end, what is salvaged as good is as it was;
    and where an entry is lost, the check says that something is wrong."""
    rows, chance, raw = sound.rows, Random(seed), bytearray(sound.path.read_bytes())
    page = 16384
    match kind:
        case "flip":
            for _ in range(chance.randint(1, 20)):
                raw[chance.randrange(page, len(raw))] ^= 1 << chance.randrange(8)
        case "zero":
            at = chance.randrange(1, len(raw) // page) * page
            raw[at : at + page] = bytes(page)
        case "cut":
            del raw[chance.randrange(page, len(raw)) :]
        case "shuffle":
            a, b = (chance.randrange(1, len(raw) // page) * page for _ in range(2))
            raw[a : a + page], raw[b : b + page] = raw[b : b + page], raw[a : a + page]
    damaged, new = tmp_path / f"{seed}-{kind}.db", tmp_path / f"{seed}-{kind}.new"
    damaged.write_bytes(raw)
    new.unlink(missing_ok=True)

    is_told = bool(check_file(damaged).problems)
    try:
        found = salvage(damaged, new)
    except StoreDamaged:
        assert is_told
        return
    lost = {int(each.split("entry ")[1].split(":")[0]) for each in found.lost if "entry " in each}
    lost |= set(range(found.unproven))
    with closing(sqlite3.connect(new)) as connection:
        copied = dict(connection.execute("SELECT id & 1099511627775, data FROM settled"))
    assert [position for position in copied if position not in lost and copied[position] != rows.get(position)] == []
    assert found.lost or copied.keys() == rows.keys(), (seed, kind, is_told, len(copied))
    assert is_told or not found.lost, (seed, kind, found.lost)


async def test_the_command_says_what_is_wrong_and_fails(
    store: SqliteStore, configured: SqliteSettings, tmp_path: Path
) -> None:
    """Files by name or those of the configuration, as text and as JSON, with exit code 1 when something is wrong."""
    await filled(store)
    config = tmp_path / "remora.toml"
    config.write_text(f'[sqlite]\ndirectory = "{configured.directory}"\n')

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(group, ["store", *arguments, "-c", str(config)])
        return result.exit_code, result.stdout

    code, text = run("check")
    assert (code, text.count(": good; ")) == (Exit.OK, configured.files)
    change(configured, "DELETE FROM settled WHERE id = (SELECT max(id) FROM settled)")
    code, text = run("check", "--json")
    found = json.loads(text)
    assert code == Exit.FAILURE
    assert any("entry is missing" in each["problem"] for file in found for each in file["problems"])
    hurt = next(each["file"] for each in found if each["problems"])
    code, text = run("check", hurt)
    assert (code, "entry is missing" in text) == (Exit.FAILURE, True)

    done = CliRunner().invoke(group, ["store", "salvage", hurt, str(tmp_path / "new.db")])
    assert (done.exit_code, done.output.count("lost: queue ")) == (Exit.FAILURE, 1)


@pytest.mark.parametrize("what", ["empty", "pipe", "directory", "gone"])
def test_what_is_no_file_of_a_store_is_told_and_waited_for_by_nobody(tmp_path: Path, what: str) -> None:
    """An empty file, a pipe, a directory and nothing at all are each named; no new file is left behind."""
    path, new = tmp_path / "queues-000.db", tmp_path / "new.db"
    match what:
        case "empty":
            path.touch()
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
    told = {"empty": "it is empty", "pipe": "no regular file", "directory": "no regular file", "gone": "No such file"}

    (problem,) = check_file(path).problems
    with pytest.raises(StoreDamaged, match=told[what]):
        salvage(path, new)

    assert told[what] in problem.text
    assert not new.exists()


def test_a_copy_that_is_cut_short_is_no_store(sound: Sound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted, salvage leaves nothing behind; a file that a killed one left has no mark, so that it is refused."""
    new = tmp_path / "queues-000.db"
    copy = salvager._copy
    left = tmp_path / "left.db"

    def interrupted(source: sqlite3.Connection, target: sqlite3.Connection, found: Salvaged) -> None:
        copy(source, target, found)
        shutil.copy(new, left)
        raise KeyboardInterrupt

    monkeypatch.setattr(salvager, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        salvage(sound.path, new)

    assert not list(tmp_path.glob("queues-000.db*"))
    assert [each.text for each in check_file(left).problems] == [
        "it is another program's database, or its first page is damaged"
    ]


def test_a_full_disk_is_not_taken_for_damage(sound: Sound, tmp_path: Path) -> None:
    """Where the new file has no room, it is that file which the error names, and nothing of it stays."""
    small = tmp_path / "small"
    small.mkdir()
    script = f'"{sys.executable}" -m remora store salvage "{sound.path}" "$0/new.db"; code=$?; ls "$0"; exit $code'
    mount = 'mount -t tmpfs -o size=64k none "$0"'

    done = subprocess.run(with_mount(f"{mount} && {{ {script}; }}", small, ["true"]), capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (Exit.TEMPORARY, "")
    assert complaints(done.stderr) == [
        f"remora: {small}/new.db: no room for what was salvaged: name a file on a disk that has some"
    ]


PAGE = 16384


def _with_a_log(folder: Path) -> tuple[Path, list[bytes]]:
    """A store's file of 60 entries, the last 20 of them in its -wal file only; the entries."""
    wanted = [b"%05d-" % number + bytes([number]) * 900 for number in range(60)]

    async def make() -> None:
        async with SqliteStore(SqliteSettings(directory=str(folder), files=1), lambda *_: None) as made:
            topic = await made.own_topics.create(own_topic("t", 1))
            await append(made, topic.shard(0), *wanted[:40])
            with closing(sqlite3.connect(folder / "queues-000.db")) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            await append(made, topic.shard(0), *wanted[40:])
            for name in ("queues-000.db", "queues-000.db-wal"):
                shutil.copy(folder / name, folder.parent / name)

    asyncio.run(make())
    return folder.parent / "queues-000.db", wanted


def _good(path: Path) -> list[bytes]:
    """The entries of a file whose checksums are right."""
    rows = _settled(path)
    return [
        data
        for rowid, data, checksum in rows
        if not changed(rowid >> POSITION_BITS, rowid & END_OF_QUEUE, [(data, checksum)])
    ]


def _settled(path: Path) -> list[tuple[int, bytes, int | None]]:
    """All entries of a file with their places and checksums, as they would lie once they have settled."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(":memory:")) as copy:
        source.backup(copy)
        settle_all(copy)
        return copy.execute("SELECT id, data, checksum FROM settled ORDER BY id").fetchall()


@pytest.mark.parametrize("fault", ["none", "no log", "cut log", "flipped log"])
def test_a_log_is_read_as_far_as_it_is_whole(tmp_path: Path, fault: str) -> None:
    """What a -wal file holds is copied with the rest; of one that is cut, changed or missing nothing wrong comes,
    and what was in the file itself stays."""
    path, wanted = _with_a_log(tmp_path / "queues")
    log = path.with_name("queues-000.db-wal")
    raw = bytearray(log.read_bytes().rstrip(b"\0"))  # without the room that it has for more
    match fault:
        case "no log":
            log.unlink()
        case "cut log":
            log.write_bytes(raw[: len(raw) * 2 // 3])
        case "flipped log":
            raw[len(raw) // 2] ^= 0x10
            log.write_bytes(raw)

    salvage(path, tmp_path / "new.db")

    copied = _good(tmp_path / "new.db")
    assert copied == wanted[: len(copied)]
    assert len(copied) >= 40
    assert (len(copied) == 60) == (fault == "none")


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A file with a topic that numbers its events, reservations, and many dead letters; the bytes of each of these."""
    folder = tmp_path_factory.mktemp("rich") / "queues"

    async def make() -> None:
        async with SqliteStore(SqliteSettings(directory=str(folder), files=1), lambda *_: None) as made:
            await filled(made)
            topic = await made.own_topics.create(own_topic("many", 2))
            await made.ingest.publish(topic, spread(topic, 200, "m-"))
            token = await held(made, topic.shard(0))
            page = await made.queue.read(token, b"", 40)
            for at, behind in pairwise(each.decode() for each in page.positions):
                place = (token.shard.queue, token.incarnation, at, behind)
                await made.letters.store(token, DeadLetter(*place, "expired", "why", 1, 1.0, 1.0, b"l" * 300))

    made_unhurried(make)
    path = folder / "queues-000.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    return Sound(path, _right(path))


def _right(path: Path) -> dict[int | tuple[str, str, int, int], bytes]:
    """The entries and dead letters of a file whose checksums are right."""
    with closing(sqlite3.connect(path)) as connection:
        letters = connection.execute(LETTERS).fetchall()
    found: dict[int | tuple[str, str, int, int], bytes] = {
        rowid: data
        for rowid, data, checksum in _settled(path)
        if checksum is not None
        if not changed(rowid >> POSITION_BITS, rowid & END_OF_QUEUE, [(data, checksum)])
    }
    return found | {
        (queue, incarnation, gen, position): letter
        for queue, incarnation, gen, position, letter, checksum in letters
        if checksum is not None and not changed_letter((queue, incarnation, gen, position), letter, checksum)
    }


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(["flip", "bit", "zero", "twice", "random"]))
def test_damage_never_makes_a_wrong_letter_and_loses_none_in_silence(
    rich: Sound, tmp_path: Path, seed: int, kind: str
) -> None:
    """Of a file of all kinds of rows, its first page damaged or another, each entry and dead letter that is salvaged as
    good is as it was, each other one is told as lost, and nothing is left of a copy that cannot be made."""
    chance, raw = Random(seed), bytearray(rich.path.read_bytes())
    some, other = (chance.randrange(len(raw) // PAGE) * PAGE for _ in range(2))
    match kind:
        case "flip":
            for _ in range(chance.randint(1, 200)):
                raw[chance.randrange(100, len(raw))] ^= 1 << chance.randrange(8)
        case "bit":
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        case "zero":
            raw[some : some + PAGE] = bytes(PAGE)
        case "twice":
            raw[some : some + PAGE] = raw[other : other + PAGE]
        case "random":
            length = chance.randint(1, PAGE)
            raw[some : some + length] = chance.randbytes(length)
    damaged, new = tmp_path / f"{seed}-{kind}.db", tmp_path / f"{seed}-{kind}.new"
    damaged.write_bytes(raw)
    new.unlink(missing_ok=True)

    is_told = bool(check_file(damaged).problems)
    try:
        found = salvage(damaged, new)
    except StoreDamaged:
        assert is_told
        assert not new.exists()
        return

    right = _right(new)
    assert right.items() <= rich.rows.items()
    assert found.lost or found.unproven or right.keys() == rich.rows.keys()
    assert is_told or not found.lost


@pytest.mark.parametrize("owner", ["recent", "announcements", "topics", "sqlite_autoindex_letters_1"])
def test_dead_letters_under_a_page_of_another_table(rich: Sound, tmp_path: Path, owner: str) -> None:
    """Where the page that the letters begin at is another table's, or an empty one's, they are told as lost."""
    raw, damaged, new = bytearray(rich.path.read_bytes()), tmp_path / "damaged.db", tmp_path / "new.db"
    with closing(sqlite3.connect(rich.path)) as connection:
        roots = dict(connection.execute("SELECT name, (rootpage - 1) * ? FROM sqlite_master", (PAGE,)))
    at, of = roots["letters"], roots[owner]
    raw[at : at + PAGE] = raw[of : of + PAGE]
    damaged.write_bytes(raw)

    found = salvage(damaged, new)

    assert _right(new).keys() == {key for key in rich.rows if isinstance(key, int)}
    assert any(each.startswith("table letters: ") for each in found.lost), found.lost
