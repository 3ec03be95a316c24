"""The life of an entry whose broker is away, with real daemons on the embedded store; and its second life."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.entries import raw_entry
from devkit.processes.daemon import PATIENT, Daemon, Options, merged, running_daemon
from devkit.readers.consumer import read_until
from remora.codec.attempts import decode_attempts
from remora.codec.shard_hash import shard as shard_number
from remora.config import SqliteSettings
from remora.model.exits import Exit
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore

NOBODY = "kafka://127.0.0.1:1"
"""An endpoint that refuses every connection."""


def sections(folder: Path) -> Options:
    return merged(PATIENT, {
        "supervisor": {"workers": 1},
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
        "ownership": {"discovery_interval": "500ms"},
        "delivery": {"retry_cap": "500ms"},
        "kafka": {"connect_timeout": "3s"},
    })  # fmt: skip


async def publish(folder: Path, topic: str, numbers: Sequence[int], keys: int = 4) -> None:
    """Store events in a topic, as the ingest API does."""
    async with SqliteStore(SqliteSettings(directory=str(folder / "queues"), files=1)) as store:
        found = await store.own_topics.find(topic)
        assert found is not None
        events = []
        for number in numbers:
            key = f"k{number % keys}"
            sharded_by = f"bkt:{key}".encode()
            entry = raw_entry(key, number, topic=topic, created=time.time())
            events.append(RoutedEvent(shard_number(sharded_by, found.shards), sharded_by, entry))
        await store.ingest.publish(found, events)


async def made(daemon: Daemon, topic: str, *options: str) -> None:
    done = await daemon.command("topic", "create", topic, "--endpoint", NOBODY, "--shards", "3", *options)
    assert done.code == Exit.OK, done.err


async def letters(daemon: Daemon, topic: str, *filters: str) -> list[dict[str, Any]]:
    done = await daemon.command("dlq", "list", "--topic", topic, "--json", *filters)
    assert done.code == Exit.OK, done.err
    rows: list[dict[str, Any]] = done.json
    return rows


async def parked(daemon: Daemon, topic: str, count: int) -> None:
    """Return when this many entries have become dead letters and left their queues."""

    async def enough() -> bool:
        names = "remora_parked_entries_total", "remora_removed_entries_total"
        return min([await daemon.metric(name, topic=topic) for name in names]) >= count

    await daemon.until(enough, f"{count} entries of {topic} to be parked")


def noted(folder: Path) -> int:
    """The most attempts that the store keeps of any entry."""
    with closing(sqlite3.connect(folder / "queues" / "queues-000.db")) as connection:
        rows = connection.execute("SELECT noted FROM attempts").fetchall()
    return max((each.count for (row,) in rows for each in decode_attempts(row).values()), default=0)


@pytest.mark.kafka
async def test_time_runs_out_and_begins_anew(kafka: Kafka, folder: Path) -> None:
    """With the broker away for good entries expire; re-driven to a new one, each arrives once, in order of its key."""
    topic = await create_topic(kafka.address, f"life-{uuid.uuid4().hex[:10]}")
    async with running_daemon(folder, sections(folder)) as daemon:
        await made(daemon, topic, "--time-to-live", "2s")
        await publish(folder, topic, range(40))
        await parked(daemon, topic, 40)
        before = await letters(daemon, topic)
        assert [each["cause"] for each in before] == ["expired"] * 40

        dry = await daemon.command("dlq", "redrive", "--topic", topic, "--dry-run", "--json")
        assert (dry.code, dry.json["planned"], dry.json["redriven"]) == (Exit.OK, 40, 0)
        assert await letters(daemon, topic) == before

        changed = await daemon.command(
            "topic", "set", topic, "--endpoint", f"kafka://{kafka.address}", "--unset", "time-to-live"
        )
        assert changed.code == Exit.OK, changed.err
        dropped = await daemon.command("dlq", "drop", "--topic", topic, "--key", "bkt/k3", "--yes")
        assert (dropped.code, dropped.out) == (Exit.OK, b"10 dropped\n")
        redriven = await daemon.command("dlq", "redrive", "--topic", topic, "--yes", "--rate", "200")
        assert (redriven.code, redriven.out) == (Exit.OK, b"30 re-driven\n"), redriven.err
        found = await read_until(kafka.address, topic, 30)
        assert await letters(daemon, topic) == []
        assert (await daemon.command("ledger", topic)).code == Exit.OK

    numbers = [int(each.event_id.removeprefix("id-")) for each in found]
    assert sorted(numbers) == [number for number in range(40) if number % 4 != 3]
    for key in range(3):
        of_key = [number for number in numbers if number % 4 == key]
        assert of_key == sorted(of_key)


async def test_attempts_are_counted_across_a_killed_daemon(folder: Path) -> None:
    """max_retries = 3 is four attempts in all, those of a daemon that was killed included."""
    given = sections(folder)
    async with running_daemon(folder, given) as first:
        await made(first, "t", "--max-retries", "3", "--retry-sleep-duration", "1m")
        await publish(folder, "t", [0])

        async def tried() -> bool:
            return noted(folder) >= 1

        await first.until(tried, "an attempt to be noted")
        await first.kill_all()
        done = await first.command("topic", "set", "t", "--retry-sleep-duration", "1s")
        assert done.code == Exit.OK, done.err
    before = noted(folder)
    again_at = time.time()
    second_folder = folder / "second"
    await asyncio.to_thread(second_folder.mkdir)
    async with running_daemon(second_folder, given) as second:
        await parked(second, "t", 1)
        failures = await second.metric("remora_failures_total", topic="t", kind="transient")
        [letter] = await letters(second, "t", "--cause", "exhausted")

        async def forgotten() -> bool:
            return noted(folder) == 0

        await second.until(forgotten, "the attempts to be forgotten with their entry")

    assert letter["attempts"] == 4
    assert before >= 1
    assert before + failures >= 4
    assert letter["first_seen"] < time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(again_at + 1))
