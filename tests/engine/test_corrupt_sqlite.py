"""Entries of the real embedded store whose bytes changed at rest: none is sent, and none holds up the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest

from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint
from engine.runs import a_worker, running
from remora.config import DeliverySettings, SqliteSettings
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable
from remora.model.ledger import Tally
from remora.model.record import DeadLetter
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from support.stores import change, held, own_topic

ENTRIES = [raw_entry(f"key-{i}", i) for i in range(40)]
LONG_S = 60.0


A_KEY: Sequence[bytes] = (b"key-", b"kez-")
A_LENGTH: Sequence[bytes] = (b"\x07\x00\x00\x00ceph:s3", b"\xff\x00\x00\x00ceph:s3")


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    return SqliteSettings(directory=str(tmp_path / "store"), files=1)


async def in_use(settings: SqliteSettings, entries: Sequence[bytes] = ENTRIES) -> Topic:
    """A topic of one queue with these entries, left in a file that nobody has open."""
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        await store.two_phase.commit(
            topic.shard(0), await store.two_phase.reserve(topic.shard(0), len(entries), sum(map(len, entries))), entries
        )
    return topic


def flip(settings: SqliteSettings, number: int, before: bytes, after: bytes) -> bytes:
    """Change an entry's bytes where they lie in the file, and answer all of them as they are then."""
    path = Path(settings.directory) / "queues-000.db"
    content = path.read_bytes()
    entry = ENTRIES[number]
    assert content.count(entry) == 1
    assert len(before) == len(after)
    changed = entry.replace(before, after, 1)
    assert changed != entry
    path.write_bytes(content.replace(entry, changed))
    return changed


async def delivered(
    settings: SqliteSettings,
    topic: Topic,
    delivery: DeliverySettings,
    endpoint: FakeEndpoint,
    telemetry: Telemetry,
    enough: Callable[[Tally], bool] = lambda tally: tally.total == len(ENTRIES),
) -> tuple[Tally, list[DeadLetter]]:
    """What became of the queue's entries under a worker, once that is enough; and the letters."""
    async with SqliteStore(settings) as store:
        async with running(a_worker(store, endpoint, delivery, telemetry=telemetry)), asyncio.timeout(LONG_S):
            while not enough((await store.ledger.balance(topic.shard(0))).removed):  # noqa: ASYNC110 - of a real file
                await asyncio.sleep(0.02)
        balance = await store.ledger.balance(topic.shard(0))
        assert balance.unaccounted == 0
        return balance.removed, [each async for each in store.letters.stored()]


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
async def test_changed_bytes_are_not_delivered(
    settings: SqliteSettings, mode: Literal["at-least-once", "exactly-once"]
) -> None:
    """In both modes an entry with a changed byte, at the front or not, is a dead letter as it is now; all others go."""
    topic = await in_use(settings)
    first = flip(settings, 0, *A_KEY)  # which still makes sense as an event
    other = flip(settings, 7, *A_LENGTH)  # which does not
    endpoint, telemetry = FakeEndpoint(), Telemetry()

    tally, letters = await delivered(settings, topic, DeliverySettings(mode=mode), endpoint, telemetry)

    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(40) if i not in (0, 7))
    assert tally == Tally(delivered=38, dead_lettered=2)
    assert [(each.position, each.cause, each.raw) for each in letters] == [
        ("0/0", "corrupt", first),
        ("0/7", "corrupt", other),
    ]
    assert all("not those that were committed" in each.reason for each in letters)
    labels = {"topic": "t", "cause": "corrupt"}
    assert sample_value(telemetry.registry, "remora_parked_entries_total", labels) == 2


async def test_changed_bytes_while_nothing_can_be_sent(settings: SqliteSettings) -> None:
    """While the endpoint is away an entry that changed is parked as that, not by what its bytes say of its age."""
    topic = await in_use(settings)
    changed = flip(settings, 0, *A_KEY)
    endpoint = FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("away")
    delivery = DeliverySettings(time_to_live_s=60, retry_base_s=0.01, retry_cap_s=0.05)

    tally, letters = await delivered(settings, topic, delivery, endpoint, Telemetry())

    assert tally == Tally(dead_lettered=1, expired=39)
    assert [(each.cause, each.raw) for each in letters][:2] == [("corrupt", changed), ("expired", ENTRIES[1])]


async def test_changed_bytes_of_an_unknown_topic(settings: SqliteSettings) -> None:
    """Where nothing but the entries tells where they go, one that changed tells nothing: it is parked by itself."""
    topic = await in_use(settings)
    change(settings, "UPDATE topics SET attributes = x'c1'")
    changed = flip(settings, 0, b"kafka://127.0.0.1", b"kafka://127.0.0.2")
    middle = flip(settings, 9, b"kafka://127.0.0.1", b"kafka://127.0.0.2")
    endpoint = FakeEndpoint()

    tally, letters = await delivered(settings, topic, DeliverySettings(), endpoint, Telemetry())

    assert {route.target.uri for route in endpoint.routes} == {"kafka://127.0.0.1:9092"}
    assert tally == Tally(delivered=38, dead_lettered=2)
    assert [(each.cause, each.raw) for each in letters] == [("corrupt", changed), ("corrupt", middle)]


@pytest.mark.guarantee("no-loss")
async def test_a_changed_letter_decides_all_the_same(settings: SqliteSettings) -> None:
    """The letter of an entry that is still in its queue may change at rest: the entry is not sent, and its letter is
    stored anew with the entry's own bytes."""
    topic = await in_use(settings)
    async with SqliteStore(settings) as store:
        token = await held(store, topic.shard(0))
        letter = DeadLetter("t", token.incarnation, "0/3", "0/4", "expired", "why", 1, 1.0, 2.0, ENTRIES[3])
        await store.letters.store(token, letter)
    change(settings, "UPDATE letters SET letter = substr(letter, 1, 20)")
    endpoint = FakeEndpoint()

    tally, letters = await delivered(settings, topic, DeliverySettings(), endpoint, Telemetry())

    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(40) if i != 3)
    assert tally == Tally(delivered=39, dead_lettered=1)
    assert [(type(each), each.position, each.cause, each.raw) for each in letters] == [
        (DeadLetter, "0/3", "corrupt", ENTRIES[3])
    ]
    assert "letter has changed" in letters[0].reason
