"""A host of a run: a supervisor with its workers, which can be killed, frozen and told that it is another time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from devkit.chaos.clusters import ChaosError

REMORA = Path(sys.executable).with_name("remora")
CLOCK = Path(__file__).with_name("clock")
START_S = 120.0
STOP_S = 90.0

Sections = Mapping[str, Mapping[str, object]]


class Host:
    """One `remora run`, with a configuration, a clock and a log of its own for all its lives."""

    def __init__(self, number: int, folder: Path, sections: Sections) -> None:
        self.name = f"chaos-{number}"
        self.ingest, self._admin = folder / f"ingest-{number}", folder / f"admin-{number}"
        self.log, self._config = folder / f"remora-{number}.log", folder / f"remora-{number}.toml"
        self._clock = folder / f"clock-{number}"
        self._clock.write_bytes(bytes(8))
        own: dict[str, dict[str, object]] = {
            "ownership": {"host_id": self.name},
            "kafka": {"client_id": self.name},
            "ingest": {"listen": f"unix:{self.ingest}"},
            "admin": {"listen": f"unix:{self._admin}"},
            "log": {"format": "json", "repeat_interval": "1s"},
        }
        if "supervisor" in sections:
            own["supervisor"] = {"run_directory": str(folder / f"run-{number}")}
        names = {*sections, *own}
        self.sections = {name: dict(sections.get(name, {})) | own.get(name, {}) for name in names}
        self.rewrite()
        self._process: asyncio.subprocess.Process | None = None
        self._serves_since_start = False

    # ---------------------------------------------------------------------------------------- life

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started yet"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def reload(self) -> bool:
        """Let it read its file again, if it serves; a process that has just begun would end of the signal."""
        is_serving = self.is_running and self._serves_since_start
        if is_serving:
            self.send(signal.SIGHUP)
        return is_serving

    async def start(self) -> None:
        """Start it; returns when it is ready."""
        self._serves_since_start = False
        environment = os.environ | {"PYTHONPATH": str(CLOCK), "CHAOS_CLOCK": str(self._clock)}
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                REMORA,
                "run",
                "-c",
                self._config,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not await self._serves():
            self.check()
            if time.monotonic() > deadline:
                raise ChaosError(f"{self.name} does not serve within {START_S:.0f} s: {self.last_words()}")
            await asyncio.sleep(0.05)
        self._serves_since_start = True

    def check(self) -> None:
        """Raise ChaosError when it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise ChaosError(f"{self.name} ended by itself with {self._process.returncode}: {self.last_words()}")

    @property
    def workers(self) -> Sequence[int]:
        """The processes that deliver."""
        return children(self.process.pid) or [self.process.pid]

    @property
    def everybody(self) -> Sequence[int]:
        """The supervisor, and its workers behind it."""
        return [self.process.pid, *children(self.process.pid)]

    def send(self, number: signal.Signals, *pids: int) -> None:
        """Send a signal to these, or to the supervisor; who has ended meanwhile does not hear it."""
        for pid in pids or [self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self) -> None:
        """SIGKILL to the supervisor and its workers at once."""
        self.check()
        pids = self.everybody
        self.send(signal.SIGKILL, *pids)
        await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM, and wait for the drain; the exit code."""
        self.check()
        self.send(signal.SIGTERM)
        async with asyncio.timeout(STOP_S):
            return await self.process.wait()

    async def close(self) -> None:
        """Whatever its state: ended, workers too."""
        if self.is_running:
            await self.kill()

    # --------------------------------------------------------------------------------------- looks

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock this many seconds beside the right time."""
        with self._clock.open("r+b") as file:
            file.write(int(seconds * 1e9).to_bytes(8, "little", signed=True))

    def rewrite(self, **sections: Mapping[str, object]) -> None:
        """Change options in its file."""
        for name, options in sections.items():
            self.sections.setdefault(name, {}).update(options)
        lines = []
        for name, options in self.sections.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
        self._config.write_text("\n".join(lines) + "\n")

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output and complaints of a command of remora with this host's configuration."""
        process = await asyncio.create_subprocess_exec(
            REMORA,
            *arguments,
            "-c",
            self._config,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        return process.returncode or 0, out.decode(), err.decode()

    def logged(self, offset: int = 0) -> str:
        """What it has logged behind this many bytes."""
        with self.log.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")

    def last_words(self) -> str:
        return "\n".join(self.logged().splitlines()[-15:])

    async def owned(self) -> int:
        """How many shards its workers hold; 0 when it does not say."""
        _, text = await self._get("/-/status")
        return len(json.loads(text)["shards"]) if text else 0

    async def _serves(self) -> bool:
        return (await self._get("/-/ready"))[0] == 200

    async def _get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the admin server; 0 and nothing when it does not answer."""
        connector = aiohttp.UnixConnector(str(self._admin))
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=5)) as session,
                session.get(f"http://remora{path}") as answer,
            ):
                return answer.status, await answer.text()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, ""


def _toml(value: object) -> str:
    """A value as TOML has it on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def children(pid: int) -> list[int]:
    """The processes that this one has started and that have not ended."""
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _parent(each) == pid]


def _parent(process: Path) -> int:
    """Whose child it is; 0 for one that has ended."""
    try:
        state, parent, *_ = (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(parent)
