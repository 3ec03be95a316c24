"""A real daemon whose embedded store goes while it runs, and comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from devkit.processes.daemon import Daemon, running_daemon
from remora.model.exits import Exit
from support.ingest import records

NOBODY = "kafka://127.0.0.1:1"


async def test_a_store_that_goes_and_comes_back(folder: Path) -> None:
    """Without its directory the daemon says so everywhere and makes no other one, neither a worker that is replaced nor
    a daemon that is started again; when it is back, so is everything in it."""
    sections: dict[str, Mapping[str, object]] = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "ingest": {"listen": f"unix:{folder}/ingest"},
        "supervisor": {"workers": 2},
    }
    async with running_daemon(folder, sections) as daemon:
        done = await daemon.command("topic", "create", "t", "--endpoint", NOBODY, "--shards", "3")
        assert done.code == Exit.OK, done.err
        os.rename(folder / "queues", folder / "aside")

        async def says_why() -> bool:
            code, text = await daemon.get("/-/ready")
            return code == 503 and "is gone" in text

        await daemon.until(says_why, "a reason")
        assert "is gone" in (await daemon.status())["store"]["state"]
        assert await daemon.metric("remora_store_connected") == 0
        await daemon.until(lambda: is_failing(daemon), "a cause")

        before = await daemon.workers()
        os.kill(before[1], signal.SIGKILL)

        async def is_replaced() -> bool:
            return (await daemon.workers()).get(1, before[1]) != before[1]

        await daemon.until(is_replaced, "another worker")
        await daemon.until(says_why, "the same reason")
        await daemon.stop()
        await daemon.start(ready=False)
        await daemon.until(lambda: tells(daemon, "is its disk mounted?"), "the same reason")
        assert "queues" not in os.listdir(folder)

        os.rename(folder / "aside", folder / "queues")
        await daemon.until(daemon.is_ready, "the store")
        assert await stored(daemon, "a") == 1
        assert await daemon.metric("remora_store_connected") == 1


async def stored(daemon: Daemon, *keys: str) -> int:
    """How many events of these keys the daemon has taken."""
    connector = aiohttp.UnixConnector(daemon.ingest.removeprefix("unix:"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post("http://remora/v1/topics/t/events", json=records(*keys)) as answer,
    ):
        return int((await answer.json())["stored"])


async def is_failing(daemon: Daemon) -> bool:
    return await daemon.metric("remora_store_failing", cause="gone") == 1


async def tells(daemon: Daemon, text: str) -> bool:
    return text in (await daemon.status())["store"]["state"]
