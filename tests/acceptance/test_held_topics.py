"""A real daemon on the embedded store keeps the events of a held topic, and delivers them when it is resumed."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path

import pytest

from acceptance.test_ingest_daemon import ask
from devkit.processes.daemon import Sections, merged, running_daemon
from devkit.receivers.receiver import OK, Arrival, Reply, receiving
from devkit.waits import slowness, until
from support.embedded import drained, publish
from support.ingest import records

EVENTS, SHARDS = 60, 3


def path_of(arrival: Arrival) -> str:
    return arrival.line.split()[1]


def sections(folder: Path) -> Sections:
    return {
        "supervisor": {"workers": 2, "watchdog": "80s"},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
        "http": {"request_timeout": "90s"},
    }


@pytest.mark.guarantee("topics-of-remoras-own", "no-loss")
async def test_a_topic_is_held_beside_another_one(folder: Path) -> None:
    """A held topic takes events in and delivers none, another one goes on; status, metric and `explain` say so, and
    resumed all of it arrives, each event once."""
    async with receiving(lambda _: OK) as receiver, running_daemon(folder, sections(folder)) as daemon:
        for name in ("held", "free"):
            words = ("--shards", str(SHARDS), "--endpoint", f"{receiver.url}/{name}")
            assert (await daemon.command("topic", "create", name, *words)).code == 0
        await daemon.own(*("held", "held.1", "held.2"))
        done = await daemon.command("topic", "hold", "held", "--reason", "a rebuild")
        assert done.code == 0, done.err

        async def is_known() -> bool:
            is_shown = await daemon.metric("remora_topic_held", topic="held") == 1
            return is_shown and daemon.logged().count("topic_held: ") == 2  # each worker says so

        await daemon.until(is_known, "every worker knows of the hold")
        for name in ("held", "free"):
            await publish(folder, name, range(EVENTS), keys=20)
        await drained(daemon, "free")

        async def is_held() -> bool:
            states = {each["queue"]: each["state"] for each in (await daemon.status())["shards"]}
            return all(states.get(each) == "held" for each in ("held", "held.1", "held.2"))

        await daemon.until(is_held, "all of its queues wait")
        shown, explained = await asyncio.gather(daemon.command("status"), daemon.command("explain", "held"))
        assert {path_of(each) for each in receiver.taken} == {"/free"}

        assert (await daemon.command("topic", "resume", "held")).code == 0
        await drained(daemon, "held")

    text = "held by an operator until it is resumed: a rebuild"
    assert f"held: topic held is {text}" in shown.out.decode()
    assert f"its topic is {text}" in explained.out.decode()
    for name in ("held", "free"):
        assert len([each for each in receiver.taken if path_of(each) == f"/{name}"]) == EVENTS


async def test_the_copy_for_a_held_topic_waits(folder: Path) -> None:
    """Of an event that goes to a held topic and to another one, the other's copy arrives; the held one's stays, as
    `explain` says, and arrives when the topic is resumed."""
    given = {name: each for name, each in sections(folder).items() if name != "ingest"}
    async with receiving(lambda _: OK) as receiver, running_daemon(folder, given) as daemon:
        for name in ("held", "free"):
            done = await daemon.command("topic", "create", name, "--endpoint", f"{receiver.url}/{name}")
            assert done.code == 0, done.err
        to_both = ("--topic", "held", "--topic", "free", "--bucket", "b")
        done = await daemon.command("notification", "create", "both", *to_both)
        assert done.code == 0, done.err
        done = await daemon.command("topic", "hold", "held", "--reason", "a rebuild")
        assert done.code == 0, done.err

        async def is_known() -> bool:
            is_shown = await daemon.metric("remora_topic_held", topic="held") == 1
            return is_shown and daemon.logged().count("topic_held: ") == 2  # each worker says so

        async def sent() -> bool:
            answer = await ask(daemon, "POST", "/v1/events", records("cat.jpg"))
            return answer.status == 200 and bool(answer.json["topics"])

        await daemon.until(is_known, "every worker knows of the hold")
        await daemon.until(sent, "the notification is known")
        await drained(daemon, "free")
        explained = await daemon.command("explain", "b/cat.jpg", "--json")
        text = await daemon.command("explain", "b/cat.jpg")
        before = [path_of(each) for each in receiver.taken]

        assert (await daemon.command("topic", "resume", "held")).code == 0
        await drained(daemon, "held")

    assert before == ["/free"]
    (waiting,) = json.loads(explained.out)["waiting"]
    assert waiting["queue"].partition(".")[0] == "held"
    assert "its topic is held by an operator until it is resumed: a rebuild" in text.out.decode()
    assert [path_of(each) for each in receiver.taken] == ["/free", "/held"]


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_every_host_stops_within_three_seconds_of_a_hold(folder: Path) -> None:
    """Two hosts deliver a topic whose events go on coming: 3 s after the command has ended nothing arrives any more, on
    a machine that is slow as many times later; resumed, all of it arrives."""
    arrived: list[float] = []
    sent = 0

    def taken(_: Arrival) -> Reply:
        arrived.append(time.monotonic())
        return OK

    async def send() -> None:
        nonlocal sent
        for start in itertools.count(0, 20):
            await publish(folder, "busy", range(start, start + 20), keys=20)
            sent += 20

    one, other = (
        merged(sections(folder), {"ownership": {"host_id": name}, "supervisor": {"workers": 1, "watchdog": "80s"}})
        for name in ("one", "other")
    )
    async with (
        receiving(taken) as receiver,
        running_daemon(folder, one) as first,
        running_daemon(folder, other) as second,
    ):
        words = ("--shards", "4", "--endpoint", f"{receiver.url}/busy")
        assert (await first.command("topic", "create", "busy", *words)).code == 0

        async def states() -> list[list[str]]:
            return [[each["state"] for each in (await host.status())["shards"]] for host in (first, second)]

        async def is_shared() -> bool:
            return [len(each) for each in await states()] == [2, 2]

        async def is_held() -> bool:
            return sorted(itertools.chain(*await states())) == ["held"] * 4

        await until(is_shared, "each host has half of the queues")
        sending = asyncio.create_task(send())
        await until(lambda: len(arrived) > 100, "events arrive")
        done = await first.command("topic", "hold", "busy")
        told = time.monotonic()
        assert done.code == 0, done.err
        await until(is_held, "all of its queues wait")
        before = sent
        await until(lambda: sent >= before + 40 or sending.done(), "further events")
        last = max(arrived)
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()

        assert (await second.command("topic", "resume", "busy")).code == 0
        await drained(first, "busy")

    assert last - told <= 3.0 * slowness()
    assert len({each.body for each in receiver.taken}) >= sent
