"""The log of an embedded store's file: what is read across it and what has settled, and what becomes of its length."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.entries.entries import delivered, raw_entry
from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged, StoreError, StoreUnavailable
from remora.model.ingest import RoutedEvent
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.policy.ingest import group_commit
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files.connections import PAGE_BYTES
from remora.storage.sqlite.repair.checks import check_directory
from remora.storage.sqlite.tables import recent, schema
from support.sqlite import append
from support.stores import by_shard, change, held, own_topic, settle_all, spread

EVENTS = 60
BALLAST_BYTES = 1 << 20


async def some_settled(store: SqliteStore, topic: Topic, requests: int = 4) -> list[list[bytes]]:
    """Events of several transactions, the first half of which has settled; what each shard is to have."""
    for number in range(requests):
        await store.ingest.publish(topic, spread(topic, EVENTS, f"{number}-"))
        if number == requests // 2 - 1:
            await store._files.file_of(topic.name).write(settle_all)
    return by_shard(topic, *(spread(topic, EVENTS, f"{number}-") for number in range(requests)))


async def drained(store: SqliteStore, token: LockToken, at_once: int) -> list[bytes]:
    """All entries of a shard, read and removed so many at a time."""
    found: list[bytes] = []
    while (page := await store.queue.read(token, b"", at_once)).entries:
        await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
        found += page.entries
    return found


def rows(configured: SqliteSettings, sql: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(Path(configured.directory) / "queues-000.db")) as connection:
        return connection.execute(sql).fetchall()


def problems(configured: SqliteSettings) -> Sequence[str]:
    return [each.text for report in check_directory(Path(configured.directory)) for each in report.problems]


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("at_once", [1, 7, 20, 1024])
async def test_pages_pass_from_what_has_settled_to_the_log(
    store: SqliteStore, configured: SqliteSettings, at_once: int
) -> None:
    """However many entries are read and removed at a time: each shard has all of its own once, in order, with the
    positions without a gap; the books are right, and no byte is counted as used at the end."""
    topic = await store.own_topics.create(own_topic("t", 3))
    expected = await some_settled(store, topic)
    assert problems(configured) == []

    for shard, wanted in zip(topic.all_shards(), expected, strict=True):
        token = await held(store, shard)
        page = await store.queue.read(token, b"0/15", 50)
        assert (page.positions[0], page.entries) == (b"0/15", wanted[15:65])
        assert (await store.ledger.balance(shard)).pending == len(wanted)
        assert await drained(store, token, at_once) == wanted
        assert (await store.inspection.stats(shard)).used_bytes == 0
        assert (await store.ledger.balance(shard)).unaccounted == 0
    assert problems(configured) == []


async def test_a_commit_is_one_row_however_many_shards_it_has(store: SqliteStore, configured: SqliteSettings) -> None:
    """Events for 64 shards are stored by one row of the log, as those for one are."""
    wide, narrow = [await store.own_topics.create(own_topic(f"t{n}", n)) for n in (64, 1)]

    for topic in (wide, narrow):
        before = len(rows(configured, "SELECT id FROM recent"))
        await store.ingest.publish(topic, spread(topic, 64))
        assert len(rows(configured, "SELECT id FROM recent")) == before + 1


async def test_a_large_commit_is_several_rows(store: SqliteStore, configured: SqliteSettings) -> None:
    """Entries of a transaction that are long together lie in several rows, each entry whole, and are read in order."""
    topic = await store.own_topics.create(own_topic("t", 1))
    payloads = [bytes([number]) * 30_000 for number in range(20)]

    await append(store, topic.shard(0), *payloads)

    assert len(rows(configured, "SELECT id FROM recent")) > 3
    token = await held(store, topic.shard(0))
    assert (await store.queue.read(token, b"", 1024)).entries == payloads


async def test_one_that_waits_keeps_nothing_of_others(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a shard is stuck and the others take in and deliver fifty times as much as the log may hold, the log stays
    within its bound, and the file within what the stuck shard holds, what the others have yet, and a few times it."""
    monkeypatch.setattr(recent, "LONGEST", 128 << 10)
    monkeypatch.setattr(recent, "AT_ONCE", 64 << 10)
    topic = await store.own_topics.create(own_topic("t", 16))
    stuck, *others = topic.all_shards()
    tokens = [await held(store, shard) for shard in others]
    waiting: list[bytes] = []

    for number in range(200):
        events = [each._replace(payload=each.payload.ljust(2500)) for each in spread(topic, 16, f"{number}-")]
        await store.ingest.publish(topic, events)
        waiting.append(events[0].payload)
        for token in tokens if number % 50 == 49 else ():
            await drained(store, token, 1024)

    (file,) = store._files.all
    ((oldest, newest),) = rows(configured, "SELECT min(id), max(id) FROM recent")
    assert newest > 50 * recent.LONGEST
    assert newest - oldest <= 2 * recent.LONGEST
    ((pages,),) = rows(configured, "PRAGMA page_count")
    backlog = 50 * 2500 * len(others)
    assert pages * PAGE_BYTES < sum(map(len, waiting)) + backlog + BALLAST_BYTES + 8 * recent.LONGEST
    assert (await store.queue.read(await held(store, stuck), b"", 1024)).entries == waiting
    assert file.damage is None
    assert problems(configured) == []


async def test_what_settles_stays_readable_for_those_who_look(
    configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process reads each entry right whether it settled before or between its looks, and stores others."""
    monkeypatch.setattr(recent, "LONGEST", 64 << 10)
    monkeypatch.setattr(recent, "AT_ONCE", 32 << 10)
    async with SqliteStore(configured) as store, SqliteStore(configured) as other:
        topic = await store.own_topics.create(own_topic("t", 3))
        requests = [spread(topic, 9, f"{number}-") for number in range(60)]
        tokens = [await held(other, shard) for shard in topic.all_shards()]
        for number, events in enumerate(requests):
            await (other if number % 3 else store).ingest.publish(topic, events)
            for token, wanted in zip(tokens, by_shard(topic, *requests[: number + 1]), strict=True):
                assert (await other.queue.read(token, b"", 1024)).entries == wanted
                start = max(0, len(wanted) - 4)
                assert (await other.queue.read(token, b"0/%d" % start, 1024)).entries == wanted[start:]


async def test_what_was_rolled_back_is_not_remembered(store: SqliteStore) -> None:
    """A job that reads the log behind what it has stored, and fails, leaves nothing of it to be read in its place."""
    topic = await store.own_topics.create(own_topic("t", 1))
    (file,) = store._files.all

    def fails(connection: sqlite3.Connection) -> None:
        recent.append(connection, [(1, 0, [b"never"])])
        assert recent.entry(connection, 1, 0) is not None
        raise StoreError("after all not")

    with pytest.raises(StoreError, match="after all not"):
        await file.write(fails)
    await append(store, topic.shard(0), b"kept")

    assert await file.write(lambda connection: recent.entry(connection, 1, 0)[0]) == b"kept"  # type: ignore[index]


async def test_the_log_stays_short_whatever_one_commit_adds(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each commit adds as much as the log may hold, or several times that, the log is as short after it."""
    monkeypatch.setattr(recent, "LONGEST", 128 << 10)
    monkeypatch.setattr(recent, "AT_ONCE", 64 << 10)
    topic = await store.own_topics.create(own_topic("t", 1))
    payloads = [b"%05d" % number * 10_000 for number in range(60)]

    for begin in range(0, 60, 20):
        await append(store, topic.shard(0), *payloads[begin : begin + 20])

    async def is_short() -> bool:
        ((oldest, newest),) = rows(configured, "SELECT min(id), max(id) FROM recent")
        return newest - oldest <= recent.LONGEST

    await until(is_short)
    assert (await store.queue.read(await held(store, topic.shard(0)), b"", 1024)).entries == payloads


def large(topic: Topic, mark: str) -> list[RoutedEvent]:
    """Events of a request that has more than the log takes of a queue that has fallen behind, for each shard."""
    each = group_commit.LARGE_BYTES // 4 + 1
    return [event._replace(payload=event.payload.ljust(each, b".")) for event in spread(topic, 4 * topic.shards, mark)]


async def test_a_backlog_of_large_requests_is_written_once(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once more waits than the log keeps it is emptied, and from then on requests with much for each shard go past it
    to where they settle; those with little, or whose shards have been delivered, go into it."""
    monkeypatch.setattr(recent, "LONGEST", 512 << 10)
    monkeypatch.setattr(recent, "AT_ONCE", 128 << 10)
    topic = await store.own_topics.create(own_topic("t", 3))
    requests = [large(topic, f"{number}-") for number in range(10)]
    for events in requests:
        await store.ingest.publish(topic, events)

    async def in_log() -> int:
        ((nbytes,),) = rows(configured, "SELECT total(length(data)) FROM recent")
        return int(nbytes)

    await until(lambda: _is(rows(configured, "SELECT count(*) FROM recent WHERE data <> x''") == [(0,)]))
    await store.ingest.publish(topic, large(topic, "more-"))
    assert await in_log() == 0
    assert problems(configured) == []
    few = spread(topic, 3, "few-")
    await store.ingest.publish(topic, few)
    assert await in_log() == sum(len(each.payload) for each in few)

    expected = by_shard(topic, *requests, large(topic, "more-"), few)
    for shard, wanted in zip(topic.all_shards(), expected, strict=True):
        assert await drained(store, await held(store, shard), 7) == wanted
    await store.ingest.publish(topic, large(topic, "live-"))
    assert await in_log() >= sum(len(each.payload) for each in large(topic, "live-"))


async def test_much_goes_behind_what_waits_in_the_log(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with much for a shard goes into the log, however long that is, while an entry of the shard is there."""
    monkeypatch.setattr(recent, "LONGEST", 0)
    monkeypatch.setattr(recent, "AT_ONCE", 0)
    topic = await store.own_topics.create(own_topic("t", 1))
    few, much = spread(topic, 1, "few-"), large(topic, "much-")

    await store.ingest.publish(topic, few)
    await store.ingest.publish(topic, much)

    page = await store.queue.read(await held(store, topic.shard(0)), b"", 1024)
    assert page.entries == [each.payload for each in (*few, *much)]


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("at_once", [1, 5, 1024])
async def test_entries_past_the_log_overtake_none_in_it(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However requests with little and with much for a shard alternate, and however its backlog shrinks and grows, its
    entries are there in order, each once; the books are right, and no byte is counted as used at the end."""
    monkeypatch.setattr(recent, "LONGEST", 256 << 10)
    monkeypatch.setattr(recent, "AT_ONCE", 128 << 10)
    topic = await store.own_topics.create(own_topic("t", 2))
    tokens = [await held(store, shard) for shard in topic.all_shards()]
    expected: list[list[bytes]] = [[], []]
    found: list[list[bytes]] = [[], []]
    for number in range(36):
        events = large(topic, f"{number}-") if number % 12 < 8 else spread(topic, 6, f"{number}-")
        await store.ingest.publish(topic, events)
        for shard, added in enumerate(by_shard(topic, events)):
            expected[shard] += added
        for shard, token in enumerate(tokens):
            page = await store.queue.read(token, b"", at_once)
            assert page.entries == expected[shard][len(found[shard]) :][:at_once]
            if number % 12 > 3 + shard:
                await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
                found[shard] += page.entries
        if number % 12 == 11:
            assert problems(configured) == []
            for shard, token in enumerate(tokens[: number // 12]):
                found[shard] += await drained(store, token, 1024)

    for shard, token in enumerate(tokens):
        found[shard] += await drained(store, token, at_once)
        assert (await store.inspection.stats(topic.shard(shard))).used_bytes == 0
        assert (await store.ledger.balance(topic.shard(shard))).unaccounted == 0
    assert found == expected
    assert problems(configured) == []


@pytest.mark.guarantee("in-the-embedded-store")
async def test_a_changed_row_is_noticed_and_never_removed(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where what a row holds cannot be known, the check says so, its shards' entries are lost to their readers, nothing
    is settled over it, and the daemon's log names it."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await append(store, topic.shard(0), b"one", b"two")
    change(configured, "UPDATE recent SET parts = CAST(substr(parts, 1, 9) || x'07' || substr(parts, 11) AS BLOB)")
    assert any("is not what was committed" in each for each in problems(configured))

    monkeypatch.setattr(recent, "LONGEST", 0)
    async with SqliteStore(configured) as other:
        with pytest.raises(StoreDamaged, match="lost entries"):
            await other.queue.read(await held_by(other, topic), b"", 10)
        await append(other, topic.shard(0), b"three")
        await until(lambda: _is("is damaged: table recent, row " in caplog.text))
    assert rows(configured, "SELECT count(*) FROM recent") == [(2,)]


async def held_by(store: SqliteStore, topic: Topic) -> LockToken:
    token = await store.locks.acquire(topic.shard(0), "other", 90.0)
    assert isinstance(token, LockToken)
    return token


async def _is(answer: bool) -> bool:
    return answer


@pytest.mark.guarantee("in-the-embedded-store")
async def test_a_file_that_a_newer_remora_has_migrated_is_used_no_longer(
    store: SqliteStore, configured: SqliteSettings
) -> None:
    """A process that has it open neither stores, reads nor removes from then on, and says which versions there are."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await append(store, topic.shard(0), b"one", b"two")
    token = await held(store, topic.shard(0))
    page = await store.queue.read(token, b"", 1)
    newer = len(schema.MIGRATIONS) + 1
    change(configured, f"PRAGMA user_version = {newer}")

    said = f"version {newer} by a newer remora.* knows up to {newer - 1}"
    with pytest.raises(StoreUnavailable, match=said):
        await store.ingest.publish(topic, spread(topic, 1))
    with pytest.raises(StoreUnavailable, match=said):
        await store.queue.read(token, b"", 1)
    with pytest.raises(StoreUnavailable, match=said):
        await store.queue.remove(token, page.positions[-1], 1, delivered(page))

    change(configured, f"PRAGMA user_version = {newer - 1}")
    assert await drained(store, token, 1024) == [b"one", b"two"]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR FAIL INTO entries (id, data, checksum) VALUES (1, x'00', 1)",
        "SELECT data, checksum FROM entries WHERE id >= 1",
        "DELETE FROM entries WHERE id >= 1",
    ],
)
def test_no_statement_of_an_older_process_reaches_an_entry(tmp_path: Path, statement: str) -> None:
    """A connection that has the file open across its migration can store, read and remove nothing with the statements
    of releases before the log, though it has prepared them."""
    path = tmp_path / "queues-000.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as frozen:
        for step in schema.MIGRATIONS[:9]:
            step(frozen)
        frozen.execute("BEGIN")
        frozen.execute(statement)
        frozen.execute("ROLLBACK")
        with closing(sqlite3.connect(path)) as newer:
            schema.MIGRATIONS[9](newer)
            newer.commit()

        with pytest.raises(sqlite3.OperationalError, match="no such table: entries"):
            frozen.execute(statement)


async def test_numbers_of_a_sequence_are_found_in_the_log(store: SqliteStore) -> None:
    """How far a sequence was delivered is told by entries in the log as by those that have settled."""
    topic = await store.own_topics.create(replace(own_topic("t", 2), is_sequenced=True))
    events = [each._replace(payload=raw_entry(f"k{i}", i)) for i, each in enumerate(spread(topic, 8))]
    await store.ingest.publish(topic, events)
    for shard in topic.all_shards():
        token = await held(store, shard)
        page = await store.queue.read(token, b"", 2)
        await store.queue.remove(token, page.positions[-1], 2, delivered(page))

    before = await store.own_topics.sequence(topic)
    await store._files.file_of("t").write(settle_all)

    assert before == await store.own_topics.sequence(topic)
    assert (before.tail, before.delivered) == (8, 4)
