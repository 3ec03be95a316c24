"""A real daemon on the embedded store delivers to a receiver over HTTP that refuses, cuts and goes away."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devkit.processes.daemon import Daemon, Sections, running_daemon
from devkit.processes.ports import free_port
from devkit.receivers.receiver import DROPPED, OK, Arrival, Reply, receiving, status
from support.embedded import drained, publish

EVENTS, KEYS, SHARDS = 400, 20, 3
POISON = 2
"""The first event of a key that has its lane alone: it is refused before the others are delivered, which prove that the
receiver takes events."""


def sections(folder: Path) -> Sections:
    return {
        "supervisor": {"workers": 2, "watchdog": "80s"},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
        "delivery": {"retry_cap": "500ms", "configuration_recheck": "500ms", "drain_timeout": "120s"},
        "http": {"request_timeout": "90s"},  # what is sent twice for being slow arrives twice
    }


def number(arrival: Arrival) -> int:
    return int(json.loads(arrival.body)["Records"][0]["responseElements"]["x-amz-request-id"].removeprefix("req."))


async def drained_but(daemon: Daemon, name: str, letters: int = 0) -> None:
    """Return when nothing waits and the ledger balances, with this many dead letters."""
    await drained(daemon, name)
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
        await publish(folder, "hooks", range(EVENTS), keys=KEYS)
        await drained_but(daemon, "hooks", letters=1)
        await publish(folder, "hooks", range(EVENTS, EVENTS + 50), keys=KEYS)
        await drained_but(daemon, "hooks", letters=1)

        await daemon.counted(len(receiver.taken), "remora_http_requests_total", answer="2xx")
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


@pytest.mark.guarantee("no-loss")
async def test_refusals_that_do_not_fit_into_a_push(folder: Path) -> None:
    """Where a push has time for one answer, two events that are refused in a quiet topic have letters all the same; and
    where nothing is ever taken, an event whose attempts are limited is posted so often and has one."""
    refused = {1, 2}

    def plan(arrival: Arrival) -> Reply:
        return status(422) if number(arrival) in refused or "/none" in arrival.line else OK

    short: Sections = {**sections(folder), "http": {"request_timeout": "1s"}}
    async with receiving(plan) as receiver, running_daemon(folder, short) as daemon:
        for name, *options in (("quiet",), ("none", "--max-retries", "3")):
            made = await daemon.command(
                "topic", "create", name, "--shards", "1", "--endpoint", f"{receiver.url}/{name}", *options
            )
            assert made.code == 0, made.err
        await publish(folder, "quiet", [0], keys=3)
        await drained_but(daemon, "quiet")
        await publish(folder, "quiet", refused, keys=3)
        await publish(folder, "none", [0], keys=3)
        await drained_but(daemon, "quiet", letters=2)
        await drained(daemon, "none")
        [letter] = (await daemon.command("dlq", "list", "--topic", "none", "--json")).json

    posts = [each.line.split()[1] for each in receiver.came]
    assert (letter["cause"], letter["attempts"]) == ("exhausted", 4)
    assert 1 <= posts.count("/none") <= 4
    assert set(map(number, receiver.taken)) == {0}


async def test_a_topic_is_stopped_with_the_reason_and_goes_on(folder: Path) -> None:
    """A receiver that answers 404 stops the topic, as `remora status` shows; put right, it is delivered to at once."""
    good = False
    async with (
        receiving(lambda _: OK if good else status(404)) as receiver,
        running_daemon(folder, sections(folder)) as daemon,
    ):
        made = await daemon.command("topic", "create", "hooks", "--shards", "1", "--endpoint", f"{receiver.url}/s3cret")
        assert made.code == 0, made.err
        await publish(folder, "hooks", range(10), keys=KEYS)

        async def stopped() -> Any:
            shard = await daemon.shard("hooks")
            return shard and shard["state"] == "stopped" and shard["reason"]

        reason = await daemon.until(stopped, "the topic is stopped")

        shown = (await daemon.command("status")).out.decode()  # also while an attempt runs
        good = True
        await drained_but(daemon, "hooks")

    assert "it answers with 404" in reason
    assert "it answers with 404: 1 topic, " in shown
    assert "s3cret" not in reason + shown + daemon.logged()
    assert sorted(number(each) for each in receiver.taken) == list(range(10))


PATHS = {"good": OK, "maint": status(503, "Retry-After: 3600\r\n"), "limit": status(429, "Retry-After: 30\r\n")}
"""How the receiver answers each path."""


async def test_one_path_fails_and_another_path_of_its_host_does_not_wait(folder: Path) -> None:
    """Beside two paths of its host that ask to be left alone, and whose topics come into quarantine, each event for a
    third one is delivered while those wait; the host is in no quarantine."""
    asked: Counter[str] = Counter()

    def plan(arrival: Arrival) -> Reply:
        path = arrival.line.split(" ")[1].removeprefix("/")
        asked[path] += 1
        return PATHS[path]

    rare = {**sections(folder), "supervisor": {"workers": 1}, "quarantine": {"interval": "1s", "ratio": 100}}
    async with receiving(plan) as receiver, running_daemon(folder, rare) as daemon:
        topics = folder / "topics.toml"
        topics.write_text("".join(f'[topic.{name}]\nendpoint = "{receiver.url}/{name}"\n' for name in PATHS))
        assert (await daemon.command("topic", "apply", "-f", topics)).code == 0
        await publish(folder, "maint", range(20), keys=20)
        await publish(folder, "limit", range(20), keys=20)

        async def in_quarantine() -> Any:
            listed = await daemon.command("quarantine", "list", "--json")
            return [each["destination"] for each in listed.json]

        async def are_both() -> Any:
            return await in_quarantine() == [f"{receiver.url}#limit", f"{receiver.url}#maint"]

        await daemon.until(are_both, "both topics are in quarantine")
        for number in range(5):
            await publish(folder, "good", [number], keys=1)
            await daemon.until(lambda: _equal(asked["good"], number + 1), "the event has arrived")  # noqa: B023  # at once

        assert await are_both()
        released = await daemon.command("quarantine", "release", receiver.url)
        assert released.out.decode().splitlines() == [
            f"{receiver.url}#{name} is used again" for name in ("limit", "maint")
        ]
        who = f"uid={os.getuid()} pid="
        assert re.search(rf"quarantine_release: .* destination={re.escape(receiver.url)} {who}", daemon.logged())
        await daemon.until(partial(logs_release, daemon, who), "a worker's own line")


async def logs_release(daemon: Daemon, who: str) -> bool:
    """Whether a worker has logged what it released, and who asked for it."""
    return (
        re.search(rf'destination_released: .* reason="by command" seconds_left=\S+ {who}', daemon.logged()) is not None
    )


async def _equal(one: int, other: int) -> bool:
    return one == other


async def test_the_daemon_refuses_to_post_to_itself(folder: Path) -> None:
    """A topic that names the daemon's own admin port is stopped, and the host is not drained."""
    listen = f"127.0.0.1:{free_port()}"
    async with running_daemon(folder, {**sections(folder), "admin": {"listen": listen}}) as daemon:
        made = await daemon.command(
            "topic", "create", "self", "--shards", "1", "--endpoint", f"http://{listen}/-/drain"
        )
        assert made.code == 0, made.err
        await publish(folder, "self", range(1), keys=KEYS)

        async def refused() -> Any:
            shard = await daemon.shard("self")
            return shard and "this daemon itself" in shard["reason"]

        await daemon.until(refused, "the topic is refused")
        assert await daemon.metric("remora_denied_destinations_total", scheme="http") >= 1
        await daemon.until(lambda: daemon.shard("self"), "its queue")  # a drained host would have given it away
