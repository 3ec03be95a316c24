"""`remora sequencer` with several workers: they hand out one log together, and are killed and frozen."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.processes.daemon import write_config
from devkit.processes.processes import gone, state
from devkit.waits import PATIENT_S, until
from remora.client import SequencerClient
from remora.codec import speedups
from remora.model.log import LogName
from support.sequencer_process import Server, a_server
from support.stopping import IN_TURN, Stopping, until_stopped

pytestmark = [
    pytest.mark.guarantee("positions-of-a-log"),
    pytest.mark.skipif(speedups.SequencerCells is None, reason="the codec is not compiled"),
]

IDS = LogName(b"remora", b"ids")
NEXT = bytes.fromhex("00000013 0800 1206 72656d6f7261 1a03 696473 2001 4001".replace(" ", ""))
"""`next` of the counter remora/ids, whatever its epoch is."""
STEPS_OF_A_TURN = 5
"""Before and behind recv, behind the look at the clock, before and behind send."""


def configure(folder: Path, workers: int = 2, lease: str = "600s") -> None:
    """Write the folder's configuration."""
    write_config(
        folder / "remora.toml",
        {
            "store": {"kind": "sqlite"},
            "sqlite": {"directory": f"{folder}/queues", "files": 1},
            "sequencer": {
                "workers": workers, "lease": lease, "create": "counter", "admin_listen": f"unix:{folder}/admin.sock",
            },
        },
    )  # fmt: skip


async def status(folder: Path) -> dict[str, Any]:
    """What the status page says."""
    connector = aiohttp.UnixConnector(str(folder / "admin.sock"))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://r/-/status") as found:
        return dict(await found.json())


async def positions(server: Server, count: int) -> list[int]:
    """Positions that were taken over as many connections, one each, in the order in which they were asked for."""
    found: list[int] = []
    for _ in range(count):
        async with SequencerClient([server.address], timeout_s=PATIENT_S) as client:
            found.append((await client.next(IDS)).position)
    return found


async def test_workers_hand_out_one_log(folder: Path) -> None:
    """Positions grow over the connections of all workers; one that is killed, and one that is frozen, costs nothing but
    its connections, and another one comes in its place."""
    configure(folder)
    async with a_server(folder) as server:
        began = (await status(folder))["workers"]
        first = await positions(server, 20)
        os.kill(began[0], signal.SIGKILL)
        second = await positions(server, 20)
        os.kill(began[1], signal.SIGSTOP)  # it is killed for its silence
        third = await positions(server, 20)
        await gone(began)

        async def are_new() -> bool:
            now = (await status(folder))["workers"]
            return len(now) == 2 and not set(now) & set(began)

        await until(are_new, within_s=PATIENT_S)
        fourth = await positions(server, 20)
        assert await server.ended(signal.SIGTERM) == 0

    found = [*first, *second, *third, *fourth]
    assert found == sorted(set(found))
    async with a_server(folder) as server:
        assert await positions(server, 1) == [found[-1] + 1]  # a clean stop leaves no hole


async def test_a_worker_that_cannot_be_started_is_tried_again(folder: Path) -> None:
    """While there is no descriptor for a new worker the other one hands positions out, and the new one comes later."""
    configure(folder)
    async with a_server(folder) as server:
        began = (await status(folder))["workers"]
        first, (few, most) = await positions(server, 5), resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, most))
        os.kill(began[0], signal.SIGKILL)
        assert server.process.stderr is not None
        async with asyncio.timeout(PATIENT_S):
            while b"a sequencer worker cannot be started" not in await server.process.stderr.readline():
                pass
        second = await positions(server, 5)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (few, most))

        async def are_two() -> bool:
            now = (await status(folder))["workers"]
            return len(now) == 2 and began[1] in now

        await until(are_two, within_s=PATIENT_S)
        third = await positions(server, 5)

    assert first + second + third == [*range(1, 16)]


DEFECT = """
import importlib, itertools, pathlib

module, _, name = {place!r}.rpartition(":")
owner, _, method = name.partition(".")
owner = getattr(importlib.import_module(module), owner)
was, calls = getattr(owner, method), itertools.count(1)

def defective(*given):
    call = next(calls)
    pathlib.Path({seen!r}).write_text(str(call))
    if call == 3:
        raise KeyError("a defect of this test")
    return was(*given)

setattr(owner, method, defective)
"""
"""Python runs it as it starts: the third call of this method fails."""


@pytest.mark.parametrize(
    "place",
    ["remora.engine.sequencer:Sequencing.begin_renewals", "remora.sequencer.workers:SequencerWorkers._hear"],
    ids=["renewing", "hearing"],
)
async def test_a_defect_costs_its_round(folder: Path, place: str) -> None:
    """A defect while locks are renewed, or while a worker is heard, is counted, and both go on."""
    configure(folder, lease="2s")
    faults, seen = folder / "faults", folder / "calls"
    faults.mkdir()
    (faults / "sitecustomize.py").write_text(DEFECT.format(place=place, seen=str(seen)))
    path = os.pathsep.join([str(faults), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with a_server(folder, environment={"PYTHONPATH": path}) as server:
        first = await positions(server, 5)

        async def goes_on() -> bool:
            return int(seen.read_text() or "0") >= 9 if seen.exists() else False

        await until(goes_on, within_s=PATIENT_S)
        second = await positions(server, 5)
        connector = aiohttp.UnixConnector(str(folder / "admin.sock"))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://r/metrics") as found:
            assert "remora_crashes_total 1.0" in await found.text()

    assert first + second == sorted({*first, *second})


async def test_workers_end_with_the_first_process(folder: Path) -> None:
    """When the process that registers logs is killed its workers end, and hand nothing out."""
    configure(folder)
    async with a_server(folder) as server:
        began = (await status(folder))["workers"]
        await server.ended(signal.SIGKILL)

        await gone(began)


async def test_without_a_compiler_there_is_one(folder: Path) -> None:
    """Without the compiled core one process hands positions out, and says so."""
    configure(folder)
    async with a_server(folder, environment={"REMORA_PURE_PYTHON": "1"}) as server:
        assert (await status(folder))["workers"] == [server.process.pid]
        assert "sequencer.workers is 2, and one process hands positions out" in "".join(server.said)
        assert await positions(server, 2) == [1, 2]


def settled(folder: Path) -> int:
    """The bound of the counter in the store."""
    with closing(sqlite3.connect(next((folder / "queues").glob("*.db")))) as file:
        found: int = file.execute("SELECT bound FROM logs WHERE name = ?", (IDS.name,)).fetchone()[0]
    return found


async def replies(reader: asyncio.StreamReader) -> list[int]:
    """The positions of all further replies of a connection, until it is closed."""
    found: list[int] = []
    while True:
        try:
            body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return found
        if body[:4] != bytes.fromhex("08001001"):
            found.append(body[1] if body[1] < 0x80 else body[1] & 0x7F | body[2] << 7)


@pytest.mark.full("a server for each step; the order of steps is tried in tests/unit/policy/test_epoch_cells.py")
@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGKILL])
@pytest.mark.parametrize("step", range(1, STEPS_OF_A_TURN + 1))
async def test_a_worker_is_halted_at_each_step_of_a_turn(folder: Path, step: int, how: signal.Signals) -> None:
    """Wherever a worker stands still while its epoch ends: what it sends when it is thawed lies below the figure that
    was settled, and the next server begins behind that, so that no number comes twice."""
    configure(folder)
    stopping = Stopping(folder, IN_TURN)
    async with a_server(folder, environment=stopping.environment) as server:
        workers = (await status(folder))["workers"]
        reader, writer = await asyncio.open_unix_connection(server.address.removeprefix("unix:"))
        before: list[int] = []
        while not before:
            writer.write(NEXT)
            body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            before = [body[1]] if body[3:4] != b"\1" or len(body) != 4 else []
        stopping.order(step)
        writer.write(NEXT * 3)
        stopped = await halted(workers)

        server.process.send_signal(signal.SIGTERM)

        async def is_settled() -> bool:
            return settled(folder) < 1000

        await until(is_settled, within_s=PATIENT_S)
        figure = settled(folder)
        os.kill(stopped, how)
        late = await replies(reader)
        writer.close()
        await asyncio.wait_for(server.process.wait(), PATIENT_S)
    async with a_server(folder, "next") as server:
        (following,) = await positions(server, 1)

    assert all(each <= figure for each in late)
    assert following == figure + 1


async def halted(pids: list[int]) -> int:
    """The one of these processes that stands still, once one does."""

    async def one_is() -> bool:
        return any(state(each) == "T" for each in pids)

    await until(one_is, within_s=PATIENT_S)
    (found,) = [each for each in pids if state(each) == "T"]
    await until_stopped(found, PATIENT_S)
    return found
