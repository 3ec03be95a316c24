"""Opening the embedded store: what it makes, what it refuses and why; a start that was cut short is completed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from devkit.processes.mounts import with_mount
from devkit.processes.programs import ENVIRONMENT
from remora.config import SqliteSettings
from remora.model.errors import StoreError, StoreMisconfigured
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.tables import schema
from support.sqlite_victim import settings as victim_settings
from support.stores import by_shard, own_topic, spread


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a store is to be; it is not there yet."""
    return tmp_path / "lib" / "store"


@pytest.fixture
def settings(directory: Path) -> SqliteSettings:
    """A store of three files."""
    return SqliteSettings(directory=str(directory), files=3)


async def in_use(settings: SqliteSettings) -> Topic:
    """Open a store, and leave a topic with entries in it."""
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t"))
        await store.ingest.publish(topic, spread(topic, 9))
        return topic


async def assert_as_left(settings: SqliteSettings, topic: Topic) -> None:
    """The topic and its entries are as `in_use` left them, and it takes further ones."""
    async with SqliteStore(settings) as store:
        assert await store.own_topics.find(topic.name) == topic
        found = [[entry async for _, entry in store.inspection.dump(shard)] for shard in topic.all_shards()]
        assert found == by_shard(topic, spread(topic, 9))
        await store.ingest.publish(topic, spread(topic, 3))


async def refusal(settings: SqliteSettings) -> str:
    """Why the store cannot be opened."""
    with pytest.raises(StoreMisconfigured) as caught:
        async with SqliteStore(settings):
            pass
    return str(caught.value)


def queue_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.db"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_of_files(directory: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in directory.rglob("*") if not path.is_dir()}


async def test_nobody_else_may_look(directory: Path, settings: SqliteSettings) -> None:
    """The directory and all that is in it is its owner's alone, whatever the umask."""
    before = os.umask(0)
    try:
        async with SqliteStore(settings) as store:
            await store.own_topics.create(own_topic("t"))
            modes = modes_of_files(directory)
    finally:
        os.umask(before)

    assert mode(directory) == 0o700
    assert len(queue_files(directory)) == 3
    assert set(modes.values()) == {0o600}, modes


async def test_number_of_files_stays(directory: Path, settings: SqliteSettings) -> None:
    """The number of files is learnt from the directory once it is made: another one in the settings changes nothing."""
    topic = await in_use(settings)

    await assert_as_left(SqliteSettings(directory=str(directory), files=16), topic)

    assert len(queue_files(directory)) == 3


async def test_open_to_others(directory: Path, settings: SqliteSettings) -> None:
    """A directory or a file that others may read is refused with the command that closes it, and then works."""
    topic = await in_use(settings)
    file = queue_files(directory)[1]

    os.chmod(directory, 0o755)
    assert f"chmod 0700 {directory}" in await refusal(settings)
    os.chmod(directory, 0o700)
    os.chmod(file, 0o644)
    assert f"chmod 0600 {file}" in await refusal(settings)
    os.chmod(file, 0o600)

    await assert_as_left(settings, topic)


async def test_a_group_loses_its_rights(
    directory: Path, settings: SqliteSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """What a kubelet gives a pod's group on each start is taken from it again, with a log line, and all still works."""
    topic = await in_use(settings)
    file = queue_files(directory)[1]
    os.chmod(directory, 0o2770)
    os.chmod(file, 0o660)

    await assert_as_left(settings, topic)

    assert (mode(directory), mode(file)) == (0o700, 0o600)
    assert [each.getMessage() for each in caplog.records if each.name.startswith("remora.storage")] == [
        f"the group could use {directory}: its mode is 0700 now",
        f"the group could use {file}: its mode is 0600 now",
    ]


async def test_somebody_elses(directory: Path, settings: SqliteSettings) -> None:
    """A directory or a file of another owner is refused with both names and the command that runs as that owner."""
    if os.geteuid():  # the root directory is somebody else's, for a user that is not root
        assert "chown" in await refusal(SqliteSettings(directory="/"))
        return
    topic = await in_use(settings)
    file = queue_files(directory)[0]

    for path in (directory, file):
        os.chown(path, 65534, -1)
        text = await refusal(settings)
        assert f"{path} belongs to nobody and not to root" in text
        assert "setpriv --reuid=nobody" in text
        os.chown(path, 0, -1)

    await assert_as_left(settings, topic)


async def test_read_only(directory: Path, settings: SqliteSettings) -> None:
    """On a file system that is mounted read-only the store says so at once."""
    topic = await in_use(settings)
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    opened = (
        "import asyncio, sys; from remora.config import SqliteSettings; from remora.storage.sqlite import SqliteStore;"
        "asyncio.run(SqliteStore(SqliteSettings(directory=sys.argv[1])).__aenter__())"
    )

    command = with_mount(mount, directory, [sys.executable, "-c", opened, str(directory)])
    done = await asyncio.to_thread(run, command)

    assert done.returncode == 1
    assert "StoreMisconfigured" in done.stderr
    assert "read-only" in done.stderr.lower()
    await assert_as_left(settings, topic)


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600)


async def test_not_a_directory(tmp_path: Path) -> None:
    """A file in the directory's place, or in that of one above it, is refused by name."""
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        assert str(path) in await refusal(SqliteSettings(directory=str(path)))


@pytest.mark.guarantee("in-the-embedded-store")
async def test_newer_version(directory: Path, settings: SqliteSettings) -> None:
    """A store that a newer remora has migrated is refused with both versions, and not touched."""
    topic = await in_use(settings)
    file = queue_files(directory)[2]
    known = len(schema.MIGRATIONS)
    set_version(file, known + 7)

    text = await refusal(settings)

    assert str(file) in text
    assert f"version {known + 7}" in text
    assert f"up to {known}" in text
    assert version(file) == known + 7
    set_version(file, known)
    await assert_as_left(settings, topic)


async def test_older_version(directory: Path, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of an older version is migrated in each file, also when that was cut short before; nothing is lost."""
    topic = await in_use(settings)
    done = 0

    def cut_short(connection: sqlite3.Connection) -> None:
        nonlocal done
        connection.execute("ALTER TABLE topics ADD COLUMN later TEXT NOT NULL DEFAULT 'x'")
        done += 1
        if done == 2:
            raise KeyboardInterrupt

    known = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", (*known, cut_short))
    store = SqliteStore(settings)
    with pytest.raises(KeyboardInterrupt):
        store._files._prepare()
    assert [version(file) - len(known) for file in queue_files(directory)] == [1, 0, 0]

    async with SqliteStore(settings):
        pass

    assert [version(file) - len(known) for file in queue_files(directory)] == [1, 1, 1]
    await assert_as_left(settings, topic)


async def test_another_programs_file(directory: Path, settings: SqliteSettings) -> None:
    """A database that another program made is refused by name and not touched."""
    os.makedirs(directory, mode=0o700)
    strange = directory / "queues-000.db"
    with closing(sqlite3.connect(strange)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    strange.chmod(0o600)
    content = strange.read_bytes()

    text = await refusal(settings)

    assert str(strange) in text
    assert "another program" in text
    assert strange.read_bytes() == content


async def test_file_of_another_store(directory: Path, settings: SqliteSettings, tmp_path: Path) -> None:
    """A file that was copied from another store, or got another name, is refused by name."""
    topic = await in_use(settings)
    await in_use(SqliteSettings(directory=str(tmp_path / "other"), files=3))
    file = queue_files(directory)[1]
    own = file.read_bytes()

    for foreign in (tmp_path / "other" / file.name, queue_files(directory)[0]):
        file.write_bytes(foreign.read_bytes())
        assert str(file) in await refusal(settings)

    file.write_bytes(own)
    await assert_as_left(settings, topic)


@pytest.mark.guarantee("in-the-embedded-store")
async def test_missing_file(directory: Path, settings: SqliteSettings) -> None:
    """A store that has lost one of its files is refused by name: an empty one in its place would hide the loss."""
    topic = await in_use(settings)
    file = queue_files(directory)[1]
    aside = file.rename(directory.parent / file.name)

    assert str(file) in await refusal(settings)

    assert not file.exists()
    aside.rename(file)
    await assert_as_left(settings, topic)


@pytest.mark.guarantee("in-the-embedded-store")
async def test_killed_while_being_made(tmp_path: Path) -> None:
    """At whatever step the making of a store is cut short, the next start completes it."""
    command = [sys.executable, "-W", "error", "-m", "support.sqlite_victim", "open", str(tmp_path)]
    done = await asyncio.to_thread(run, command)
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    assert list(outcomes.values()) == ["killed"] * (len(outcomes) - 1) + ["answered"]
    assert len(outcomes) > 20, "there is more to be made than this"

    for step in outcomes:
        made = victim_settings(tmp_path / f"open-{step}")
        await assert_as_left(made, await in_use(made))


async def test_made_by_several_at_once(settings: SqliteSettings) -> None:
    """Stores that are opened side by side on a directory that is not there make one store."""
    stores = [SqliteStore(settings) for _ in range(4)]
    await asyncio.gather(*(store.__aenter__() for store in stores))
    try:
        topic = await stores[0].own_topics.create(own_topic("t"))
        for store in stores:
            assert await store.own_topics.find("t") == topic
    finally:
        await asyncio.gather(*(store.__aexit__() for store in stores))


async def test_opened_while_others_have_a_file_to_themselves(settings: SqliteSettings) -> None:
    """A file that somebody has to himself for a moment, after a crash or as the last to close it, is waited for."""
    topic = await in_use(settings)
    file = Path(settings.directory) / "queues-000.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.2, other.close)

        await assert_as_left(settings, topic)


def version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        return int(found)


def set_version(file: Path, number: int) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")


@pytest.mark.parametrize(
    ("change", "files"),
    [
        ("DELETE FROM meta", 1),
        ("UPDATE meta SET key = 'fi1es' WHERE key = 'files'", 3),
        ("DELETE FROM meta WHERE key = 'catalogue'", 3),
        ("UPDATE meta SET value = 'x' WHERE key = 'number'", 3),
        ("INSERT INTO meta VALUES ('directories', '{')", 3),
    ],
)
async def test_a_file_that_does_not_know_itself(directory: Path, change: str, files: int) -> None:
    """Facts of a file about itself that cannot be read are damage: the file is named, and where others are sound, they
    are used."""
    settings = SqliteSettings(directory=str(directory), files=files)
    await in_use(settings)
    with closing(sqlite3.connect(directory / "queues-000.db")) as connection, connection:
        connection.execute(change)

    try:
        async with SqliteStore(settings) as store:
            told = "; ".join(store.damaged.values())
    except StoreError as exc:
        told = str(exc)
    assert "queues-000.db is damaged: what it knows of" in told
