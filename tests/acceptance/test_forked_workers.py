"""The workers that a real daemon starts with: what they share, what they load, and who comes in their place."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from devkit.processes.daemon import Sections, running_daemon
from devkit.processes.processes import children
from remora.model.exits import Exit
from support.ingest import ndjson, record

HEAVY = ("aiokafka", "aiohttp", "gssapi", "cramjam", "cryptography", "librados", "pyarrow", "opentelemetry", "protobuf")
"""Libraries that a worker without a topic does not need; each has compiled parts, which are mapped once it loads."""

LEAST_SHARED = 4 << 20


def maps(pid: int) -> str:
    """What a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()


def shown(pid: int) -> list[str]:
    """A process's words as `ps` shows them."""
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def shared_bytes(pid: int) -> int:
    """The memory of its own that a process shares with others: none but what was there before a fork."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(each.split()[1]) << 10 for each in lines if each.startswith("Shared_Dirty:"))


async def test_the_first_workers_share_their_imports_and_load_clients_by_need(folder: Path) -> None:
    """Both are forked, and load Kafka's client with their first event for it; a successor is a program of its own."""
    sections: Sections = {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(folder / "queues"), "files": 2}}
    async with running_daemon(folder, sections) as daemon:

        async def whole() -> bool:
            return await daemon.metric("remora_workers") == 2

        await daemon.until(whole, "two workers")
        first, second = children(daemon.pid)
        for pid in (first, second):
            assert shown(pid)[:2] == ["remora", "worker"]
            assert [each for each in HEAVY if each in maps(pid)] == []
            assert shared_bytes(pid) > LEAST_SHARED

        topic = ("topic", "create", "t", "--endpoint", "kafka://127.0.0.1:1", "--shards", "4")
        assert (await daemon.command(*topic)).code == Exit.OK
        events = ndjson(*(record(f"key-{number}") for number in range(20)))
        assert (await daemon.command("send", "t", stdin=events)).code == Exit.OK

        async def have_client() -> bool:
            return all("aiokafka" in maps(pid) for pid in (first, second))

        await daemon.until(have_client, "Kafka's client in both workers")

        os.kill(first, signal.SIGKILL)
        await daemon.until(lambda: asyncio.sleep(0, 'reason="killed by SIGKILL"' in daemon.logged()), "its end")
        await daemon.until(whole, "a successor")
        (later,) = {*children(daemon.pid)} - {second}
        assert shown(later)[1:5] == ["-P", "-m", "remora", "worker"]
        assert await daemon.stop() == Exit.OK
