"""A real daemon whose embedded store goes while it runs, and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp
import pytest

from devkit.processes.daemon import REMORA, Daemon, running_daemon
from devkit.processes.mounts import TMPFS, ext4, mounted
from devkit.receivers.http_sink import http_sink
from devkit.testing.cases import cases
from remora.model.exits import Exit
from remora.storage.sqlite.files.directories import place_of
from support.crowded_disk import Crowd
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


async def test_a_directory_that_is_unmounted(folder: Path) -> None:
    """A further directory whose file system goes is named by readiness, status and metric. Its host stays ready and
    serves the topic in the other. When it is mounted again, nothing is named and its topic has what it had."""
    first, further = folder / "queues", folder / "disk"
    further.mkdir()
    (folder / "aside").mkdir()
    sections: dict[str, Mapping[str, object]] = {
        "sqlite": {"directories": [str(first), str(further)], "files": 1},
        "ingest": {"listen": f"unix:{folder}/ingest"},
    }
    with mounted(TMPFS.format(megabytes=64), further) as (enter, _):
        async with http_sink() as sink, running_daemon(folder, sections, command=[*enter, *REMORA]) as daemon:
            await sink.open()
            here, gone = (name_in(number) for number in (0, 1))
            for topic, endpoint in ((here, sink.url), (gone, NOBODY)):
                done = await daemon.command("topic", "create", topic, "--endpoint", endpoint)
                assert done.code == Exit.OK, done.err
            assert await stored(daemon, "a", topic=gone) == 1
            lost = f"directory {further} is lost"

            async def names(is_lost: bool) -> bool:
                code, text = await daemon.get("/-/ready")
                return code == 200 and (lost in text) is is_lost

            await move(enter, further, folder / "aside")
            await daemon.until(lambda: names(True), "the directory's name")
            for question in ("/-/ready/ingest", "/-/ready/delivery"):
                code, text = await daemon.get(question)
                assert (code, lost in text) == (200, True), text
            assert lost in str((await daemon.status())["store"]["damaged"])
            assert lost in (await daemon.command("status", "--check")).out.decode()
            assert await daemon.metric("remora_store_part_lost", path=str(further)) == 1
            assert await is_failing(daemon, "directory")
            assert await stored(daemon, "b", topic=here) == 1
            await sink.until(1)

            await move(enter, folder / "aside", further)
            await daemon.until(lambda: names(False), "the disk")
            assert await daemon.metric("remora_store_part_lost", path=str(further)) == 0
            assert await stored(daemon, "c", topic=gone) == 1
            listed = json.loads((await daemon.command("shard", "list", "--json")).out)
            assert sum(each["entries"] for each in listed if each["queue"].startswith(gone)) == 2


async def test_all_files_are_damaged(folder: Path) -> None:
    """Where every file is damaged requests get 500, and readiness, status and metrics say that the store is of no
    use."""
    sections: dict[str, Mapping[str, object]] = {
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "ingest": {"listen": f"unix:{folder}/ingest"},
    }
    async with running_daemon(folder, sections) as daemon:
        done = await daemon.command("topic", "create", "t", "--endpoint", NOBODY, "--shards", "3")
        assert done.code == Exit.OK, done.err
        assert await stored(daemon, "a") == 1
        for path in (folder / "queues").glob("queues-*.db"):
            for each in (path, path.with_name(f"{path.name}-wal")):
                each.write_bytes(b"\xa5" * each.stat().st_size)

        await send(daemon, "t", lambda status: status == 500)
        await daemon.until(lambda: says(daemon, "/-/ready", "is damaged"), "the reason")
        assert await says(daemon, "/-/ready/ingest", "is damaged")
        assert await says(daemon, "/-/ready/delivery", "is damaged")
        assert await daemon.metric("remora_store_connected") == 0
        # Each worker's own look at the store sets it, a moment after the request that found the damage.
        await daemon.until(lambda: is_failing(daemon, "damaged"), "the metric")
        assert not (await daemon.status())["store"]["connected"]


async def stored(daemon: Daemon, *keys: str, topic: str = "t") -> int:
    """How many events of these keys the daemon has taken."""
    connector = aiohttp.UnixConnector(daemon.ingest.removeprefix("unix:"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://remora/v1/topics/{topic}/events", json=records(*keys)) as answer,
    ):
        return int((await answer.json())["stored"])


def name_in(directory: int) -> str:
    """A topic that lies in this directory of two with one file each."""
    return next(name for name in "abcdefgh" if place_of(name, 1)[1] % 2 == directory)


async def move(enter: Sequence[str], mounted_at: Path, to: Path) -> None:
    """Have a mount lie elsewhere; who uses its files keeps them."""
    moving = await asyncio.create_subprocess_exec(*enter, "mount", "--move", mounted_at, to)
    assert await moving.wait() == 0


async def is_failing(daemon: Daemon, cause: str = "gone") -> bool:
    return await daemon.metric("remora_store_failing", cause=cause) == 1


async def tells(daemon: Daemon, text: str) -> bool:
    return text in (await daemon.status())["store"]["state"]


SECONDS, PER_SECOND, AT_ONCE = 20, 200, 10


def numbered(first: int, count: int) -> dict[str, object]:
    """Events that differ, each of a key of its own."""
    return records(*(f"{number:08}" for number in range(first, first + count)))


async def send(daemon: Daemon, topic: str, enough: Callable[[int], bool]) -> int:
    """Send events at a steady rate until the answer is enough, those that found no room again; how many were stored."""
    connector = aiohttp.UnixConnector(daemon.ingest.removeprefix("unix:"))
    sent, began = 0, time.monotonic()
    async with aiohttp.ClientSession(connector=connector) as session:
        status = 200
        while not enough(status):
            async with session.post(f"http://remora/v1/topics/{topic}/events", json=numbered(sent, AT_ONCE)) as answer:
                status = answer.status
                assert status in (200, 500, 507), await answer.text()
                sent += AT_ONCE if status == 200 else 0
            await asyncio.sleep(max(0.0, began + sent / PER_SECOND - time.monotonic()))
    return sent


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("block", cases(0, more=[4096]), ids=["tmpfs", "ext4"])
async def test_a_disk_that_others_fill(block: int, folder: Path) -> None:
    """While others hold each byte of the disk, longer than a lease, everything is delivered, once, and a daemon can be
    started; the readiness says that the disk is full as soon as events find no room, and not that of delivery."""
    place = folder / "disk"
    place.mkdir()
    sections: dict[str, Mapping[str, object]] = {
        "sqlite": {"directory": str(place / "queues"), "files": 2},
        "ingest": {"listen": f"unix:{folder}/ingest"},
        "supervisor": {"workers": 2, "watchdog": "12s"},
        "ownership": {"lease": "15s", "renew_interval": "3s", "trust_margin": "1s"},
        "http": {"request_timeout": "90s"},
    }
    mount = ext4(64, block) if block else TMPFS.format(megabytes=64)
    with mounted(mount, place) as (enter, seen):
        async with http_sink() as sink, running_daemon(folder, sections, command=[*enter, *REMORA]) as daemon:
            await sink.open()
            done = await daemon.command("topic", "create", "t", "--endpoint", sink.url, "--shards", "3")
            assert done.code == Exit.OK, done.err
            done = await daemon.command("topic", "create", "u", "--endpoint", NOBODY, "--shards", "3")
            assert done.code == Exit.OK, done.err
            others, until = Crowd(seen / "others"), time.monotonic() + SECONDS
            sending = asyncio.create_task(send(daemon, "t", lambda _: time.monotonic() > until))
            await sink.until(PER_SECOND // 10)
            await others.comes()
            sent = await sending
            await sink.until(sent)
            assert len(sink.bodies) == sent, "copies"

            await send(daemon, "u", lambda status: status == 507)
            await daemon.until(lambda: says(daemon, "/-/ready", "the disk is full"), "the reason")
            assert await says(daemon, "/-/ready/ingest", "the disk is full")
            assert await daemon.is_ready("/-/ready/delivery")
            assert await daemon.metric("remora_store_failing", cause="full") == 1
            assert await daemon.metric("remora_store_connected") == 1
            assert await daemon.stop() == Exit.OK
            await daemon.start(ready=False)
            await daemon.until(lambda: daemon.is_ready("/-/ready/delivery"), "a start")
            await others.goes()
            await daemon.until(daemon.is_ready, "room")
            assert await stored(daemon, "a") == 1
            await sink.until(sent + 1)
            assert len(sink.bodies) == sent + 1, "copies"
            assert "OwnershipLost" not in daemon.logged()


async def says(daemon: Daemon, question: str, why: str) -> bool:
    """Whether an answer about the readiness is no, for this reason."""
    code, text = await daemon.get(question)
    return code == 503 and why in text
