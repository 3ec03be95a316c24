"""`remora sequencer` as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from devkit.processes.daemon import Ended, remora
from devkit.waits import PATIENT_S
from remora.client import SequencerClient


def command(folder: Path, *words: str, data: bytes = b"") -> Ended:
    """Run a command of remora's with the folder's configuration, where no loop runs."""
    with asyncio.Runner() as runner:
        return runner.run(remora(*words, "-c", folder / "remora.toml", stdin=data))


class Server:
    """A running sequencer."""

    def __init__(self, process: asyncio.subprocess.Process, said: list[str]) -> None:
        self.process = process
        self.said = said
        """The lines that it logged until it listened."""
        self.address = said[-1].split()[-1]

    def client(self, *others: Server) -> SequencerClient:
        """A client of this server, and of others after it."""
        return SequencerClient([self.address, *(each.address for each in others)], timeout_s=PATIENT_S)

    async def ended(self, how: signal.Signals) -> int:
        """Send a signal, and wait for the exit code."""
        self.process.send_signal(how)
        return await self.process.wait()


@asynccontextmanager
async def a_server(
    folder: Path, name: str = "one", *options: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """A sequencer that listens, on a socket of this name."""
    listen = name.removeprefix("tcp:") if name.startswith("tcp:") else f"unix:{folder}/{name}.sock"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "remora", "sequencer", "-c", str(folder / "remora.toml"), "--listen", listen, *options,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | (environment or {}),
    )  # fmt: skip
    assert process.stderr is not None
    said = [""]
    try:
        async with asyncio.timeout(PATIENT_S):
            while "listens on" not in said[-1]:
                said.append((await process.stderr.readline()).decode())
                assert said[-1], "the sequencer ended"
        yield Server(process, said)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
