"""The embedded store when its processes die, its disk is full, and its files are damaged."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import zlib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devkit.processes.mounts import with_mount
from devkit.processes.programs import ENVIRONMENT, program
from devkit.waits import PATIENT_S, until
from remora.codec.sequence import number_of
from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files.connections import PAGE_BYTES
from remora.storage.sqlite.repair.checks import check_directory
from support import sqlite_peer
from support import sqlite_victim as victim
from support.stores import QUIET_S, by_shard, expire, own_topic, spread

DISK = 24 << 20
FILE_LIMIT = 6 << 20


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    """A directory of two files."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=2)


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs a module of the tests' own."""
    return [sys.executable, "-W", "error", "-m", f"support.{module}", *map(str, arguments)]


async def ended(command: Sequence[str]) -> str:
    """Run a program to its end, which must be a good one; what it printed."""
    done = await asyncio.to_thread(
        subprocess.run, command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


async def contents(store: SqliteStore, topic: Topic) -> list[list[bytes]]:
    """All that waits in each of a topic's shards."""
    return [[entry async for _, entry in store.inspection.dump(shard)] for shard in topic.all_shards()]


# ---------------------------------------------------------------------------------------- killed processes


@asynccontextmanager
async def after_deaths(kind: str, directory: Path) -> AsyncIterator[tuple[SqliteStore, list[tuple[Topic, bool]]]]:
    """The store after a process died at each step of this kind of request, and the topic of each.

    With each topic comes whether its request was answered, which the last one's was.
    """
    printed = await ended(python("sqlite_victim", kind, directory))
    outcomes = dict(line.split() for line in printed.splitlines())
    assert list(outcomes.values()) == ["killed"] * (len(outcomes) - 1) + ["answered"]
    assert len(outcomes) > 5, "a transaction has more steps than this"
    async with SqliteStore(victim.settings(directory)) as store:
        topics = []
        for step, outcome in outcomes.items():
            topic = await store.own_topics.find(f"{kind}-{step}")
            assert topic is not None
            topics.append((topic, outcome == "answered"))
        yield store, topics


def reservation_of(topic: Topic, directory: Path) -> str:
    return (directory.parent / f"{victim.RESERVED_AS}-{topic.name}").read_text()


async def reserved(store: SqliteStore, topic: Topic) -> list[int]:
    """Open reservations of each shard; where there are none, no bytes are reserved either."""
    found = [await store.inspection.stats(shard) for shard in topic.all_shards()]
    assert not any(each.reserved_bytes for each in found if not each.reservations)
    return [each.reservations for each in found]


@pytest.mark.guarantee("in-the-embedded-store")
async def test_killed_while_publishing(tmp_path: Path) -> None:
    """At whatever step a process dies: all events of its request are stored or none, and its repeat completes it."""
    async with after_deaths("publish", tmp_path / "store") as (store, topics):
        for topic, answered in topics:
            events = spread(topic, victim.EVENTS)
            found = await contents(store, topic)
            assert found in (by_shard(topic, events), [[], [], []])
            stored = any(found)
            assert stored or not answered

            again = await store.ingest.publish(topic, events, IdempotencyKey("key", victim.DIGEST))

            assert again == PublishResult(victim.EVENTS, repeated=stored)
            assert await contents(store, topic) == by_shard(topic, events)


@pytest.mark.guarantee("order-over-all-shards")
async def test_killed_while_numbering(tmp_path: Path) -> None:
    """At whatever step a process dies: events and their numbers are stored or neither, and the next ones follow."""
    async with after_deaths("number", tmp_path / "store") as (store, topics):
        for topic, answered in topics:
            numbered = await store.own_topics.find(f"{topic.name}-seq")
            assert numbered is not None
            before = await store.own_topics.sequence(numbered)
            assert before.tail in (victim.EVENTS, 2 * victim.EVENTS)
            assert before.tail == 2 * victim.EVENTS or not answered

            await store.ingest.publish(numbered, victim.entries(numbered))

            found = [number_of(entry) for entries in await contents(store, numbered) for entry in entries]
            assert sorted(each or 0 for each in found) == list(range(1, before.tail + victim.EVENTS + 1))


async def test_killed_while_reserving(tmp_path: Path) -> None:
    """At whatever step a process dies: room is reserved in all shards or in none, and what nobody uses comes back."""
    async with after_deaths("reserve", tmp_path / "store") as (store, topics):
        for topic, answered in topics:
            found = await reserved(store, topic)
            assert found in ([1, 1, 1], [0, 0, 0])
            assert any(found) or not answered

            token = await store.locks.acquire(topic.shard(1), "w", QUIET_S)
            assert isinstance(token, LockToken)
            await expire(store, token, -1)

            assert await reserved(store, topic) == [0, 0, 0]


async def test_killed_while_committing(tmp_path: Path) -> None:
    """At whatever step a process dies: all events are stored or the reservation is open, and a repeat completes it."""
    directory = tmp_path / "store"
    async with after_deaths("commit", directory) as (store, topics):
        for topic, answered in topics:
            events = spread(topic, victim.EVENTS)
            found = await contents(store, topic)
            stored = any(found)
            assert stored or not answered
            assert found == (by_shard(topic, events) if stored else [[], [], []])
            assert await reserved(store, topic) == ([0, 0, 0] if stored else [1, 1, 1])

            again = await store.ingest.commit(topic, reservation_of(topic, directory), events, victim.DIGEST)

            assert again == PublishResult(victim.EVENTS, repeated=stored)
            assert await contents(store, topic) == by_shard(topic, events)
            assert await reserved(store, topic) == [0, 0, 0]


async def test_killed_while_aborting(tmp_path: Path) -> None:
    """At whatever step a process dies: the room of all shards came back or none, and a repeat completes it."""
    directory = tmp_path / "store"
    async with after_deaths("abort", directory) as (store, topics):
        for topic, answered in topics:
            found = await reserved(store, topic)
            assert found in ([1, 1, 1], [0, 0, 0])
            assert not any(found) or not answered

            await store.ingest.abort(topic, reservation_of(topic, directory))

            assert await reserved(store, topic) == [0, 0, 0]
            assert await contents(store, topic) == [[], [], []]


async def test_killed_while_appending(tmp_path: Path) -> None:
    """At whatever step a process dies: a queue has all entries of a commit or its reservation, and never both."""
    async with after_deaths("append", tmp_path / "store") as (store, topics):
        for topic, answered in topics:
            payloads = by_shard(topic, spread(topic, victim.EVENTS))[0]
            found = (await contents(store, topic))[0]
            assert found in ([], payloads)
            assert found or not answered
            stats = await store.inspection.stats(topic.shard(0))
            assert (stats.entries, stats.reservations) == ((len(payloads), 0) if found else (0, 1))
            assert bool(stats.used_bytes) != bool(stats.reserved_bytes)


@pytest.mark.guarantee("in-the-embedded-store")
async def test_killed_while_removing(tmp_path: Path) -> None:
    """At whatever step a process dies: all of a removal is done or nothing, and the next holder goes on from there."""
    async with after_deaths("remove", tmp_path / "store") as (store, topics):
        for topic, answered in topics:
            shard = topic.shard(0)
            all_of_it = by_shard(topic, spread(topic, victim.EVENTS))[0]
            found = (await contents(store, topic))[0]
            assert found in (all_of_it, all_of_it[victim.REMOVED :])
            assert found != all_of_it or not answered
            assert (await store.inspection.stats(shard)).entries == len(found)

            token = await store.locks.acquire(shard, "w", QUIET_S)
            assert isinstance(token, LockToken), "the lock of a dead process was not free"
            page = await store.queue.read(token, b"", 100)
            assert page.entries == found
            await store.queue.remove(token, page.positions[-1], len(found), Tally(delivered=len(found)))

            assert (await store.inspection.stats(shard)).used_bytes == 0


@pytest.mark.guarantee("in-the-embedded-store")
async def test_killed_while_parking(tmp_path: Path) -> None:
    """At whatever step a process dies: a letter is stored whole or not at all, and parking again keeps one."""
    async with after_deaths("store", tmp_path / "store") as (store, topics):
        for topic, answered in topics:
            token = await store.locks.acquire(topic.shard(0), "w", QUIET_S)
            assert isinstance(token, LockToken)
            expected = victim.letter(token)
            found = [letter async for letter in store.letters.stored(topic.name)]
            assert found in ([], [expected])
            assert found or not answered

            await store.letters.store(token, expected)

            assert [letter async for letter in store.letters.stored(topic.name)] == [expected]


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("kind", ["settle", "give_back"])
async def test_killed_while_the_log_is_shortened(tmp_path: Path, kind: str) -> None:
    """At whatever step a process dies: each queue has its entries once and in order, and they are found sound."""
    removed = victim.REMOVED if kind == "settle" else victim.EVENTS
    async with after_deaths(kind, tmp_path / "store") as (store, topics):
        for topic, _ in topics:
            first, *others = by_shard(topic, spread(topic, victim.EVENTS))
            assert await contents(store, topic) == [first[removed:], *others]
        for report in await asyncio.to_thread(check_directory, tmp_path / "store"):
            assert report.problems == []


async def test_killed_while_making_a_topic(tmp_path: Path) -> None:
    """At whatever step a process dies: the topic is there with all its queues or not at all, and can be made then."""
    async with after_deaths("create", tmp_path / "store") as (store, topics):
        for topic, answered in topics:
            name = f"{topic.name}-made"
            made = await store.own_topics.find(name)
            assert made is not None or not answered

            made = made or await store.own_topics.create(own_topic(name, victim.SHARDS))

            await store.ingest.publish(made, spread(made, 9))
            assert await contents(store, made) == by_shard(made, spread(made, 9))


@pytest.mark.guarantee("order-per-object")
async def test_killed_while_changing_the_shards(tmp_path: Path) -> None:
    """At whatever step a process dies: the topic has its former layout, or both as a whole, and a repeat of the change
    completes it; no entry moves."""
    directory = tmp_path / "store"
    async with after_deaths("reshard", directory) as (store, topics):
        before = own_topic("t", victim.SHARDS)
        former = by_shard(before, spread(before, victim.EVENTS))
        for topic, answered in topics:
            assert (topic.generation, topic.shards) in ((0, victim.SHARDS), (1, victim.RESHARDED))
            assert topic.generation or not answered

            changed = await store.own_topics.reshard(topic, victim.RESHARDED)
            events = spread(changed, victim.EVENTS)
            await store.ingest.publish(changed, events)

            assert await contents(store, changed) == former + by_shard(changed, events)
        for report in await asyncio.to_thread(check_directory, directory):
            assert report.problems == []


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_killed_while_forgetting_a_layout(tmp_path: Path) -> None:
    """At whatever step a process dies: the former queues are there or their final ledgers, never both or neither, and
    any other process finishes it."""
    directory = tmp_path / "store"
    async with after_deaths("forget", directory) as (store, topics):
        for topic, answered in topics:
            is_there = bool(topic.former)
            assert not is_there or not answered
            assert len(await store.own_topics.former_queues(topic)) == (0 if is_there else victim.SHARDS)

            assert await store.own_topics.forget_former(topic) == is_there

            ended = await store.own_topics.former_queues(topic)
            assert sum(each.removed.delivered for each in ended) == victim.EVENTS
            token = await store.locks.acquire(topic.shard(0), "w", QUIET_S)
            assert isinstance(token, LockToken)
            assert (await store.queue.read(token, b"", 1)).entries
        for report in await asyncio.to_thread(check_directory, directory):
            assert report.problems == []


async def test_killed_while_discarding_a_topic(tmp_path: Path) -> None:
    """At whatever step a process dies: the topic is whole or gone, and what it has left goes with the next start."""
    directory = tmp_path / "store"
    printed = await ended(python("sqlite_victim", "discard", directory))
    outcomes = dict(line.split() for line in printed.splitlines())
    async with SqliteStore(victim.settings(directory)) as store:
        whole = []
        for step, outcome in outcomes.items():
            if topic := await store.own_topics.find(f"discard-{step}"):
                assert outcome == "killed"
                assert await contents(store, topic) == by_shard(topic, spread(topic, victim.EVENTS))
                whole.append(topic)
        assert 5 < len(whole) < len(outcomes) - 5, "it died neither before nor after the topic was gone"

        def stored(connection: sqlite3.Connection) -> int:
            (count,) = connection.execute("SELECT count(*) FROM settled").fetchone()
            return int(count)

        async def all_gone() -> bool:
            return await store._files.file_of("t").read(stored) == len(whole) * victim.EVENTS

        await until(all_gone)


# ------------------------------------------------------------------------------------------- two processes


@pytest.mark.guarantee("in-the-embedded-store")
async def test_two_processes(settings: SqliteSettings) -> None:
    """Two processes store and deliver on one directory: everything is delivered once, and in order of each one."""
    requests = 150
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t", 4))
        processes = [await peer(settings, topic, me, requests) for me in ("a", "b")]
        try:
            async with asyncio.timeout(3 * PATIENT_S):
                expected = 2 * requests * sqlite_peer.PER_REQUEST
                delivered = sorted(await delivered_by(processes, expected))
        finally:
            errors = [await stopped(process) for process in processes]
        assert errors == [b"", b""]
        assert await contents(store, topic) == [[]] * 4

    for number, shard in enumerate(topic.all_shards()):
        here = [(position, payload) for queue, position, payload in delivered if queue == shard.queue]
        assert [position for position, _ in here] == list(range(len(here)))
        for me in ("a", "b"):
            sent = [
                each.payload
                for i in range(requests)
                for each in sqlite_peer.request(topic, me, i)
                if each.shard == number
            ]
            assert [payload for _, payload in here if payload.startswith(me.encode())] == sent


async def peer(settings: SqliteSettings, topic: Topic, me: str, requests: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *python("sqlite_peer", settings.directory, topic.name, me, requests),
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def delivered_by(processes: Sequence[Process], expected: int) -> list[tuple[str, int, bytes]]:
    """Queue, position and payload of each entry that the processes removed, as soon as there are that many."""
    found: list[tuple[str, int, bytes]] = []
    enough = asyncio.Event()

    async def listen(process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            queue, position, payload = line.split()
            found.append((queue.decode(), Position.parse(position.decode()).offset, payload))
            if len(found) >= expected:
                enough.set()
        enough.set()  # it ended early, and its errors say why

    listening = [asyncio.create_task(listen(process)) for process in processes]
    await enough.wait()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    await asyncio.gather(*listening)
    return found


async def stopped(process: Process) -> bytes:
    """End a process by ending its input, or else by force; what it had to complain about."""
    try:
        async with asyncio.timeout(PATIENT_S):
            _, errors = await process.communicate()
            return errors
    except TimeoutError:
        process.kill()
        return b"it did not end: " + (await process.communicate())[1]


# -------------------------------------------------------------------------------------------- no room left


@pytest.mark.guarantee("in-the-embedded-store")
async def test_disk_full(tmp_path: Path) -> None:
    """On a full disk events are refused whole, delivering goes on, and what it removes makes room for new events."""
    assert await ended(on_small_disk(tmp_path, "store")) == "as told\n"


async def test_disk_full_of_something_else(tmp_path: Path) -> None:
    """When something else has taken all room, events are refused whole, and taken when there is room again."""
    assert await ended(on_small_disk(tmp_path, "store", "something-else")) == "as told\n"


def on_small_disk(disk: Path, *names: str) -> list[str]:
    """The command that tells the story in these places on a disk of its own."""
    mount = f'mount -t tmpfs -o size={DISK},mode=0700 tmpfs "$0"'
    return with_mount(mount, disk, python("full_disk", *(disk / name for name in names)))


@pytest.mark.guarantee("in-the-embedded-store")
async def test_file_size_limit(tmp_path: Path) -> None:
    """Where a file may not grow any more it is as on a full disk."""
    limited = [program("prlimit", "util-linux"), f"--fsize={FILE_LIMIT}"]
    assert await ended([*limited, *python("full_disk", tmp_path / "store")]) == "as told\n"


# ------------------------------------------------------------------------------------------ damaged files


async def in_two_files(store: SqliteStore) -> tuple[Topic, Topic]:
    """Two topics with many entries, one in the first file and one in the second."""
    names: dict[int, str] = {}
    for i in range(100):
        names.setdefault(zlib.crc32(b"t-%d" % i) % 2, f"t-{i}")
    topics = [await store.own_topics.create(own_topic(names[number])) for number in (0, 1)]
    for topic in topics:
        for i in range(10):
            await store.ingest.publish(topic, large(topic, i))
    return topics[0], topics[1]


def large(topic: Topic, number: int) -> list[RoutedEvent]:
    return [each._replace(payload=each.payload * 100) for each in spread(topic, 60, f"{number}-")]


def overwrite(path: Path, start: int, end: int) -> None:
    """Damage a file from one byte up to another."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * (end - start))


async def assert_damaged(store: SqliteStore, topic: Topic, path: Path) -> None:
    """Every kind of call on this topic says that this file is damaged."""
    shard, events = topic.first_shard, spread(topic, 3)
    token = LockToken(shard, "w", "incarnation")
    for attempt in (
        lambda: contents(store, topic),
        lambda: store.ingest.publish(topic, events),
        lambda: store.ingest.reserve(topic, []),
        lambda: store.ingest.commit(topic, f"{topic.name}.0", events, b"digest"),
        lambda: store.ingest.abort(topic, f"{topic.name}.0"),
        lambda: store.locks.acquire(shard, "w", QUIET_S),
        lambda: store.queue.read(token, b"", 10),
        lambda: store.queue.remove(token, b"0/0", 0, Tally()),
        lambda: store.inspection.stats(shard),
        lambda: store.own_topics.find(topic.name),
    ):
        with pytest.raises(StoreDamaged, match=path.name):
            await attempt()
    assert list(store.damaged) == [str(path)]


async def assert_sound(store: SqliteStore, topic: Topic) -> None:
    """This topic's events are all there, and it takes and gives as ever."""
    expected = by_shard(topic, *(large(topic, i) for i in range(10)))
    assert await contents(store, topic) == expected
    assert await store.ingest.publish(topic, spread(topic, 3)) == PublishResult(3)
    token = await store.locks.acquire(topic.shard(0), "w", QUIET_S)
    assert isinstance(token, LockToken)
    page = await store.queue.read(token, b"", 5)
    assert page.entries == expected[0][:5]
    await store.queue.remove(token, page.positions[-1], 5, Tally(delivered=5))
    assert topic.first_shard in await store.catalog.shards()
    assert (await store.catalog.topics())[topic.first_shard] == topic


@pytest.mark.guarantee("in-the-embedded-store")
async def test_corrupted_pages(settings: SqliteSettings) -> None:
    """Where pages of one file are damaged its topics stop and say so, and the topics of the other file go on."""
    async with SqliteStore(settings) as store:
        hurt, sound = await in_two_files(store)
    path = Path(settings.directory) / "queues-000.db"
    size = path.stat().st_size
    overwrite(path, size // 2 // PAGE_BYTES * PAGE_BYTES, size)
    told: list[str] = []

    async with SqliteStore(settings, lambda connected, text: told.append(text)) as store:
        assert not store.damaged
        with pytest.raises(StoreDamaged):
            await contents(store, hurt)

        await assert_damaged(store, hurt, path)
        await assert_sound(store, sound)

    assert any(path.name in text for text in told)


async def test_corrupted_where_events_are_added(settings: SqliteSettings) -> None:
    """Damage that a request meets while it stores is told to all who wait, and nothing of it is stored."""
    async with SqliteStore(settings) as store:
        hurt, sound = await in_two_files(store)
    path = Path(settings.directory) / "queues-000.db"
    size = path.stat().st_size
    overwrite(path, size // 4 // PAGE_BYTES * PAGE_BYTES, size)

    async with SqliteStore(settings) as store:
        answers = await asyncio.gather(
            *(store.ingest.publish(hurt, spread(hurt, 30, f"{i}")) for i in range(5)), return_exceptions=True
        )

        assert [type(each) for each in answers] == [StoreDamaged] * 5
        await assert_damaged(store, hurt, path)
        await assert_sound(store, sound)


async def test_corrupted_header(settings: SqliteSettings) -> None:
    """A file whose header is damaged stops its own topics alone, also when it is damaged before it is opened."""
    async with SqliteStore(settings) as store:
        hurt, sound = await in_two_files(store)
    path = Path(settings.directory) / "queues-000.db"
    overwrite(path, 0, 100)

    async with SqliteStore(settings) as store:
        await assert_damaged(store, hurt, path)
        await assert_sound(store, sound)
