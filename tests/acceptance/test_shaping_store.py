"""Traffic of a daemon and of commands with OSDs, in one scope of the host."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from devkit.processes.daemon import PATIENT, Daemon, merged, rados_section, running_daemon
from remora.client import IngestClient
from remora.config import RadosSettings
from remora.model.exits import Exit
from support.ingest import record

pytestmark = pytest.mark.ceph

PLENTY = {"guaranteed": "100MB", "burst": "100MB"}
SLOW = {"guaranteed": "5MB", "burst": "1MB"}
SCOPE = {
    "name": "osds",
    "of": "store",
    "enabled": True,
    "meters": dict.fromkeys(("max", "client_high", "client_normal", "client_low"), PLENTY)
    | {"background": SLOW, "idle": SLOW},
}
NOWHERE = "http://127.0.0.1:1/in"
EVENTS = 1500


async def granted(daemon: Daemon) -> dict[str, int]:
    """The bytes that were charged to the scope so far, by priority."""
    flows = (await daemon.command("shaping", "stats", "--json")).json["flows"]
    return {each["priority"]: each["granted_bytes"] for each in flows if each["group"] == "osds"}


async def made(daemon: Daemon, topic: str, events: int, *options: str) -> None:
    """A topic of one shard whose endpoint is away, with so many events."""
    done = await daemon.command("topic", "create", topic, "--endpoint", NOWHERE, "--shards", "1", *options)
    assert done.code == Exit.OK, done.err
    async with IngestClient(daemon.ingest) as client:
        for begin in range(0, events, 500):
            await client.publish(topic, [record(f"k{i}") for i in range(begin, min(events, begin + 500))])


async def letters(daemon: Daemon, topic: str) -> list[Any]:
    found: list[Any] = (await daemon.command("dlq", "list", topic, "--json")).json
    return found


async def test_walks_and_redrives_of_commands_are_charged_to_the_daemons_scope(
    settings: RadosSettings, folder: Path
) -> None:
    """Commits are charged at `max`, what a dump lists at `idle`, and a re-drive at `background`, for what it commits
    and for what it removes; without a daemon a dump works as before."""
    sections: dict[str, dict[str, object]] = {
        "store": {"kind": "rados"},
        "rados": rados_section(settings),
        "shaping": {"scope": [SCOPE]},
    }
    async with running_daemon(folder, merged(PATIENT, sections)) as daemon:
        await made(daemon, "dumped", EVENTS)
        await made(daemon, "parked", 20, "--time-to-live", "1s")

        async def are_letters() -> bool:
            return len(await letters(daemon, "parked")) == 20

        await daemon.until(are_letters, "letters of what has expired")
        raw = sum(len(base64.b64decode(each["raw"])) for each in await letters(daemon, "parked"))
        assert (await granted(daemon)).get("background", 0) == 0

        before = await granted(daemon)
        assert before["max"] > EVENTS * 200
        dumped = await daemon.command("topic", "dump", "dumped")
        assert (dumped.code, len(dumped.out.splitlines())) == (Exit.OK, EVENTS), dumped.err
        after = await granted(daemon)
        assert after["idle"] - before["idle"] > EVENTS * 200

        done = await daemon.command("dlq", "redrive", "--topic", "parked", "--yes")
        assert done.out.decode() == "20 re-driven\n", done.err
        assert 1.8 * raw < (await granted(daemon))["background"] < 2.2 * raw
        assert await daemon.stop() == Exit.OK
        alone = await daemon.command("topic", "dump", "dumped")
        assert (alone.code, alone.err, len(alone.out.splitlines())) == (Exit.OK, "", EVENTS)
