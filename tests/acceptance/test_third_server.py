"""A third kind of server is one new folder and one line in `app.py`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from devkit.processes.daemon import REMORA, Sections, running_daemon
from support.copies import checked_imports, copied

LINE = (
    '    "line": ServerKind(\n'
    '        lambda settings: __import__("remora.servers.line_server", fromlist=["_"]).listen(settings),\n'
    '        lambda *given: __import__("remora.servers.line_server", fromlist=["_"]).serve(*given),\n'
    "    ),\n"
)


@pytest.fixture
def copy(folder: Path) -> Path:
    """The package with a server more; the folder that holds it."""
    return copied(folder, part="line_server", into="servers", module="app", table="SERVERS:", line=LINE)


def test_its_imports_are_allowed(copy: Path) -> None:
    """Every contract of the layers holds with it."""
    assert checked_imports(copy) == ""


async def test_every_worker_serves_it_beside_the_ingest_api(folder: Path, copy: Path) -> None:
    """The supervisor listens for it, a worker answers from its store, and the daemon still ends cleanly."""
    sections: Sections = {
        "supervisor": {"workers": 2},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": f"unix:{folder / 'ingest.sock'}"},
    }
    command = ("env", f"PYTHONPATH={copy}", sys.executable, *REMORA[1:])
    environment = {"PYTHONPATH": str(copy), "LINE_SERVER": f"unix:{folder / 'line.sock'}"}

    async with running_daemon(folder, sections, command=command, env=environment) as daemon:
        reader, writer = await asyncio.open_unix_connection(folder / "line.sock")
        writer.write(b"what do you serve?\n")
        answer = await reader.readline()
        writer.close()

        assert str(folder / "queues") in answer.decode()
        assert (await daemon.status())["ingest"] == f"unix:{folder / 'ingest.sock'}"
        assert await daemon.stop() == 0
