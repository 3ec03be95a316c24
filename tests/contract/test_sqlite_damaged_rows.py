"""Rows of the embedded store in which a cell is not what it is to be: the row is named, and the others are used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged
from remora.model.log import LogKind, LogName
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from support.stores import own_topic, spread

LOG = LogName(b"remora", b"log")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store of one file."""
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as opened:
        yield opened


async def change(store: SqliteStore, statement: str) -> None:
    """Change something behind the store's back."""
    await store._files.first.write(lambda connection: connection.execute(statement))


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


async def test_a_catalogue_that_is_lost_is_noticed(store: SqliteStore) -> None:
    """A file that does not count the changes of its topics any more goes on with what was known of them."""
    await store.own_topics.create(own_topic("t", 1))
    before = await store.catalog.topics()
    await change(store, "DELETE FROM meta WHERE key = 'catalogue'")

    assert await store.catalog.topics() == before
    store.arrivals._look()
