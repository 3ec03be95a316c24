"""What the daemon hears from its operator and tells its service manager."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.entries.queues import Queues, a_topic, calm, delivers, quick
from devkit.processes.daemon import running_daemon
from devkit.receivers.receiver import receiving
from remora.model.exits import Exit
from remora.model.shard import Shard

pytestmark = pytest.mark.ceph

DRAIN_S = 60.0
"""How long a drain may take, where one ends at once."""


class Manager:
    """A service manager's end of sd_notify: a real datagram socket."""

    def __init__(self, path: Path) -> None:
        self.env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "2000000"}
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    async def listen(self, until: str, within_s: float = 120.0) -> None:
        """Hear everything up to a message with such a line; TimeoutError when there is none."""
        async with asyncio.timeout(within_s):
            while True:
                lines = (await asyncio.get_running_loop().sock_recv(self._socket, 65536)).decode().splitlines()
                self.heard += lines
                if any(re.match(until, line) for line in lines):
                    return

    def forget(self) -> None:
        """Drop what was sent and not heard yet."""
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(65536):
                pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    """A service manager that listens."""
    with tempfile.TemporaryDirectory(prefix="remora-") as folder:  # a socket's path must be short
        listening = Manager(Path(folder) / "notify")
        yield listening
        listening.close()


def away(queues: Queues, folder: Path) -> dict[str, dict[str, object]]:
    """A configuration whose cluster has no monitor that answers."""
    conf = Path(queues.settings.conf).read_text()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    lines = [line for line in conf.splitlines() if not re.match(r"\s*mon[ _]host", line)]
    section = next(i for i, line in enumerate(lines) if line.strip() == "[global]")
    lines.insert(section + 1, f"mon_host = 127.0.0.1:{port}")
    (folder / "away.conf").write_text("\n".join(lines))
    options = quick(queues)
    options["rados"]["conf"] = str(folder / "away.conf")
    return options


async def test_notifications(queues: Queues, manager: Manager, tmp_path: Path) -> None:
    """The service manager hears that the daemon is up though Ceph is away, how it does, and that it stops."""
    async with running_daemon(tmp_path, away(queues, tmp_path), env=manager.env, ready=False) as daemon:
        await manager.listen("READY=1")
        assert (await daemon.get("/-/ready"))[0] == 503
        if not any(re.match("STATUS=.*store away", each) for each in manager.heard):  # it is said once, early or late
            await manager.listen("STATUS=.*store away")
        await manager.listen("WATCHDOG=1")
        await manager.listen("WATCHDOG=1")

        daemon.send(signal.SIGHUP)
        await manager.listen("RELOADING=1")
        await manager.listen("READY=1")

        daemon.send(signal.SIGTERM)
        await manager.listen("STOPPING=1")
        assert await daemon.ended() == Exit.OK


async def test_frozen_daemon_feeds_no_watchdog(queues: Queues, manager: Manager, tmp_path: Path) -> None:
    """A daemon that does not move is silent, so that its manager notices."""
    async with running_daemon(tmp_path, quick(queues), env=manager.env) as daemon:
        await manager.listen("WATCHDOG=1")
        await daemon.freeze_all()
        manager.forget()

        with pytest.raises(TimeoutError):
            await manager.listen("WATCHDOG=1", 3)

        daemon.thaw_all()
        await manager.listen("WATCHDOG=1")


@pytest.mark.kafka
async def test_reload(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A reload uses what may change, names what needs a restart, and refuses a broken file as a whole."""
    topic = await a_topic(queues, kafka)
    async with running_daemon(tmp_path, quick(queues)) as daemon:
        await queues.fill(topic, 10)
        await delivers(daemon, topic, 10)
        assert " DEBUG " not in daemon.logged()

        daemon.rewrite(log={"level": "debug"}, kafka={"compression": "zstd"})
        daemon.send(signal.SIGHUP)
        await daemon.until_logged("config_reloaded")

        assert "changed=log.level" in daemon.logged()
        await daemon.until_logged("options=kafka.compression")
        await queues.fill(topic, 10, start=10)
        await daemon.until_logged(" DEBUG ")

        daemon.rewrite(log={"level": "error"}, ownership={"lease": "a while"})
        daemon.send(signal.SIGHUP)
        await daemon.until_logged("config_refused")

        assert "ownership.lease" in daemon.logged()
        await queues.fill(topic, 10, start=20)
        await delivers(daemon, topic, 30)
        assert await daemon.metric("remora_config_last_reload_successful") == 0
        assert await daemon.metric("remora_config_reloads_total", result="accepted") == 1
        assert await daemon.metric("remora_config_reloads_total", result="refused") == 1
        assert await daemon.stop() == Exit.OK
        assert " INFO drained" in daemon.logged(), "the old level stands"


@pytest.mark.kafka
@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_reload_of_schemes(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A scheme that a reload adds is delivered, one that it removes is let go, and a Kafka topic's queue never moves.

    Each entry of the HTTP topic arrives once, in order: those that came before the reload, and those under way at the
    next one.
    """
    topic = await a_topic(queues, kafka)
    async with (
        receiving() as receiver,
        running_daemon(tmp_path, calm(queues, destinations={"deny": []})) as daemon,
    ):
        hooks = queues.make(f"{receiver.url}/in")

        async def posted() -> bool:
            return len(receiver.taken) >= 60

        await queues.fill(hooks, 50)
        await queues.fill(topic, 10)
        await delivers(daemon, topic, 10)
        await daemon.leaves(hooks, "http is not among ownership.schemes")
        holder = (await queues.store.inspection.stats(Shard(topic))).holder

        daemon.rewrite(ownership={"schemes": ["kafka", "http"]})
        daemon.send(signal.SIGHUP)
        await queues.drained(hooks)
        async with queues.under_load(hooks, start=50) as load:
            await daemon.until(posted, "what comes in is posted")
            daemon.rewrite(ownership={"schemes": ["kafka"]})
            daemon.send(signal.SIGHUP)
            await daemon.leaves(hooks, "http is not among ownership.schemes")
        left = len(await queues.contents(hooks))
        await queues.fill(topic, 10, start=10)
        await delivers(daemon, topic, 20)

        assert (await queues.store.inspection.stats(Shard(hooks))).holder is None
        kept = (await queues.store.inspection.stats(Shard(topic))).holder
        assert kept is not None
        assert holder is not None
        assert kept.cookie == holder.cookie
        assert " lock_lost " not in daemon.logged()
    bodies = [json.loads(each.body)["Records"][0] for each in receiver.taken]
    numbers = [int(each["responseElements"]["x-amz-request-id"].removeprefix("req.")) for each in bodies]
    assert sorted(numbers) == list(range(load.end - left))
    for key in range(20):
        of_key = [each for each in numbers if each % 20 == key]
        assert of_key == sorted(of_key)


async def test_reload_while_ceph_is_away(queues: Queues, tmp_path: Path) -> None:
    """SIGHUP and SIGTERM are heard at once while no monitor answers."""
    options = away(queues, tmp_path) | {"delivery": {"drain_timeout": f"{DRAIN_S:g}s"}}
    async with running_daemon(tmp_path, options, ready=False) as daemon:

        async def says_why() -> bool:
            code, text = await daemon.get("/-/ready")
            return code == 503 and "store: " in text

        await daemon.until(says_why, "a reason")
        assert (await daemon.status())["store"]["connected"] is False
        daemon.send(signal.SIGHUP)
        await daemon.until_logged("config_reloaded")

        started = time.monotonic()
        assert await daemon.stop() == Exit.OK

        assert time.monotonic() - started < DRAIN_S
