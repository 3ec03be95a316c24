"""A real daemon names the stage that became slow: the receiver's, under load."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from acceptance.test_ingest_daemon import ask
from devkit.processes.daemon import Daemon, Sections, running_daemon
from devkit.receivers.receiver import Arrival, Reply, receiving
from remora.model.exits import Exit
from support.ingest import records

pytestmark = pytest.mark.full("a minute of load; the engine's tests name what is slow on the virtual clock")

SLOWER_S = 0.05


async def _load(daemon: Daemon) -> None:
    """Some events a second, for ever."""
    for number in itertools.count():
        body = records(*(f"k{number}-{each}" for each in range(4)))
        assert (await ask(daemon, "POST", "/v1/topics/hooks/events", body)).status == 200
        await asyncio.sleep(0.1)


async def slow(daemon: Daemon) -> list[str]:
    """The stages that `explain` calls slow by themselves."""
    done = await daemon.command("explain", "hooks", "--json")
    assert done.code == Exit.OK, done.err
    return [each.split(" takes")[0] for each in done.json["slow"]]


async def test_a_receiver_that_becomes_slow_is_named(tmp_path: Path) -> None:
    """`explain`, `status` and the status page's data name the push to it, and nothing before it is slow."""
    delay_s = 0.0

    def plan(arrival: Arrival) -> Reply:
        due = asyncio.Event()
        asyncio.get_running_loop().call_later(delay_s, due.set)
        return Reply(until=due)

    sections: Sections = {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "q")}}
    async with receiving(plan) as receiver, running_daemon(tmp_path, sections) as daemon:
        made = await daemon.command("topic", "create", "hooks", "--endpoint", receiver.url, "--shards", "2")
        assert made.code == Exit.OK, made.err
        loading = asyncio.create_task(_load(daemon))

        async def is_compared() -> bool:
            stages = (await daemon.status())["stages"]
            return any(each["stage"] == "push" and each["before_seconds"] is not None for each in stages)

        await daemon.until(is_compared, "a first window")
        assert "push (http)" not in await slow(daemon)
        delay_s = SLOWER_S

        async def is_named() -> bool:
            return "push (http)" in await slow(daemon)

        await daemon.until(is_named, "the push to be named")
        status = await daemon.status()
        loading.cancel()

    assert any(each.startswith("push (http) takes") for each in status["slow"])
