"""A dead letter stays one: what was larger than its Kafka topic takes is not sent when that takes more."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.kafka import Kafka, configure_topic, create_topic, read_topic
from devkit.entries.entries import raw_entry
from devkit.processes.daemon import PATIENT, Daemon, Sections, merged, running_daemon
from devkit.readers.consumer import read_all, read_until
from remora.codec.topic import DEAD_LETTER_TOPIC
from remora.config import SqliteSettings
from remora.model.exits import Exit
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore

LIMIT = 3000


def sections(folder: Path) -> Sections:
    return {
        "supervisor": {"workers": 2},
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
        "ownership": {"discovery_interval": "500ms"},
        "delivery": {"retry_cap": "500ms", "configuration_recheck": "500ms"},
        "kafka": {"compression": "none"},
    }


async def publish(folder: Path, topic: str, *entries: bytes) -> None:
    """Store entries of one key in one request, as the ingest API does."""
    async with SqliteStore(SqliteSettings(directory=str(folder / "queues"), files=1)) as store:
        found = await store.own_topics.find(topic)
        assert found is not None
        await store.ingest.publish(found, [RoutedEvent(0, b"bkt:k", each) for each in entries])


async def books(daemon: Daemon, topic: str) -> tuple[int, int, int]:
    """What the ledger says: delivered, dead-lettered, pending."""
    shown = await daemon.command("ledger", topic, "--json")
    [of_topic] = shown.json
    [shard] = of_topic["shards"]
    return shard["delivered"], shard["dead_lettered"], shard["pending"]


async def letters(daemon: Daemon, topic: str) -> list[str]:
    """The causes of the dead letters of a topic."""
    listed: list[dict[str, Any]] = (await daemon.command("dlq", "list", "--topic", topic, "--json")).json
    return [each["cause"] for each in listed]


@pytest.mark.guarantee("no-loss")
@pytest.mark.kafka
async def test_a_raised_limit_sends_no_dead_letter(kafka: Kafka, folder: Path) -> None:
    """While the dead-letter topic is missing nothing passes an entry that is too large; when it fits by then, and the
    dead-letter topic is there, it is a dead letter and no record; re-driven it arrives once, behind the others."""
    topic, letter_topic = (f"{name}-{uuid.uuid4().hex[:10]}" for name in ("decided", "letters"))
    await create_topic(kafka.address, topic, max_message_bytes=LIMIT)
    entries = [raw_entry("k", 1, topic=topic, created=time.time(), padding=7000)]
    entries += [raw_entry("k", number, topic=topic, created=time.time()) for number in (2, 3)]

    async with running_daemon(folder, merged(PATIENT, sections(folder))) as daemon:
        made = await daemon.command(
            *("topic", "create", topic, "--endpoint", f"kafka://{kafka.address}", "--shards", "1"),
            *("--arg", f"{DEAD_LETTER_TOPIC}={letter_topic}"),
        )
        assert made.code == Exit.OK, made.err
        await publish(folder, topic, *entries)

        async def tried(times: float) -> None:
            async def enough() -> bool:
                return await daemon.metric("remora_failures_total", topic=topic) >= times

            await daemon.until(enough, f"{times} failures of {topic}")

        async def settled() -> bool:
            return (await books(daemon, topic))[2] == 0

        await tried(3)
        assert await letters(daemon, topic) == ["too_large"]
        assert await read_all(kafka.address, topic) == []
        for command in ("redrive", "drop"):
            done = await daemon.command("dlq", command, "--topic", topic, "--yes", "--json")
            assert (done.code, done.json["standing"]) == (Exit.FAILURE, 1), done.err
        assert await books(daemon, topic) == (0, 0, 3)

        await configure_topic(kafka.address, topic, max_message_bytes=1_000_000)
        await tried(3 + await daemon.metric("remora_failures_total", topic=topic))
        assert await read_all(kafka.address, topic) == []
        await create_topic(kafka.address, letter_topic)
        await daemon.until(settled, "an empty queue")

        assert [each.event_id for each in await read_all(kafka.address, topic)] == ["id-2", "id-3"]
        assert await letters(daemon, topic) == ["too_large"]
        assert await books(daemon, topic) == (2, 1, 0)
        assert {each.value for each in await read_topic(kafka.address, letter_topic)} == {entries[0]}

        redriven = await daemon.command("dlq", "redrive", "--topic", topic, "--yes")
        assert (redriven.code, redriven.out) == (Exit.OK, b"1 re-driven\n"), redriven.err
        found = await read_until(kafka.address, topic, 3)
        await daemon.until(settled, "an empty queue")
        assert [each.event_id for each in found] == ["id-2", "id-3", "id-1"]
        assert await letters(daemon, topic) == []
        assert await books(daemon, topic) == (3, 1, 0)
        assert await daemon.stop() == Exit.OK
