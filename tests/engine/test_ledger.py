from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running
from remora.config import SqliteSettings
from remora.engine.backlog import BACKLOG_INTERVAL_S
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable, EntryRefused, RemoraError, StoreUnavailable
from remora.model.ledger import Tally
from remora.ports.endpoint import Batch
from remora.storage.sqlite import SqliteStore
from support.stores import own_topic, settle_all

GARBAGE = b"\x07no entry"


def unaccounted(telemetry: Telemetry, topic: str = "t") -> float | None:
    return sample_value(telemetry.registry, "remora_ledger_unaccounted_entries", {"topic": topic})


@pytest.mark.guarantee("nothing-leaves-silently")
@in_virtual_time
async def test_each_cause_is_told_apart() -> None:
    """Delivered, undecodable, too large, refused, exhausted and expired entries are booked as what they left for."""
    store, endpoint, telemetry = FakeStore(), FakeEndpoint(lanes=256), Telemetry()
    now = time.time()
    entries = [raw_entry(f"k{i}", i, created=now) for i in range(50)]
    entries[3] = GARBAGE
    entries[10] = raw_entry("large", 10, created=now, padding=5000)
    entries[20:23] = [raw_entry("old", i, created=now - 7200) for i in range(20, 23)]
    queue = store.make("t", *entries)
    store.metadata["t"] = replace(a_topic(max_retries=2), time_to_live_s=3600)
    endpoint.too_large = lambda record: len(record.body) > 4000
    endpoint.batch_records = 1

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        ids = [record.event_id for record in batch.records]
        if b"id-30" in ids:
            return Fate(arrives=0, error=EntryRefused("never"))
        return Fate(arrives=0, error=EndpointUnavailable("no leader")) if b"id-40" in ids else Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        await drained(store)
        await asyncio.sleep(BACKLOG_INTERVAL_S + 1)

    assert queue.ledger == Tally(delivered=43, dead_lettered=4, expired=3)
    assert unaccounted(telemetry) == 0
    figures = partial(sample_value, telemetry.registry)
    assert figures("remora_ledger_committed_entries", {"topic": "t"}) == 50
    assert figures("remora_ledger_pending_entries", {"topic": "t"}) == 0
    assert figures("remora_ledger_removed_entries", {"topic": "t", "cause": "delivered"}) == 43
    assert figures("remora_ledger_removed_entries", {"topic": "t", "cause": "dead_lettered"}) == 4
    assert figures("remora_ledger_removed_entries", {"topic": "t", "cause": "expired"}) == 3


@in_virtual_time
async def test_garbage_of_an_unknown_topic_is_booked() -> None:
    """An undecodable entry at the front of a queue whose topic nothing tells is booked as a dead letter."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", GARBAGE, raw_entry("k", 1))

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert queue.ledger == Tally(delivered=1, dead_lettered=1)


@in_virtual_time
async def test_what_is_skipped_keeps_its_cause() -> None:
    """Entries that were done behind a failed one, and are skipped in the next session, are booked as they were done."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=256)
    queue = store.make("t", *(GARBAGE if i == 15 else raw_entry(chr(65 + i), i) for i in range(20)))
    store.metadata["t"] = a_topic()
    failures = iter(range(3))

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        if batch.records[0].event_id == b"id-0" and next(failures, None) is not None:
            return Fate(wait_s=1, arrives=0, error=EndpointUnavailable("no leader"))
        return Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert queue.ledger == Tally(delivered=19, dead_lettered=1)
    assert len(endpoint.events()) == 19, "something was sent twice, so nothing was skipped"


@in_virtual_time
async def test_a_removal_without_an_answer_is_booked_once() -> None:
    """Removals that are carried out and whose answers are lost are neither missing in the ledger nor there twice."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *(raw_entry(f"k{i}", i) for i in range(5000)))
    store.metadata["t"] = a_topic()
    lost = iter(range(3))

    def after(call: str) -> RemoraError | float | None:
        return StoreUnavailable("no answer") if call == "remove" and next(lost, None) is not None else None

    store.after = after
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert next(lost, None) is None
    assert queue.ledger == Tally(delivered=5000)


@in_virtual_time
async def test_an_entry_that_is_unaccounted_for_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    """An entry that leaves a queue without being booked shows in the metric and as an error, until it is accounted."""
    store, endpoint, telemetry = FakeStore(), FakeEndpoint(), Telemetry()
    queue = store.make("t", *(raw_entry("k", i) for i in range(5)))
    store.metadata["t"] = a_topic()

    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        await drained(store)
        await asyncio.sleep(BACKLOG_INTERVAL_S + 1)
        assert unaccounted(telemetry) == 0

        queue.ledger = Tally(delivered=4)
        with caplog.at_level(logging.ERROR, "remora"):
            await asyncio.sleep(BACKLOG_INTERVAL_S + 1)
        assert unaccounted(telemetry) == 1
        [line] = [each for each in caplog.records if getattr(each, "event", "") == "ledger_unaccounted"]
        assert (line.fields["queue"], line.fields["entries"]) == ("t", 1)  # type: ignore[attr-defined]  # ours

        queue.ledger = Tally(delivered=6)
        await asyncio.sleep(BACKLOG_INTERVAL_S + 1)
        assert unaccounted(telemetry) == 1, "one that counts twice is as wrong as one that is missing"

        queue.ledger = Tally(delivered=4, removed_elsewhere=1)
        await asyncio.sleep(BACKLOG_INTERVAL_S + 1)
        assert unaccounted(telemetry) == 0


@in_virtual_time
async def test_a_ledger_that_cannot_be_looked_at_is_shown_as_it_was() -> None:
    """While the store does not answer, the last look stands; a topic that is held no more is not shown."""
    store, endpoint, telemetry = FakeStore(), FakeEndpoint(), Telemetry()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()

    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        await drained(store)
        await asyncio.sleep(BACKLOG_INTERVAL_S + 1)
        store.before = lambda call: StoreUnavailable("away") if call == "balances" else None
        await asyncio.sleep(BACKLOG_INTERVAL_S + 1)
        assert unaccounted(telemetry) == 0

        del store.queues["t"]
        await asyncio.sleep(BACKLOG_INTERVAL_S + 60)
        assert unaccounted(telemetry) is None


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_a_damaged_store_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is deleted, and an entry that is removed without being booked, show in the metric of a real store."""
    monkeypatch.setattr("remora.engine.backlog.BACKLOG_INTERVAL_S", 0.05)
    endpoint, telemetry, topic = FakeEndpoint(), Telemetry(), own_topic("t", 2)
    endpoint.opening = lambda _: EndpointUnavailable("away")
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as store:
        topic = await store.own_topics.create(topic)
        for shard in topic.all_shards():
            await store.two_phase.commit(
                shard, await store.two_phase.reserve(shard, 5, 5000), [raw_entry("k", i) for i in range(5)]
            )

        async def shown(expected: float) -> None:
            async with asyncio.timeout(300):
                while unaccounted(telemetry, topic.label) != expected:  # noqa: ASYNC110  # nobody tells of a look
                    await asyncio.sleep(0.02)

        async with running(a_worker(store, endpoint, telemetry=telemetry)):
            await shown(0)
            damage(store, "DELETE FROM settled WHERE id = (SELECT max(id) FROM settled)")
            await shown(1)
            damage(store, "DELETE FROM settled WHERE id = (SELECT min(id) FROM settled)")
            damage(store, "UPDATE queues SET head = 1, used_bytes = used_bytes - 100 WHERE number = 0")
            await shown(2)


def damage(store: SqliteStore, statement: str) -> None:
    """Change the store's only file as no remora would."""
    [path] = [Path(store.description.removeprefix("embedded store in ")) / name for name in store.writers]
    with closing(sqlite3.connect(path, timeout=300)) as connection:
        settle_all(connection)
        connection.execute(statement)
        connection.commit()
