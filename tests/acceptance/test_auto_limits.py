"""`auto` limits of balance on real cards and in real control groups: what is read, what is shown, and what moves."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from acceptance.test_daemon_balance import Stream, held
from devkit.processes.control_groups import limited
from devkit.processes.daemon import PATIENT, REMORA, Daemon, Sections, merged, running_daemon
from devkit.processes.links import FAR, limited_link, listening
from devkit.processes.programs import ENVIRONMENT
from devkit.receivers.receiver import OK, Receiver
from remora.model.exits import Exit
from remora.policy.ownership.shedding import RESOURCES

pytestmark = pytest.mark.full("makes network namespaces and control groups, which a shared machine may not allow")

SHARDS = 8
MEBIBYTE = 1 << 20


def a_host(folder: Path, name: str, resource: str) -> Sections:
    """A worker of a host by this name, whose load is one resource alone; all limits are the defaults."""
    weights = {**dict.fromkeys(RESOURCES, 0.0), resource: 1.0}
    own: Sections = {
        "supervisor": {"workers": 1},
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "ownership": {"host_id": name},
        "balance": {
            "interval": "1s", "threshold": 5, "difference": 5, "history": 50, "min_throughput": "0B",
            "weights": weights,
        },
    }  # fmt: skip
    return merged(PATIENT, own)


@asynccontextmanager
async def two_hosts(
    folder: Path, resource: str, url: str, command: Sequence[str], other_command: Sequence[str] = REMORA
) -> AsyncIterator[tuple[Daemon, Daemon, Stream]]:
    """Two hosts on one store, an even share of a topic's queues each, and a stream of its events; the first one's
    command has a limit."""
    first, second = (a_host(folder, name, resource) for name in ("first", "second"))
    async with (
        running_daemon(folder, first, command=command) as limited_one,
        running_daemon(folder, second, command=other_command) as other,
    ):
        done = await other.command("topic", "create", "hooks", "--endpoint", url, "--shards", str(SHARDS))
        assert done.code == Exit.OK, done.err

        async def shared() -> bool:
            return [len(await held(each)) for each in (limited_one, other)] == [SHARDS // 2, SHARDS // 2]

        await other.until(shared, "an even share of the queues")
        yield limited_one, other, Stream(other, "hooks", range(SHARDS), SHARDS)


async def measured_by(daemon: Daemon) -> str:
    """The last line of `balance show`: what memory and network of the host are measured by."""
    return (await daemon.command("balance", "show")).out.decode().splitlines()[-1]


async def relieved(limited_one: Daemon, other: Daemon, stream: Stream, resource: str, least: float) -> None:
    """Return when the first host had this part of the resource in use and has given queues to the other one."""
    most = 0.0

    async def load() -> None:
        while True:
            await stream.send()
            await asyncio.sleep(0.1)

    async def given() -> bool:
        nonlocal most
        (worker,) = (await limited_one.status())["workers"]
        most = max(most, worker["balance"]["resources"][resource])
        return most >= least and len(await held(other)) > SHARDS // 2

    async def told() -> bool:
        shown = (await limited_one.command("balance", "show", "--json")).json["workers"]
        return any(each["skew"] < 0 for each in shown if each["limits"])  # its own row, which says more

    loading = asyncio.create_task(load())
    await other.until(given, f"queues that leave the host for its {resource}", 240)
    loading.cancel()
    await other.until(told, "balance show to tell of them")
    moves = [await each.metric("remora_shard_moves_total", kind="load") for each in (limited_one, other)]
    assert sum(moves) >= 1


async def test_a_slow_card_gives_queues_to_a_host_with_a_fast_one(tmp_path: Path) -> None:
    """A host whose card says 5 Mbit/s, and carries no more, gives queues to the host that has the receiver."""
    receiver = Receiver(lambda _: OK)
    with limited_link(5) as link, listening(link.far, FAR) as way:
        server = await asyncio.start_server(receiver.serve, sock=way)
        url = f"http://{FAR}:{way.getsockname()[1]}"
        commands = (link.on(link.near, *REMORA), link.on(link.far, *REMORA))
        async with server, two_hosts(tmp_path, "host_network_out", url, *commands) as (slow, other, stream):
            assert f"network 610.4KiB per second each way ({link.card})" in await measured_by(slow)
            assert "network not known" in await measured_by(other)  # it has the receiver, and no way elsewhere
            await relieved(slow, other, stream, "host_network_out", 0.15)


async def test_a_small_group_gives_queues_to_a_host_with_more_memory(tmp_path: Path) -> None:
    """A host in a control group of 256 MiB is measured by it, and gives queues to one that has all of the memory."""
    receiver = Receiver(lambda _: OK)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with limited(256 * MEBIBYTE) as group:
        async with server, two_hosts(tmp_path, "memory", url, [*group, *REMORA]) as (small, other, stream):
            assert "256.0MiB for each worker (control group)" in await measured_by(small)
            assert "(host)" in await measured_by(other)
            await relieved(small, other, stream, "memory", 0.1)


LOOK = """
import json, socket, sys, time
from remora.config import BalanceSettings
from remora.process.usage import Usage
from remora.process.usage import usable_cores
used = Usage(1)
if len(sys.argv) > 1:
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as way:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            way.sendall(bytes(10_000))
limits = used.limits(BalanceSettings())
print(json.dumps({
    "network": limits.network, "memory": limits.memory, "cores": usable_cores(), "percents": used.percents(limits),
}))
"""
"""Sends to a socket for some seconds, if one is given, and says what was used of which limits."""


def looked(command: Sequence[str], *arguments: str) -> Any:
    """What a process finds that is started so."""
    argv = [*command, sys.executable, "-c", LOOK, *arguments]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout)


def _swallow(way: socket.socket) -> None:
    connection, _ = way.accept()
    with connection:
        while connection.recv(1 << 16):
            pass


def test_a_card_that_is_full_is_nearly_all_used() -> None:
    """A card's traffic is measured by the speed that it tells: who sends as much as it carries uses most of it."""
    with limited_link(5) as link, listening(link.far, FAR) as way:
        receiving = threading.Thread(target=_swallow, args=(way,))
        receiving.start()
        found = looked(link.on(link.near), FAR, str(way.getsockname()[1]))
        receiving.join()

    assert found["network"] == 625_000
    assert 50 <= found["percents"]["host_network_out"] <= 100
    assert found["percents"]["host_network_in"] < 20


def test_a_group_s_limits_are_read_where_the_kernel_keeps_them() -> None:
    """In a real group with limits of memory and processors both are what a process in it finds and is measured by."""
    with limited(64 * MEBIBYTE, cores=1) as group:
        found = looked(group)

    assert (found["memory"], found["cores"]) == (64 * MEBIBYTE, 1)
    assert 10 <= found["percents"]["memory"] <= 100
