"""A real daemon on the embedded store delivers to a real RabbitMQ, which is killed and started again."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from remora.config import SqliteSettings
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore
from support.daemon import Daemon, Sections, running_daemon
from support.entries import raw_entry
from support.rabbitmq import MAX_MESSAGE_BYTES, PASSWORD, Message, RabbitMQ

EVENTS, KEYS, SHARDS = 600, 20, 3
LARGE = 137


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        yield Path(name)


def sections(folder: Path) -> Sections:
    return {
        "supervisor": {"workers": 2},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
        "amqp": {"delivery_timeout": "3s"},
        "delivery": {"retry_cap": "500ms", "configuration_recheck": "500ms"},
    }


async def publish(folder: Path, name: str, numbers: Sequence[int], size: int = 0) -> None:
    """Commit events, each key to a shard of its own; each with so many bytes of metadata."""
    async with SqliteStore(SqliteSettings(directory=str(folder / "queues"), files=1)) as store:
        topic = await store.own_topics.find(name)
        assert topic is not None
        events = [
            RoutedEvent(
                i % KEYS % topic.shards, b"bkt:k%d" % (i % KEYS),
                raw_entry(f"k{i % KEYS}", i, topic=name, padding=size),
            )
            for i in numbers
        ]  # fmt: skip
        await store.ingest.publish(topic, events)


def numbers_of(messages: Sequence[Message]) -> list[int]:
    return [
        int(json.loads(each.body)["Records"][0]["responseElements"]["x-amz-request-id"].removeprefix("req."))
        for each in messages
    ]


async def drained(daemon: Daemon, name: str) -> None:
    """Return when nothing waits and the ledger balances."""

    async def is_empty() -> Any:
        shown = await daemon.command("ledger", name, "--json")
        if shown.code != 0:
            return False
        [books] = shown.json
        return books["unaccounted"] == 0 and all(each["pending"] == 0 for each in books["shards"])

    await daemon.until(is_empty, f"{name} is drained", 120)


@pytest.mark.guarantee("no-loss", "order-per-object", "duplicates")
async def test_a_broker_that_is_killed(fragile_rabbitmq: RabbitMQ, folder: Path) -> None:
    """Each event is in the queue, first arrivals in order; what the broker never takes has a letter, there too."""
    broker = fragile_rabbitmq
    exchange = await broker.exchange()
    queue, letters = await broker.queue(exchange, "orders"), await broker.queue(exchange, "dead")
    (folder / "password").write_text(PASSWORD)

    async with running_daemon(folder, sections(folder)) as daemon:
        made = await daemon.command(
            "topic", "create", "orders", "--shards", str(SHARDS), "--endpoint", f"amqp://alice@{broker.address}",
            "--password-file", folder / "password", "--arg", f"amqp-exchange={exchange}",
            "--arg", "remora-dead-letter-topic=dead",
        )  # fmt: skip
        assert made.code == 0, made.err
        assert "the password travels unencrypted" in made.out.decode()
        await publish(folder, "orders", range(EVENTS // 2))
        await publish(folder, "orders", [LARGE + EVENTS], MAX_MESSAGE_BYTES)
        await drained(daemon, "orders")

        broker.kill()
        await publish(folder, "orders", range(EVENTS // 2, EVENTS))
        await asyncio.to_thread(broker.start)
        await drained(daemon, "orders")

        listed = await daemon.command("dlq", "list", "--topic", "orders", "--json")
        assert [each["cause"] for each in listed.json] == ["refused"]
        assert await daemon.metric("remora_amqp_unroutable_messages_total") == 0

    found = numbers_of(await broker.read(queue))
    first = list(dict.fromkeys(found))
    assert sorted(first) == list(range(EVENTS))
    for key in range(KEYS):
        of_key = [each for each in first if each % KEYS == key]
        assert of_key == sorted(of_key)
    assert len(found) - len(first) <= SHARDS * KEYS
    (letter,) = await broker.read(letters)
    assert letter.properties.headers["remora-cause"] == "refused"
    assert int(letter.properties.headers["remora-omitted-bytes"]) > MAX_MESSAGE_BYTES
    assert letter.body == b""
