"""Rows of the embedded store in which a cell is not what it is to be: the row is named, and the others are used."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from devkit.entries.entries import delivered
from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged
from remora.model.fan_out import FannedOut, TopicCopies
from remora.model.ingest import IdempotencyKey, PublishResult, ReservedRoom
from remora.model.log import LogKind, LogName
from remora.model.record import DeadLetter
from remora.model.shard import LockHolder
from remora.model.store_files import FileProblem
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import writer
from remora.storage.sqlite.repair.checks import check_directory
from remora.storage.sqlite.tables import recent
from support.stores import expire, held, own_topic, spread

LOG = LogName(b"remora", b"log")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store of one file."""
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as opened:
        yield opened


async def change(store: SqliteStore, statement: str) -> None:
    """Change something behind the store's back."""
    await store._files.first.write(lambda connection: connection.execute(statement))


@pytest.mark.parametrize("rooms", ["x'00'", "x''", "5", "'text'"])
async def test_a_reservation_that_cannot_be_read(
    store: SqliteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, rooms: str
) -> None:
    """Commit and abort name it, a request beside them is carried out, and expiry gives it up: nothing stays reserved
    but what others have reserved, of both kinds."""
    topic = await store.own_topics.create(own_topic("t", 2))
    token = await held(store, topic.shard(1))
    events = spread(topic, 4)
    asked = [ReservedRoom(each.shard, each.key, len(each.payload)) for each in events]
    damaged, sound = await store.ingest.reserve(topic, asked), await store.ingest.reserve(topic, asked)
    single = await store.two_phase.reserve(topic.shard(1), 1, 10)
    await change(store, f"UPDATE reservations SET rooms = {rooms} WHERE id = '{damaged}'")

    found = await asyncio.gather(
        store.ingest.commit(topic, damaged, events, b"digest"),
        store.ingest.abort(topic, damaged),
        store.ingest.publish(topic, events),
        return_exceptions=True,
    )
    assert found[2] == PublishResult(4)
    for each in found[:2]:
        assert isinstance(each, StoreDamaged)
        assert f"queues-000.db is damaged: table reservations, row {damaged}: " in str(each)

    await change(store, f"UPDATE reservations SET since_ns = -1000000000000 WHERE id = '{damaged}'")
    await expire(store, token, 100)
    assert [damaged in each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == [True]
    assert [(await store.inspection.stats(each)).reservations for each in topic.all_shards()] == [1, 2]
    await store.two_phase.abort(topic.shard(1), single)
    assert await store.ingest.commit(topic, sound, events, b"digest") == PublishResult(4)
    assert [(await store.inspection.stats(each)).reservations for each in topic.all_shards()] == [0, 0]
    assert [each.problems for each in check_directory(tmp_path / "store")] == [[]]


async def test_an_announcement_whose_topics_cannot_be_read(store: SqliteStore) -> None:
    """The announcement is named."""
    await store.own_topics.create(own_topic("t", 2))
    reservation = await store.ingest.announce([], b"announced")
    await change(store, "UPDATE announcements SET topics = x'00'")

    for ask in (store.ingest.announced(reservation, b"digest"), store.ingest.abort_announced(reservation)):
        with pytest.raises(StoreDamaged, match=f"queues-000.db is damaged: table announcements, row {reservation}: "):
            await ask


Use = Callable[[SqliteStore, Topic], Awaitable[object]]


async def publish(store: SqliteStore, topic: Topic) -> object:
    return await store.ingest.publish(topic, spread(topic, 2))


async def read(store: SqliteStore, topic: Topic) -> object:
    return [entry async for entry in store.inspection.dump(topic.first_shard)]


@pytest.mark.parametrize(
    ("statement", "use", "told"),
    [
        ("UPDATE topics SET shards = 'x'", publish, "table topics, row t: shards: Expected `int`, got `str`"),
        ("UPDATE topics SET generation = 'x'", lambda store, _: store.own_topics.find("t"), "row t: generation: "),
        ("UPDATE topics SET attributes = 5", lambda store, _: store.own_topics.find("t"), "row t: attributes: "),
        ("UPDATE queues SET tail = 'x'", publish, "table queues, row of topic 1: Expected `int`, got `str`"),
        ("UPDATE queues SET head = 'x'", read, "table queues, row t: head: Expected `int`, got `str`"),
        (
            "UPDATE logs SET epoch = 'x'",
            lambda store, _: store.logs.read(LOG, 1),
            "table logs, row remora/log: epoch: ",
        ),
        ("UPDATE logs SET kind = 'x'", lambda store, _: store.logs.all(), "table logs, row remora/log: kind: "),
        ("UPDATE log_entries SET data = 5", lambda store, _: store.logs.read(LOG, 1), "row remora/log at 1: data: "),
        (
            "DELETE FROM meta WHERE key = 'notifications'",
            lambda store, _: store.notifications.definitions(),
            "table meta, row notifications: it is missing",
        ),
    ],
)
async def test_a_cell_of_another_type_is_named(store: SqliteStore, statement: str, use: Use, told: str) -> None:
    """Who uses the row learns file, table, row and column."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.logs.create(LOG, LogKind.LOG, 1)
    await store.logs.append(LOG, await store.logs.seal(LOG), 1, b"x")
    await change(store, statement)

    with pytest.raises(StoreDamaged) as caught:
        await use(store, topic)

    assert "queues-000.db is damaged: " in str(caught.value)
    assert told in str(caught.value)


async def test_a_topic_that_cannot_be_read_costs_no_other_one(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalogue has the others, and the log names that one."""
    for name in ("bad", "good"):
        await store.own_topics.create(own_topic(name, 1))
    await change(store, "UPDATE topics SET former = x'ff' WHERE name = 'bad'")
    await change(store, "UPDATE meta SET value = value + 1 WHERE key = 'catalogue'")

    assert [each.name for each in (await store.catalog.topics()).values()] == ["good"]
    assert "table topics, row bad: former: " in caplog.text


async def test_a_decision_that_cannot_be_read_keeps_nobody(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that is decided and cannot be finished, as its parts have changed, is named once, and does not keep the
    store from being opened."""
    await change(
        store,
        "INSERT INTO decisions (id, digest, answer, parts, checksum, boot, since_ns)"
        " VALUES ('r', x'', x'', 'text', 0, '', 0)",
    )
    await store._finisher.look(0.0)
    await store._begin()
    assert store.connected
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == [
        "events that were sent are not stored: what request r has decided has changed in the store"
    ]


async def test_a_catalogue_that_is_lost_is_noticed(store: SqliteStore) -> None:
    """A file that does not count the changes of its topics any more goes on with what was known of them."""
    await store.own_topics.create(own_topic("t", 1))
    before = await store.catalog.topics()
    await change(store, "DELETE FROM meta WHERE key = 'catalogue'")

    assert await store.catalog.topics() == before
    store.arrivals._look()


@pytest.mark.parametrize("column", ["name", "uid", "shards", "former", "attributes"])
async def test_text_of_which_a_bit_has_flipped_costs_no_other_topic(store: SqliteStore, column: str) -> None:
    """Where a cell of a topic is no UTF-8, the catalogue has the others."""
    for name in ("bad", "good"):
        await store.own_topics.create(own_topic(name, 1))
    await change(store, f"UPDATE topics SET {column} = CAST(x'62ff64' AS TEXT) WHERE name = 'bad'")
    await change(store, "UPDATE meta SET value = value + 1 WHERE key = 'catalogue'")

    topics = await store.catalog.topics()

    assert "good" in [each.name for each in topics.values()]
    for each in topics.values():
        each.name.encode()


@pytest.mark.parametrize("column", ["head", "tail", "settled", "used_bytes", "name"])
@pytest.mark.parametrize("cell", ["x'00'", "CAST(x'62ff64' AS TEXT)"])
async def test_a_queue_that_cannot_be_read_costs_no_other_one(store: SqliteStore, column: str, cell: str) -> None:
    """Ledgers, figures and the expiry of reservations go on for the other queues of its file, which stays in use."""
    tokens = []
    for name in ("bad", "good"):
        topic = await store.own_topics.create(own_topic(name, 1))
        await store.ingest.publish(topic, spread(topic, 2))
        await store.ingest.reserve(topic, [ReservedRoom(0, b"key", 10)])
        tokens.append(await held(store, topic.first_shard))
    await change(store, f"UPDATE queues SET {column} = {cell} WHERE name = 'bad'")
    shards = [each.shard for each in tokens]

    assert shards[1] in [each.shard for each in await store.ledger.balances(tokens)]
    assert shards[1] in [each.shard for each in await store.inspection.backlog(shards)]
    assert (await store.queue.expire_all(tokens, 0.0))[1] is None
    assert (await store.inspection.stats(shards[1])).reservations == 0
    assert (dict(store.damaged), store.connected) == ({}, True)


async def test_a_lock_that_cannot_be_read_is_named(store: SqliteStore) -> None:
    """Who wants a lock whose row makes no sense learns the row, and takes others."""
    tokens = [await held(store, (await store.own_topics.create(own_topic(name, 1))).first_shard) for name in ("a", "b")]
    await change(store, "UPDATE locks SET until_ns = 'x' WHERE queue = 1")

    with pytest.raises(StoreDamaged, match="table locks, row a: until_ns: "):
        await store.locks.acquire(tokens[0].shard, "other", 60.0)
    assert isinstance(await store.locks.acquire(tokens[1].shard, "other", 60.0), LockHolder)


async def test_a_letter_that_belongs_nowhere_costs_no_other_one(store: SqliteStore) -> None:
    """All other letters are told, and then the row that says of no position."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, spread(topic, 3))
    token = await held(store, topic.first_shard)
    places = [(f"0/{i}", f"0/{i + 1}") for i in range(3)]
    for here, behind in places:
        letter = DeadLetter("t", token.incarnation, here, behind, "refused", "why", 1, 1.0, 2.0, raw=b"x")
        await store.letters.store(token, letter)
    await change(store, "UPDATE letters SET position = x'00' WHERE position = 1")

    found: list[str] = []

    async def look() -> None:
        async for each in store.letters.stored():
            found.append(each.position)  # noqa: PERF401 - what was told before it ends with an error

    with pytest.raises(StoreDamaged, match="table letters, row of t: position: "):
        await look()

    assert found == ["0/0", "0/2"]
    assert store.connected


async def test_a_cell_of_another_type_costs_no_file(store: SqliteStore) -> None:
    """A change that meets a damaged row is refused with its name, and the file stays in use."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await change(store, "UPDATE topics SET generation = 'x'")

    with pytest.raises(StoreDamaged, match="row t: generation: "):
        await store.own_topics.change(topic)

    assert (dict(store.damaged), store.connected) == ({}, True)


async def test_a_row_of_the_log_that_cannot_be_read_costs_its_queues_alone(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the log is long and its oldest row has changed, the row stays and is named once, its queue says what it has
    lost, and another queue stores, delivers and removes as before, in a file that stays in use."""
    monkeypatch.setattr(recent, "LONGEST", 0)
    monkeypatch.setattr(writer, "_TIDY_AGAIN_S", 0.0)
    bad, good = [await store.own_topics.create(own_topic(name, 1)) for name in ("bad", "good")]
    lost, kept = [await held(store, topic.first_shard) for topic in (bad, good)]
    await store.ingest.publish(bad, spread(bad, 1))
    await change(store, "UPDATE recent SET parts = x'0102030405' WHERE parts != x''")

    for _ in range(4):
        events = spread(good, 3)
        await store.ingest.publish(good, events)
        page = await store.queue.read(kept, b"", 10)
        assert page.entries == [each.payload for each in events]
        await store.queue.remove(kept, page.positions[-1], 3, delivered(page))

    with pytest.raises(StoreDamaged, match="has lost entries: 0 are left of 1"):
        await store.queue.read(lost, b"", 10)
    (file,) = store._files.all
    rows = await file.read(lambda connection: connection.execute("SELECT parts FROM recent ORDER BY id").fetchall())
    assert rows[0] == (b"\1\2\3\4\5",)
    assert len(rows) == 2  # what is delivered goes with the next event
    assert (dict(store.damaged), store.connected) == ({}, True)
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "queues-000.db is damaged: table recent, row " in said


async def test_what_a_removed_topic_left_and_nobody_can_read_keeps_nothing(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row of `leftovers` that has changed stays, a check names it, and what other topics left is deleted."""
    monkeypatch.setattr(recent, "LONGEST", 0)
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, spread(topic, 3))
    await store.ingest.publish(topic, spread(topic, 3))
    await change(store, "INSERT INTO leftovers VALUES (0, 'x', 5)")

    await store.own_topics.remove(topic, discard=True)

    def left(connection: sqlite3.Connection) -> tuple[int, int]:
        found = [connection.execute(f"SELECT count(*) FROM {each}").fetchone() for each in ("leftovers", "settled")]
        return found[0][0], found[1][0]

    async def is_swept() -> bool:
        return await store._files.first.read(left) == (1, 0)

    await until(is_swept)
    (report,) = check_directory(tmp_path / "store")
    assert report.problems == [FileProblem("leftovers", "what is left of queue number 0 has no range")]


async def test_a_decision_that_has_changed_costs_no_file(store: SqliteStore) -> None:
    """The repeat of a request whose decision cannot be read is refused, and the file stays in use."""
    topic = await store.own_topics.create(own_topic("t", 1))
    copies, once = [TopicCopies(topic, spread(topic, 1))], IdempotencyKey("key", b"digest")
    await store.ingest.fan_out(copies, FannedOut(1, 0, {}), once)
    await change(store, "UPDATE decisions SET answer = x'00', parts = x'00'")

    with pytest.raises(StoreDamaged, match="has changed in the store"):
        await store.ingest.fan_out(copies, FannedOut(1, 0, {}), once)

    assert (dict(store.damaged), store.connected) == ({}, True)
    assert await store.ingest.publish(topic, spread(topic, 1)) == PublishResult(1)
