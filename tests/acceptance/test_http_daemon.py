"""A real daemon on the embedded store delivers to a receiver over HTTP that refuses, cuts and goes away."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.config import SqliteSettings
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore
from support.daemon import Daemon, Sections, running_daemon
from support.entries import raw_entry
from support.receiver import DROPPED, OK, Arrival, Reply, receiving, status

EVENTS, KEYS, SHARDS = 400, 20, 3
POISON = 137


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
        "delivery": {"retry_cap": "500ms", "configuration_recheck": "500ms"},
    }


async def publish(folder: Path, name: str, first: int, count: int) -> None:
    """Commit events, each key to a shard of its own."""
    async with SqliteStore(SqliteSettings(directory=str(folder / "queues"), files=1)) as store:
        topic = await store.own_topics.find(name)
        assert topic is not None
        events = [
            RoutedEvent(i % KEYS % topic.shards, b"bkt:k%d" % (i % KEYS), raw_entry(f"k{i % KEYS}", i, topic=name))
            for i in range(first, first + count)
        ]
        await store.ingest.publish(topic, events)


def number(arrival: Arrival) -> int:
    return int(json.loads(arrival.body)["Records"][0]["responseElements"]["x-amz-request-id"].removeprefix("req."))


async def drained(daemon: Daemon, name: str, letters: int = 0) -> None:
    """Return when nothing waits and the ledger balances, with so many dead letters."""

    async def is_empty() -> Any:
        shown = await daemon.command("ledger", name, "--json")
        if shown.code != 0:
            return False
        [books] = shown.json
        return books["unaccounted"] == 0 and all(each["pending"] == 0 for each in books["shards"])

    await daemon.until(is_empty, f"{name} is drained", 90)
    listed = await daemon.command("dlq", "list", "--topic", name, "--json")
    assert [each["cause"] for each in listed.json] == ["refused"] * letters


@pytest.mark.guarantee("no-loss", "order-per-object", "duplicates")
async def test_a_receiver_that_does_everything_wrong(folder: Path) -> None:
    """Each event arrives, in order per key, once but for cut connections; one that is always refused has a letter."""
    came = 0

    def plan(arrival: Arrival) -> Reply:
        nonlocal came
        came += 1
        if number(arrival) == POISON:
            return status(422)
        if came % 40 == 7:
            return status(503, "Retry-After: 1\r\n")
        return DROPPED if came % 90 == 50 else OK

    async with receiving(plan) as receiver, running_daemon(folder, sections(folder)) as daemon:
        made = await daemon.command(
            "topic", "create", "hooks", "--shards", str(SHARDS), "--endpoint", f"{receiver.url}/in", "--arg",
            "cloudevents=true",
        )  # fmt: skip
        assert made.code == 0, made.err
        assert "Kafka" not in made.out.decode()
        await publish(folder, "hooks", 0, EVENTS)
        await drained(daemon, "hooks", letters=1)
        await publish(folder, "hooks", EVENTS, 50)
        await drained(daemon, "hooks", letters=1)

        assert await daemon.metric("remora_http_requests_total", answer="2xx") == len(receiver.taken)
        assert await daemon.metric("remora_http_requests_total", answer="4xx") >= 3
        assert await daemon.metric("remora_parked_entries_total", topic="hooks", cause="refused") == 1

    numbers = [number(each) for each in receiver.taken]
    assert set(numbers) == set(range(EVENTS + 50)) - {POISON}
    assert len(numbers) == len(set(numbers))  # what was dropped was not taken
    for key in range(KEYS):
        of_key = [each for each in numbers if each % KEYS == key]
        assert of_key == sorted(of_key)
    assert {each.line for each in receiver.taken} == {"POST /in HTTP/1.1"}
    assert {each.headers["ce-type"] for each in receiver.taken} == {"com.amazonaws.ObjectCreated:Put"}


async def test_a_topic_is_stopped_with_the_reason_and_goes_on(folder: Path) -> None:
    """A receiver that answers 404 stops the topic, as `remora status` shows; put right, it is delivered to at once."""
    good = False
    async with (
        receiving(lambda _: OK if good else status(404)) as receiver,
        running_daemon(folder, sections(folder)) as daemon,
    ):
        made = await daemon.command("topic", "create", "hooks", "--shards", "1", "--endpoint", f"{receiver.url}/s3cret")
        assert made.code == 0, made.err
        await publish(folder, "hooks", 0, 10)

        async def stopped() -> Any:
            shard = await daemon.shard("hooks")
            return shard and shard["state"] == "stopped" and shard["reason"]

        reason = await daemon.until(stopped, "the topic is stopped")
        shown = await daemon.command("status")
        good = True
        await drained(daemon, "hooks")

    assert "it answers with 404" in reason
    assert "404" in shown.out.decode()
    assert "s3cret" not in reason + shown.out.decode() + daemon.logged()
    assert [number(each) for each in receiver.taken] == list(range(10))


async def test_the_daemon_refuses_to_post_to_itself(folder: Path) -> None:
    """A topic that names the daemon's own admin port is stopped, and the host is not drained."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    async with running_daemon(folder, {**sections(folder), "admin": {"listen": listen}}) as daemon:
        made = await daemon.command(
            "topic", "create", "self", "--shards", "1", "--endpoint", f"http://{listen}/-/drain"
        )
        assert made.code == 0, made.err
        await publish(folder, "self", 0, 1)

        async def refused() -> Any:
            shard = await daemon.shard("self")
            return shard and "this daemon itself" in shard["reason"]

        await daemon.until(refused, "the topic is refused")
        assert await daemon.shard("self")  # a drained host would have given it away
