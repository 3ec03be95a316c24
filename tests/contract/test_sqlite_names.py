"""Names that somebody takes from what SQLite has beside a file, while processes use it."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.test_sqlite_sharing import commit_there, holder
from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.errors import StoreError, StoreUnavailable
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite import store as sqlite_store
from remora.storage.sqlite.files import directory, names
from remora.storage.sqlite.files.refusals import NameLost
from support.stores import own_topic, spread

LOG, INDEX = "queues-000.db-wal", "queues-000.db-shm"
SECOND = {LOG: "queues-000.db-room", INDEX: "queues-000.db-index"}

pytestmark = pytest.mark.guarantee("in-the-embedded-store")


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    """A directory of one file."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=1)


@pytest.fixture
async def store(settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """An open store, which looks after itself more often than it usually does."""
    monkeypatch.setattr(sqlite_store, "LOOK_EVERY_S", 0.02)
    async with SqliteStore(settings) as opened:
        yield opened


async def count(store: SqliteStore, topic: Topic) -> int:
    """How many entries a topic has, as soon as the store can be asked: what it opens anew may take events before."""
    found = 0

    async def told() -> bool:
        nonlocal found
        try:
            found = len([entry async for entry in store.inspection.dump(topic.shard(0))])
        except StoreUnavailable:
            return False
        return True

    await until(told)
    return found


async def stored(store: SqliteStore, topic: Topic, number: int) -> int:
    """Store so many events as soon as the store takes them; how often it refused them."""
    refused = 0

    async def taken() -> bool:
        nonlocal refused
        try:
            await store.ingest.publish(topic, spread(topic, number))
        except StoreUnavailable:
            refused += 1
            return False
        return True

    await until(taken)
    return refused


@pytest.mark.parametrize("name", [LOG, INDEX])
async def test_a_process_that_opens_a_file_whose_names_were_removed(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It works on the same log by the same index as those that have the file open: each sees what the other commits,
    and nothing that was answered for is lost."""
    monkeypatch.setattr(sqlite_store, "LOOK_EVERY_S", 3600.0)
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, spread(topic, 3))
    path = Path(settings.directory) / name
    before = path.stat().st_ino
    path.unlink()

    async with holder(settings, topic) as process:
        await commit_there(process)
        assert path.stat().st_ino == before
        assert await count(store, topic) == 4
        await store.ingest.publish(topic, spread(topic, 2))
        await commit_there(process)

    assert await count(store, topic) == 7
    async with SqliteStore(settings) as other:
        assert await count(other, topic) == 7


@pytest.mark.parametrize("name", [LOG, INDEX])
async def test_what_is_removed_gets_its_name_back_with_the_next_transaction(
    store: SqliteStore, settings: SqliteSettings, name: str
) -> None:
    """Nothing is refused meanwhile, and it is the same file as before."""
    topic = await store.own_topics.create(own_topic("t", 1))
    path = Path(settings.directory) / name
    before = path.stat().st_ino
    path.unlink()

    await store.ingest.publish(topic, spread(topic, 2))

    assert path.stat().st_ino == before


@pytest.mark.parametrize("name", [LOG, INDEX])
async def test_a_file_is_opened_anew_where_neither_name_is_left(
    store: SqliteStore, settings: SqliteSettings, tmp_path: Path, name: str
) -> None:
    """What was committed stays, also through a crash; what comes meanwhile is refused, and soon taken again."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, spread(topic, 3))
    for each in (SECOND[name], name):
        (Path(settings.directory) / each).unlink()

    await stored(store, topic, 2)

    assert await count(store, topic) == 5
    crashed = tmp_path / "crashed"
    shutil.copytree(settings.directory, crashed, ignore=shutil.ignore_patterns("owners"))
    async with SqliteStore(replace(settings, directory=str(crashed))) as again:
        assert await count(again, topic) == 5


@pytest.mark.parametrize("name", [LOG, INDEX])
async def test_nobody_opens_a_file_without_names_while_others_have_it(
    settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is refused by name until they let it go, and nothing of theirs is lost."""
    monkeypatch.setattr(directory, "_BUSY_FOR_S", 0.1)
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        await store.ingest.publish(topic, spread(topic, 3))
        async with holder(settings, topic) as process:
            await commit_there(process)
    async with holder(settings, topic) as process:
        process.send_signal(signal.SIGSTOP)
        for each in (SECOND[name], name):
            (Path(settings.directory) / each).unlink()

        with pytest.raises(StoreError, match=rf"{name} was removed while others have the file open"):
            async with SqliteStore(settings):
                pass

        process.kill()
        await process.wait()
    async with SqliteStore(settings) as again:
        assert await count(again, topic) == 4


async def test_who_looks_is_told_at_once_that_a_name_is_lost(
    settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look, which runs in the event loop, does not wait there for those who have the file open; a name that can be
    given back is."""
    monkeypatch.setattr(sqlite_store, "LOOK_EVERY_S", 3600.0)
    folder = Path(settings.directory)
    async with SqliteStore(settings) as store:
        await store.own_topics.create(own_topic("t", 1))
        (folder / LOG).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda _: pytest.fail("the event loop waits"))
            patch.setattr(names, "give_name_back", lambda _: False)
            with pytest.raises(NameLost):
                names.restore_names(folder / "queues-000.db")

        names.restore_names(folder / "queues-000.db")

        assert (folder / LOG).samefile(folder / SECOND[LOG])


@pytest.mark.parametrize("name", [LOG, INDEX])
async def test_another_file_in_the_place_of_ours_is_not_worked_beside(
    store: SqliteStore, settings: SqliteSettings, name: str
) -> None:
    """Somebody who knows nothing of a second name has made it: what comes is refused until the file is opened anew."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, spread(topic, 3))
    another = Path(settings.directory) / "another"
    another.touch(0o600)
    another.replace(Path(settings.directory) / name)

    assert await stored(store, topic, 2) > 0
    assert await count(store, topic) == 5


async def test_what_only_a_lost_log_has_is_copied_before_it_is_let_go(
    store: SqliteStore, settings: SqliteSettings
) -> None:
    """Though another process has it open, too, which is frozen and then killed: nothing that was committed is lost."""
    topic = await store.own_topics.create(own_topic("t", 1))
    async with holder(settings, topic) as process:
        await store.ingest.publish(topic, spread(topic, 3))
        await commit_there(process)
        process.send_signal(signal.SIGSTOP)
        for each in (SECOND[LOG], LOG):
            (Path(settings.directory) / each).unlink()

        with pytest.raises(StoreUnavailable):
            await store.ingest.publish(topic, spread(topic, 2))
        process.kill()
        await process.wait()

    await stored(store, topic, 1)
    assert await count(store, topic) == 5
