"""A real daemon on the embedded store delivers to a real RabbitMQ, which is killed and started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from devkit.clusters.rabbitmq import MAX_MESSAGE_BYTES, PASSWORD, Message, RabbitMQ
from devkit.processes.daemon import Sections, running_daemon
from support.embedded import drained, publish

EVENTS, KEYS, SHARDS = 600, 20, 3
LARGE = 137


def sections(folder: Path) -> Sections:
    return {
        "supervisor": {"workers": 2},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
        "amqp": {"delivery_timeout": "30s"},
        "delivery": {"retry_cap": "500ms", "configuration_recheck": "500ms"},
    }


def numbers_of(messages: Sequence[Message]) -> list[int]:
    return [
        int(json.loads(each.body)["Records"][0]["responseElements"]["x-amz-request-id"].removeprefix("req."))
        for each in messages
    ]


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
        await publish(folder, "orders", range(EVENTS // 2), keys=KEYS)
        await publish(folder, "orders", [LARGE + EVENTS], size=MAX_MESSAGE_BYTES, keys=KEYS)
        await drained(daemon, "orders")

        broker.kill()
        await publish(folder, "orders", range(EVENTS // 2, EVENTS), keys=KEYS)
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
