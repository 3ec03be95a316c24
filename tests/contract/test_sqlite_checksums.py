"""Checksums of the embedded store: what they notice, who makes them, and files from before there were any."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from devkit.entries.entries import raw_entry
from remora.config import SqliteSettings
from remora.model.ingest import ReservedRoom
from remora.model.ledger import Tally
from remora.model.record import CorruptBytes, CorruptLetter, DeadLetter, Page, Redrive
from remora.model.shard import LockToken, Origin, Shard
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.tables import schema
from remora.storage.sqlite.tables.schema import END_OF_QUEUE, rowid
from support.sqlite import append
from support.stores import change, held, own_topic, spread

CHECKSUMS, LETTER_CHECKSUMS = 5, 7
"""The versions of a file in which entries, and letters, had no checksums yet."""


async def listed(store: SqliteStore, shard: Shard) -> Page:
    """All that waits in a queue."""
    return await store.queue.read(await held(store, shard), b"", 1000)


async def committed_in_every_way(store: SqliteStore, topic: Topic) -> list[bytes]:
    """Entries that each kind of commit has put into a topic's only queue, in order."""
    shard = topic.shard(0)
    await append(store, shard, b"one", b"two", b"")
    for number in range(2):  # from the queue's front, then behind others
        await store.ingest.publish(topic, spread(topic, 3, f"{number}-"))
    events = spread(topic, 2, "r-")
    rooms = [ReservedRoom(each.shard, each.key, len(each.payload)) for each in events]
    await store.ingest.commit(topic, await store.ingest.reserve(topic, rooms), events, b"d")
    token = await held(store, shard)
    first = (await store.queue.read(token, b"", 1)).positions
    at, behind = (each.decode() for each in first)
    letter = DeadLetter(shard.queue, token.incarnation, at, behind, "expired", "why", 0, 1.0, 1.0, b"again")
    await store.letters.store(token, letter)
    await store.queue.remove(
        token, first[1], 1, Tally(expired=1)
    )  # the letter of an entry that stands is not re-driven
    await store.letters.redrive(shard, topic, [Redrive(letter, b"again")])
    return [
        *(b"two", b""),
        *(b"%d-%06d" % (number, i) for number in range(2) for i in range(3)),
        *(b"r-%06d" % i for i in range(2)),
        b"again",
    ]


async def test_every_commit_makes_them(store: SqliteStore, configured: SqliteSettings) -> None:
    """However an entry is committed, a change of its bytes is noticed, and without one it is as committed."""
    topic = await store.own_topics.create(own_topic("t", 1))
    expected = await committed_in_every_way(store, topic)

    sound = await listed(store, topic.shard(0))
    change(configured, "UPDATE settled SET data = CAST(data || 'x' AS BLOB)")
    hurt = await listed(store, topic.shard(0))

    assert (sound.entries, dict(sound.corrupt)) == (expected, {})
    assert sorted(hurt.corrupt) == list(range(len(expected)))


@pytest.mark.parametrize(
    "values",
    [
        "data = CAST('zwei' AS BLOB)",
        "data = x''",
        "data = CAST(data AS TEXT) || char(8364)",
        "data = 7",
        "checksum = checksum + 1",
        "checksum = 'text'",
        "(data, checksum) = (SELECT data, checksum FROM settled WHERE id = {first})",
        "(data, checksum) = (SELECT data, checksum FROM settled WHERE id = {elsewhere})",
    ],
)
async def test_one_changed_entry(store: SqliteStore, configured: SqliteSettings, values: str) -> None:
    """Other bytes, none, a value of another type, another checksum, another entry's row: noticed, and there alone."""
    topic = await store.own_topics.create(own_topic("t", 2))
    for shard in topic.all_shards():
        await append(store, shard, b"one", b"two", b"three")
    places = {"first": rowid(1, 0), "second": rowid(1, 1), "elsewhere": rowid(2, 1)}

    change(configured, f"UPDATE settled SET {values.format_map(places)} WHERE id = {places['second']}")

    assert list((await listed(store, topic.shard(0))).corrupt) == [1]
    assert not (await listed(store, topic.shard(1))).corrupt


async def test_looks_from_outside(store: SqliteStore, configured: SqliteSettings) -> None:
    """Who looks at a changed entry without its lock is told, and nothing is made of what its bytes say."""
    shard = (await store.own_topics.create(own_topic("t", 1))).shard(0)
    await append(store, shard, raw_entry("k", 0), raw_entry("k", 1))
    assert (await store.inspection.stats(shard)).oldest_age_s is not None
    change(configured, f"UPDATE settled SET data = x'00' || substr(data, 2) WHERE id & {END_OF_QUEUE} = 0")

    dumped = [entry async for _, entry in store.inspection.dump(shard)]

    assert [type(each) for each in dumped] == [CorruptBytes, bytes]
    assert dumped[0] == b"\0" + raw_entry("k", 0)[1:]
    assert isinstance(await store.catalog.peek(shard), CorruptBytes)
    assert (await store.inspection.stats(shard)).oldest_age_s is None


async def test_file_from_before(configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that an older version has stored pass as they are, and one that still runs can store no more; what is
    committed from now on is checked."""
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:CHECKSUMS])
    async with SqliteStore(configured):
        pass
    before = "INSERT INTO entries (id, data) VALUES ({}, x'{:02x}')"
    change(
        configured,
        "INSERT INTO topics (id, name, uid, shards, closed, attributes) VALUES (1, 't', 'u', 1, 0, x'80')",
        "INSERT INTO queues (id, topic, number, name, incarnation, head, tail, used_bytes, capacity_bytes)"
        " VALUES (1, 1, 0, 't', 'i', 3, 5, 22, 1000000)",
        *(before.format(rowid(1, i), i) for i in (3, 4)),
    )
    monkeypatch.undo()

    async with SqliteStore(configured) as store:
        assert version(configured) == len(schema.MIGRATIONS)
        (shard,) = await store.catalog.shards()
        assert await listed(store, shard) == Page([b"0/3", b"0/4", b"0/5"], [b"\3", b"\4"], truncated=False)
        with pytest.raises(sqlite3.OperationalError, match="no such table: entries"):
            change(configured, before.format(rowid(1, 5), 5))
        await append(store, shard, b"new", b"newer")
        change(configured, f"UPDATE settled SET data = x'aa' WHERE id IN ({rowid(1, 3)}, {rowid(1, 5)})")

        found = await listed(store, shard)

    assert found.entries == [b"\xaa", b"\4", b"\xaa", b"newer"]
    assert list(found.corrupt) == [2]


# ------------------------------------------------------------------------------------------- dead letters


async def lettered(store: SqliteStore) -> tuple[LockToken, list[DeadLetter]]:
    """A held queue of four entries, and their letters, which are stored; the first entry has left."""
    shard = (await store.own_topics.create(own_topic("t", 1))).shard(0)
    await append(store, shard, b"one", b"two", b"three", b"four")
    token = await held(store, shard)
    page = await store.queue.read(token, b"", 4)
    places = [each.decode() for each in page.positions]
    letters = [
        DeadLetter("t", token.incarnation, places[i], places[i + 1], "expired", "why", 3, 1.0, 2.0, page.entries[i])
        for i in range(4)
    ]
    await store.letters.store(token, *letters)
    await store.queue.remove(token, page.positions[1], 1, Tally(expired=1))
    return token, letters


def hexed(text: str) -> str:
    """How SQL writes these bytes in hexadecimal digits, which `hex` gives."""
    return f"'{text.encode().hex().upper()}'"


def replaced(before: str, after: str) -> str:
    """A change of bytes within each letter, of the same length."""
    return f"letter = unhexed(replace(hex(letter), {hexed(before)}, {hexed(after)}))"


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize(
    ("values", "raw"),
    [
        (replaced("three", "thief"), b"thief"),
        (replaced("why", "who"), b"three"),
        ("letter = substr(letter, 1, 20)", None),
        ("letter = x''", b""),
        ("letter = 7", b"7"),
        ("checksum = checksum + 1", b"three"),
        ("checksum = 'text'", b"three"),
        ("(letter, checksum) = (SELECT letter, checksum FROM letters WHERE position = 1)", b"two"),
        ("(letter, checksum) = (x'c1', NULL)", b"\xc1"),
    ],
)
async def test_one_changed_letter(
    store: SqliteStore, configured: SqliteSettings, values: str, raw: bytes | None
) -> None:
    """Other bytes, fewer, of another type, another checksum, another letter's row: the letter is corrupt, it alone."""
    token, letters = await lettered(store)

    change(configured, f"UPDATE letters SET {values} WHERE position = 2")

    found = [each async for each in store.letters.stored()]
    assert [found[i] for i in (0, 1, 3)] == [letters[i] for i in (0, 1, 3)]
    corrupt = found[2]
    assert isinstance(corrupt, CorruptLetter)
    assert (corrupt.queue, corrupt.incarnation, corrupt.position) == ("t", token.incarnation, "0/2")
    assert (corrupt.next_position, corrupt.cause, corrupt.attempts, corrupt.parked_at) == ("0/3", "corrupt", 0, 0.0)
    assert ("cannot be read" if "NULL" in values else "has changed") in corrupt.reason
    assert raw is None or corrupt.raw == raw
    assert await store.letters.standing(token) == found[1:]


async def test_a_changed_letter_can_be_dropped(store: SqliteStore, configured: SqliteSettings) -> None:
    """A corrupt letter is known by its place, whatever its bytes say of it: it can be dropped, or stored anew."""
    token, letters = await lettered(store)
    change(configured, f"UPDATE letters SET {replaced('0/1', '0/9')} WHERE position < 2")
    found = [each async for each in store.letters.stored("t")]
    assert [type(each) for each in found] == [CorruptLetter, CorruptLetter, DeadLetter, DeadLetter]

    assert await store.letters.drop(found[:1]) == 1
    await store.letters.store(token, letters[1])

    assert [each async for each in store.letters.stored("t")] == letters[1:]


async def test_letters_from_before(configured: SqliteSettings) -> None:
    """Letters that an older version has stored pass as they are; what is stored from now on is checked."""
    async with SqliteStore(configured) as store:
        _, letters = await lettered(store)
    change(
        configured,
        "ALTER TABLE letters DROP COLUMN checksum",
        "ALTER TABLE topics DROP COLUMN sequence",
        "ALTER TABLE settled RENAME TO entries",
        "ALTER TABLE queues DROP COLUMN settled",
        "DROP TABLE recent",
        *(f"DROP TABLE {each}" for each in ("notifications", "decisions", "taken", "former_queues", "announcements")),
        "DROP TABLE peaks",
        *(f"ALTER TABLE topics DROP COLUMN {each}" for each in ("generation", "former")),
        *(f"ALTER TABLE queues DROP COLUMN {each}" for each in ("handover", "step", "next_step")),
        "ALTER TABLE reservations DROP COLUMN generation",
        f"PRAGMA user_version = {LETTER_CHECKSUMS}",
    )

    async with SqliteStore(configured) as store:
        assert version(configured) == len(schema.MIGRATIONS)
        await store.letters.store(await held(store, Shard("t", Origin.REMORA)), letters[2])
        change(configured, f"UPDATE letters SET {replaced('why', 'who')}")
        found = [each async for each in store.letters.stored()]

    assert [type(each) for each in found] == [DeadLetter, DeadLetter, CorruptLetter, DeadLetter]
    assert [each.reason for each in found if not isinstance(each, CorruptLetter)] == ["who"] * 3


def version(configured: SqliteSettings) -> int:
    with closing(sqlite3.connect(Path(configured.directory) / "queues-000.db")) as connection:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        return int(found)
