"""A real `remora run`: its configuration is written, it is started as a process of its own, asked, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from devkit.processes import forked
from devkit.processes.processes import children, freeze, gone
from devkit.waits import PATIENT_S, pause_s
from remora.config import RadosSettings

Sections = Mapping[str, Mapping[str, object]]

REMORA = (sys.executable, "-m", "remora")
"""The command, with the interpreter that runs the tests."""

START_S = STOP_S = 1.5 * PATIENT_S
ANSWER_S = PATIENT_S
"""No test is about these: they end what hangs, on a machine that does other work."""

OF_A_WORKER_S = 3.0
"""A supervisor leaves a worker out that has not answered within this time."""

Options = dict[str, dict[str, object]]
"""What a configuration file says, by its sections."""

PATIENT: Sections = {
    "supervisor": {"watchdog": "80s"},
    "kafka": {"delivery_timeout": "100s", "transaction_timeout": "110s"},
    "delivery": {"drain_timeout": "120s"},
}
"""For tests in which nothing is away: nothing is sent again because a process stood still for some seconds."""


def merged(one: Sections, other: Sections) -> Options:
    """The options of both; where they differ those of the other."""
    return {name: {**one.get(name, {}), **other.get(name, {})} for name in (*one, *other)}


def rados_section(settings: RadosSettings) -> dict[str, object]:
    """The `[rados]` section that gives these settings."""
    given = dataclasses.asdict(settings).items()
    return {
        key.removesuffix("_s"): f"{value:g}s" if key.endswith("_s") else value for key, value in given if value != ""
    }


def write_config(file: Path, sections: Sections) -> Path:
    """Write a configuration file; values are strings and whole numbers."""
    lines = []
    for name, options in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_in_toml(value)}" for key, value in options.items()]
    file.write_text("\n".join(lines) + "\n")
    return file


def _in_toml(value: object) -> str:
    """A value of an option; a table is written in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_in_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_toml, value))}]"
    return json.dumps(value)


_PROGRESS = re.compile(r"remora: \d\d+:\d\d ")


@dataclass(frozen=True)
class Ended:
    """What a command gave."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        """What it printed, read as one JSON document."""
        return json.loads(self.out)


def complaints(err: str) -> list[str]:
    """The lines on a command's standard error but those that say how long it has taken: a slow machine has more."""
    return [line for line in err.splitlines() if not _PROGRESS.match(line)]


async def remora(*arguments: str | Path, stdin: bytes = b"", command: Sequence[str] = REMORA) -> Ended:
    """Run a command of `remora` to its end, whatever becomes of it."""
    if command is REMORA and "run" not in arguments[:2] and forked.is_possible():  # `run` begins its own program anew
        async with asyncio.timeout(2 * PATIENT_S):
            code, out, err = await forked.run([*map(str, arguments)], stdin)
        return Ended(code, out, err.decode(errors="replace"))
    process = await asyncio.create_subprocess_exec(
        *command,
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(2 * PATIENT_S):
            out, err = await process.communicate(stdin)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return Ended(process.returncode or 0, out, err.decode(errors="replace"))


class Daemon:
    """One `remora run`: a supervisor with its workers, in a session of their own, so that they can be hurt together.

    Two workers, unless the sections say otherwise. It may be started again after it ended; the log is one file for all
    its lives.
    """

    answer_s = ANSWER_S
    """How long its admin server may take."""

    def __init__(
        self, folder: Path, sections: Sections, command: Sequence[str] = REMORA, env: Mapping[str, str] | None = None
    ) -> None:
        """`command` runs remora; `env` is added to the environment."""
        # A unix socket needs a short path, and no port that another process might take meanwhile.
        self._socket = Path(tempfile.mkdtemp(prefix="remora-")) / "admin"
        number = len(list(folder.glob("remora*.toml")))
        self.config = folder / f"remora{number or ''}.toml"
        self.log = self.config.with_suffix(".log")
        self.sections: dict[str, dict[str, object]] = {name: dict(options) for name, options in sections.items()}
        self.sections.setdefault("admin", {}).setdefault("listen", f"unix:{self._socket}")
        self.sections["admin"].setdefault("control_socket", str(self._socket.with_name("control")))
        self.sections.setdefault("ingest", {}).setdefault("listen", f"unix:{self._socket.with_name('ingest')}")
        supervisor = self.sections.setdefault("supervisor", {})
        supervisor.setdefault("workers", 2)
        supervisor.setdefault("run_directory", str(self._socket.with_name("run")))
        self._command = command
        self._env = dict(os.environ) | dict(env or {})
        self._process: asyncio.subprocess.Process | None = None
        self.rewrite()

    def rewrite(self, **sections: Mapping[str, object]) -> None:
        """Change options in the file; a running daemon reads it again on SIGHUP."""
        for name, options in sections.items():
            self.sections.setdefault(name, {}).update(options)
        write_config(self.config, self.sections)

    # ---------------------------------------------------------------------------------------- life

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started yet"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, *, ready: bool = True) -> None:
        """Start it; returns when it is ready, or with `ready=False` as soon as its servers listen."""
        assert not self.is_running
        self._socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "run",
                "-c",
                str(self.config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        await self.until(self.is_ready if ready else self._listens, "a start", START_S)

    def send(self, number: signal.Signals) -> None:
        """A signal to the supervisor alone."""
        self.process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """A signal to the supervisor and all its workers, at once."""
        os.killpg(self.pid, number)

    async def workers(self) -> dict[int, int]:
        """The pid of each worker that runs, by its number."""
        return {each["number"]: each["pid"] for each in (await self.status())["workers"]}

    async def freeze_all(self) -> None:
        """SIGSTOP supervisor and workers; returns when all of them stand still."""
        await freeze([self.pid, *children(self.pid)])

    def thaw_all(self) -> None:
        """SIGCONT supervisor and workers."""
        self.send_all(signal.SIGCONT)

    async def ended(self, timeout_s: float = STOP_S) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()

    async def stop(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM, and wait for the drain; the exit code."""
        if self.is_running:
            self.send(signal.SIGTERM)
        return await self.ended(timeout_s)

    async def kill_all(self) -> None:
        """SIGKILL supervisor and workers, as a power cut does: nothing is released. Returns when all are gone."""
        if self.is_running:
            pids = children(self.pid)
            self.send_all(signal.SIGKILL)
            await self.ended()
            await gone(pids)

    async def close(self) -> None:
        """Whatever its state, closed before or not: ended, and its socket gone. A stopped process is killed."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGTERM)
                self.thaw_all()
            try:
                await self.ended(60)
            except TimeoutError:
                await self.kill_all()
        self._socket.unlink(missing_ok=True)
        self._socket.with_name("ingest").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._socket.parent)

    # --------------------------------------------------------------------------------------- looks

    @property
    def ingest(self) -> str:
        """Where it takes events in: `unix:/path` or `host:port`."""
        return str(self.sections["ingest"]["listen"])

    async def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> tuple[int, str]:
        """The status code and text of a path of the admin server."""
        listen = str(self.sections["admin"]["listen"])
        on_socket = listen.startswith("unix:")
        connector = aiohttp.UnixConnector(listen.removeprefix("unix:")) if on_socket else None
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=self.answer_s)) as session,
            session.request(method, f"http://{'localhost' if on_socket else listen}{path}", headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    async def _of_all_workers(self, path: str) -> tuple[int, str]:
        """As `get`; asked again where a worker may have been left out because it, or its supervisor, stood still."""
        began = time.monotonic()
        answer = await self.get(path)
        return answer if time.monotonic() - began < OF_A_WORKER_S else await self.get(path)

    async def status(self) -> Any:
        """/-/status."""
        code, text = await self._of_all_workers("/-/status")
        assert code == 200, text
        return json.loads(text)

    async def shard(self, queue: str) -> Any:
        """What /-/status says of a queue that is held; None when it is not held."""
        return next((each for each in (await self.status())["shards"] if each["queue"] == queue), None)

    async def left(self, queue: str) -> Any:
        """What /-/status says of a queue that is not held; None when it is held, unknown, or about to be taken."""
        left = [each for each in (await self.status())["left"] if not each["waiting"]]
        return next((each for each in left if each["queue"] == queue), None)

    async def leaves(self, queue: str, why: str) -> Any:
        """As `left`, once the reason has these words.

        Where one worker lets go, another of the host may be the first to be heard: it had left the queue to that one.
        """

        async def says_why() -> Any:
            left = await self.left(queue)
            return left if left and why in left["reason"] else None

        return await self.until(says_why, f"{queue} left: {why}")

    async def own(self, *queues: str) -> None:
        """Return when it holds the queues. One that a radosgw was quicker to lock is claimed from it."""
        for queue in queues:

            async def decided(queue: str = queue) -> bool:
                left = await self.left(queue)
                return bool((left and left["owner"]) or await self.shard(queue))

            async def claimed(queue: str = queue) -> bool:
                return bool(await self.shard(queue)) or (await self.command("shard", "claim", queue)).code == 0

            await self.until(decided, f"an owner of {queue}")
            await self.until(claimed, f"the claim of {queue}")

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        _, text = await self._of_all_workers("/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def counted(self, count: float, name: str, **labels: str) -> None:
        """Return when the sum of a metric's samples that have these labels is exactly this."""

        async def is_so_much() -> bool:
            return await self.metric(name, **labels) == count

        await self.until(is_so_much, f"{name} {count}")

    async def is_ready(self, path: str = "/-/ready") -> bool:
        """Whether it is, all its workers having answered within their time."""
        return await self._answers(path, 200)

    def logged(self, offset: int = 0) -> str:
        """What it has logged so far behind this many bytes."""
        return self.log.read_bytes()[offset:].decode(errors="replace") if self.log.exists() else ""

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.logged().splitlines()[-15:])

    async def command(self, *arguments: str | Path, stdin: bytes = b"") -> Ended:
        """A command of `remora` with this daemon's configuration."""
        return await remora(*arguments, "-c", self.config, stdin=stdin, command=self._command)

    async def until(self, condition: Callable[[], Awaitable[object]], what: str, timeout_s: float = PATIENT_S) -> Any:
        """The condition's first true answer; fails when the daemon ends before, or with its log after the time."""
        looked_at = time.monotonic()
        deadline = looked_at + timeout_s
        while not (answer := await condition()):
            assert self.is_running, f"{what}: remora ended with {self.process.returncode}\n{self.last_words()}"
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s\n{self.last_words()}"
            await asyncio.sleep(pause_s(time.monotonic() - looked_at))
            looked_at = time.monotonic()
        return answer

    async def until_logged(self, text: str) -> None:
        """Return when the log has this."""

        async def is_there() -> bool:
            return text in self.logged()

        await self.until(is_there, f"{text!r} in the log")

    async def _answers(self, path: str, *codes: int) -> bool:
        """Whether a path answers with one of these codes; not, if nobody listens or the daemon ends meanwhile."""
        try:
            return (await self.get(path))[0] in codes
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def _listens(self) -> bool:
        return await self._answers("/-/live", 200, 503)


@contextlib.asynccontextmanager
async def running_daemon(
    folder: Path,
    sections: Sections,
    *,
    command: Sequence[str] = REMORA,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
) -> AsyncIterator[Daemon]:
    """A daemon that is ready; ended afterwards, whatever was done to it. Each gets a file and a log of its own."""
    daemon = Daemon(folder, sections, command, env)
    try:
        await daemon.start(ready=ready)
        yield daemon
    finally:
        await daemon.close()
