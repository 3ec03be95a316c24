"""Room on the disk for what delivery needs: others take every byte that is left, and delivery goes on."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.entries.entries import delivered
from devkit.processes.mounts import TMPFS, ext4, with_mount
from devkit.processes.programs import ENVIRONMENT
from devkit.testing.cases import cases
from remora.config import SqliteSettings
from remora.model.errors import StoreFull
from remora.model.ingest import RoutedEvent
from remora.model.topic import Topic
from remora.policy.ingest.disk_room import Disk
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import file as file_module
from remora.storage.sqlite.files import room
from remora.storage.sqlite.files.connections import PAGE_BYTES
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.repair.checks import check_directory
from remora.storage.sqlite.tables.recent import free_pages
from support.stores import change, held, own_topic, spread

MEGABYTES = 32
FULL, WITH_ROOM = Disk(100 << 30, 0), Disk(100 << 30, 50 << 30)
DROP_BALLAST = "DELETE FROM log_entries WHERE log < 0"


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("block", cases(4096, more=[0, 1024]), ids=["ext4", "tmpfs", "ext4 of small blocks"])
async def test_delivery_goes_on_where_others_take_the_disk(block: int, tmp_path: Path) -> None:
    """With no byte free, and none left free for a moment, whatever delivery does succeeds, also after a start; events
    are refused and the store says so; and all is well again when there is room."""
    mount = ext4(MEGABYTES, block) if block else TMPFS.format(megabytes=MEGABYTES)
    disk = tmp_path / "disk"
    disk.mkdir()
    story = [sys.executable, "-W", "error", "-m", "support.crowded_disk", str(disk / "store"), str(disk / "others")]

    done = await asyncio.to_thread(
        subprocess.run, with_mount(mount, disk, story), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )

    assert done.stdout == "as told\n", done.stderr


@pytest.mark.guarantee("in-the-embedded-store")
async def test_keys_of_requests_give_their_room_back_on_a_full_disk(tmp_path: Path) -> None:
    """With no byte free, requests with idempotency keys are refused once the rows of earlier ones have taken all room,
    a repeat is recognised, and when those rows are old enough requests find their room, though the disk stays full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    story = [sys.executable, "-W", "error", "-m", "support.crowded_keys", str(disk / "store"), str(disk / "others")]

    done = await asyncio.to_thread(
        subprocess.run, with_mount(TMPFS.format(megabytes=MEGABYTES), disk, story),
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout == "as told\n", done.stderr


async def test_a_store_is_ready_once_an_event_can_take_the_ballast(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where delivery has given the ballast up and freed pages since, nothing says that the disk is full: so events
    come, and the first of them takes the ballast again."""
    topic = await store.own_topics.create(own_topic("t", 1))
    monkeypatch.setattr(room, "disk_of", lambda _: FULL)
    (file,) = store._files.all

    change(configured, DROP_BALLAST)
    file.look_at_room(FULL)
    was_short = file.is_short_of_room
    change(configured, "CREATE TABLE large (data)", f"INSERT INTO large VALUES (zeroblob({4 << 20}))")
    change(configured, "DELETE FROM large")
    file.look_at_room(FULL)

    assert (was_short, file.is_short_of_room) == (True, False)
    await store.ingest.publish(topic, spread(topic, 1))
    assert has_ballast(configured)


async def test_a_ballast_that_another_process_has_given_up_is_taken_again(
    store: SqliteStore, configured: SqliteSettings
) -> None:
    """The next event takes it, though this process saw it there at the event before."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, spread(topic, 1))
    change(configured, DROP_BALLAST)

    await store.ingest.publish(topic, spread(topic, 1))

    assert has_ballast(configured)


async def test_events_are_stored_without_reading_the_ballast(configured: SqliteSettings) -> None:
    """Pages of it that cannot be read keep no event from being stored: no transaction reads them."""
    async with SqliteStore(configured) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        await store.ingest.publish(topic, spread(topic, 1))
    path = Path(configured.directory) / "queues-000.db"
    content = path.read_bytes()
    pages = [content[begin : begin + PAGE_BYTES] for begin in range(0, len(content), PAGE_BYTES)]
    of_ballast = [place for place, page in enumerate(pages) if any(page[:4]) and not any(page[4:])]
    assert len(of_ballast) > 8
    path.write_bytes(b"".join(b"\xff" * PAGE_BYTES if i in of_ballast else page for i, page in enumerate(pages)))

    async with SqliteStore(configured) as store:
        await store.ingest.publish(topic, spread(topic, 1))

        assert len([entry async for entry in store.inspection.dump(topic.shard(0))]) == 2


async def test_a_refusal_is_remembered_where_the_disk_shows_room(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that a quota refuses make the store say at once that it is full, though the disk shows room; until none
    was refused for a while, or until the disk itself tells how it is."""
    await store.own_topics.create(own_topic("t", 1))
    (file,) = store._files.all

    await refused(file)
    assert list(store.failing) == ["full"]
    file.look_at_room(WITH_ROOM)
    assert list(store.failing) == ["full"]
    file.look_at_room(FULL)
    file.look_at_room(WITH_ROOM)
    assert not store.failing
    monkeypatch.setattr(file_module, "_REFUSED_FOR_S", 0.0)
    await refused(file)
    assert list(store.failing) == ["full"]
    file.look_at_room(WITH_ROOM)
    assert not store.failing


async def test_the_files_of_a_directory_take_no_more_than_their_bound(configured: SqliteSettings) -> None:
    """Events are refused by the option's name before the files take more, what waits is delivered meanwhile, and its
    room takes new events."""
    bounded = replace(configured, directory_bytes=16 << 20, queue_bytes=1 << 30)
    async with SqliteStore(bounded) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        events = [RoutedEvent(0, b"bkt:k", bytes(4 << 10)) for _ in range(50)]
        with pytest.raises(StoreFull, match=r"what sqlite\.directory_bytes allows, save for what delivery needs"):
            await publish_most(store, topic, events)
        assert 4 << 20 < taken(configured) <= 16 << 20
        (file,) = store._files.all
        await store._files.look()
        assert store.connected
        assert "sqlite.directory_bytes" in store.failing["full"]
        token = await held(store, topic.shard(0))
        while (page := await store.queue.read(token, b"", 100)).entries:
            await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
        await file.write(free_pages, upkeep=True)

        await store.ingest.publish(topic, events)

        assert taken(configured) <= 16 << 20


async def publish_most(store: SqliteStore, topic: Topic, events: Sequence[RoutedEvent]) -> None:
    """Publish until it is refused, or as often as no bound of a few megabytes allows."""
    for _ in range(100):
        await store.ingest.publish(topic, events)


def taken(configured: SqliteSettings) -> int:
    """The bytes of a directory's files."""
    found = [each.stat() for each in Path(configured.directory).iterdir()]
    return sum({each.st_ino: each.st_size for each in found}.values())


async def refused(file: File) -> None:
    """Have a file refuse a write for a quota."""

    def over_quota(_: sqlite3.Connection) -> None:
        raise StoreFull("Disk quota exceeded")

    with pytest.raises(StoreFull):
        await file.write(over_quota)


async def test_a_check_of_a_store_that_is_not_in_use_keeps_the_room_of_its_log(configured: SqliteSettings) -> None:
    """The log has the same room after it, and is found sound with what is in the file."""
    directory = Path(configured.directory)
    async with SqliteStore(configured) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        await store.ingest.publish(topic, spread(topic, 9))
    kept = (directory / "queues-000.db-room").stat()

    (report,) = check_directory(directory)

    assert (report.entries, report.problems) == (9, [])
    async with SqliteStore(configured) as store:
        await store.ingest.publish(topic, spread(topic, 1))
        log = (directory / "queues-000.db-wal").stat()
        assert (log.st_ino, log.st_size) == (kept.st_ino, kept.st_size)


async def test_a_log_whose_name_is_removed_is_found_after_a_crash(
    store: SqliteStore, configured: SqliteSettings, tmp_path: Path
) -> None:
    """The next transaction gives it its name back: what was answered for before and after is in what a crash leaves."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, spread(topic, 3))
    directory, crashed = Path(configured.directory), tmp_path / "crashed"
    (directory / "queues-000.db-wal").unlink()

    await store.ingest.publish(topic, spread(topic, 2))

    shutil.copytree(directory, crashed, ignore=shutil.ignore_patterns("owners", "*-room"))
    async with SqliteStore(replace(configured, directory=str(crashed))) as again:
        assert len([entry async for entry in again.inspection.dump(topic.shard(0))]) == 5


def has_ballast(configured: SqliteSettings) -> bool:
    with closing(sqlite3.connect(Path(configured.directory) / "queues-000.db")) as connection:
        return bool(connection.execute("SELECT count(*) FROM log_entries WHERE log < 0").fetchone()[0])
