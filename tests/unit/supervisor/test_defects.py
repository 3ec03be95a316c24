"""An unexpected exception wherever the supervisor waits for something or asks policy, and children that are hurt."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devkit.awaits import Awaits, loaded_with_places
from devkit.readers.samples import sample_value
from remora import config
from remora.model.caller import NOBODY
from remora.model.errors import ConfigError
from remora.model.exits import Exit
from remora.policy.status import readiness
from support import small_worker

pytestmark = pytest.mark.timeout(900)

WAIT_S = 60.0

FAILURES = (RuntimeError, KeyError, OSError, MemoryError)

METERS = (
    "meters = { client_low = { guaranteed = '1MB', burst = '10KiB' }, max = { guaranteed = '1MB', burst = '10KiB' } }"
)

SCOPES = f"""
[[shaping.scope]]
name = "uplink"
of = "host"
enabled = true
adaptive = true
{METERS}
[[shaping.scope]]
name = "brokers"
of = "destination"
match = ["kafka*", "10.0.0.0/8"]
enabled = true
across = "cluster"
{METERS}
"""

FILE = """
[supervisor]
workers = 2
[admin]
listen = "unix:{folder}/admin"
control_socket = "{folder}/control"
[log]
repeat_interval = "20ms"
[ingest]
listen = ""
[[ingest.limit]]
name = "all"
of = "topic"
events = {events}
burst_events = 100
{scopes}
"""

QUICK = {
    "policy.restart.CAP_S": 0.01,
    "process.alone.AGAIN_S": 0.02,
    "supervisor.child.POLL_S": 0.01,
    "supervisor.shaping.REPORT_S": 0.02,
}

GUARDED = (
    "supervisor.child.Child.run 2",
    "supervisor.supervisor.Supervisor.run 1",
    "supervisor.supervisor.Supervisor._serve 1",
    "supervisor.supervisor.Supervisor._serve 2",
    "supervisor.supervisor.Supervisor._end_all",
    "supervisor.supervisor.Supervisor._all_ended 1",
)
"""Where it waits for what guards itself: a defect can only be further in, at places that are tried."""


@pytest.fixture(scope="module")
def tried() -> set[str]:
    """The places where a defect happened before."""
    return set()


@pytest.fixture(scope="module")
def awaits() -> Iterator[Awaits]:
    """The supervisor's modules, with a place at each of their waits and of their calls into policy."""
    with pytest.MonkeyPatch.context() as patch:
        entered: list[Awaits] = []

        def check(place: str) -> None:
            for each in entered:
                each.check(place)

        watch_policy(patch, check)
        with loaded_with_places("remora.supervisor", "remora.process.alone") as found:
            entered.append(found)
            for name, value in QUICK.items():
                module, _, constant = name.rpartition(".")
                patch.setattr(importlib.import_module(f"remora.{module}"), constant, value)
            supervisor = importlib.import_module("remora.supervisor.supervisor")
            patch.setattr(supervisor, "configure_logging", lambda _: None)
            yield found


def watch_policy(patch: pytest.MonkeyPatch, check: Callable[[str], None]) -> None:
    """Have each call from the supervisor's modules into those of policy checked before it is made."""
    importlib.import_module("remora.supervisor.supervisor")
    modules = [module for name, module in sys.modules.items() if name.startswith("remora.policy.")]
    for module in modules:
        for name, each in list(vars(module).items()):
            if getattr(each, "__module__", "") != module.__name__:
                continue
            if inspect.isfunction(each):
                patch.setattr(module, name, checked(each, check))
            elif inspect.isclass(each) and not getattr(each, "_is_protocol", False):
                for method, value in list(vars(each).items()):
                    if inspect.isfunction(value) and (method == "__init__" or not method.startswith("__")):
                        patch.setattr(each, method, checked(value, check))
                    elif isinstance(value, property) and value.fget is not None:
                        patch.setattr(each, method, property(checked(value.fget, check)))


def checked(function: Callable[..., Any], check: Callable[[str], None]) -> Callable[..., Any]:
    """The function; calls that the supervisor's modules make are places of their own."""

    def call(*args: Any, **named: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_globals["__name__"].startswith("remora.supervisor."):
            code = caller.f_code
            check(f"policy: {code.co_qualname} line {caller.f_lineno} calls {function.__qualname__}")
        return function(*args, **named)

    return call


class Trial:
    """A supervisor with two small workers in this process's event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "remora.toml"
        self._rounds = 0
        self._bad_ends = 0
        self.refusals: list[OSError] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.write()
        module = importlib.import_module("remora.supervisor.supervisor")
        self.supervisor = module.Supervisor(config.load(self._file, {}), self._file, self.spawn)
        self.registry = self.supervisor._telemetry.registry

    def write(self) -> None:
        """Another configuration each time, in turns with scopes of traffic and without."""
        scopes = SCOPES if self._rounds % 2 == 0 else ""
        self._file.write_text(FILE.format(folder=self._folder, events=1000 + self._rounds, scopes=scopes))

    def spawn(self, inherited: Sequence[int]) -> Any:
        """A small worker; after `_bad_ends` was set one that the supervisor cannot watch."""
        if self.refusals:
            raise self.refusals.pop()
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [sys.executable, "-I", "-S", small_worker.__file__, str(theirs.fileno())]
            process = subprocess.Popen(arguments, pass_fds=(theirs.fileno(),))
        end = os.pidfd_open(process.pid)
        if self._bad_ends:
            self._bad_ends -= 1
            os.close(end)
            end = os.open(self._file, os.O_RDONLY)  # which no selector takes
        self.processes.append(process)
        return importlib.import_module("remora.supervisor.child").Spawned(process, ours, end)

    def crashes(self) -> float:
        return sample_value(self.registry, "remora_crashes_total") or 0.0

    async def begins(self, task: asyncio.Task[Any]) -> bool:
        """Whether it begins to start workers; else it has failed before."""
        async with asyncio.timeout(WAIT_S):
            while not self.processes and not task.done():  # noqa: ASYNC110  # a list
                await asyncio.sleep(0.005)
        if self.processes:
            return True
        assert isinstance(task.exception(), (*FAILURES, BaseExceptionGroup))
        return False

    async def whole(self) -> None:
        """Return when both workers are ready and answer."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            assert asyncio.get_running_loop().time() < deadline, self.said()
            with contextlib.suppress(*FAILURES):
                workers = (await self.supervisor._view.status())["workers"]
                if len(workers) == 2 and all(each["answers"] and each["ready"] for each in workers):
                    return
            await asyncio.sleep(0.005)

    def said(self) -> list[Any]:
        """How the workers are, for a test that fails."""
        slots = self.supervisor._slots
        return [(each.child and vars(each.child), each.due_at - asyncio.get_running_loop().time()) for each in slots]

    async def hurt(self) -> None:
        """Kill a worker, whose successor cannot be watched, change files and shaping, and ask for everything."""
        self._rounds += 1
        it = self.supervisor
        self._bad_ends = 1
        self.refusals = [BlockingIOError(errno.EAGAIN, "no process")]
        it._shaper._rng = Clumsy(it._shaper)
        for slot in it._slots[self._rounds % 2 :]:
            if slot.child is not None:
                slot.child.kill()
        self.write()
        it._on_reload()
        changes: list[Callable[[], object]] = [
            lambda: it._shaping.change(b'{"scope":"all","enabled":%s}' % (b"true", b"false")[self._rounds // 2 % 2]),
            lambda: it._drain(self._rounds % 2 == 0, NOBODY),
            lambda: it._release(None, NOBODY),
        ]
        for change in changes:
            with contextlib.suppress(*FAILURES, ConfigError):
                change()
        questions: list[Callable[[], Any]] = [it._shaping.show, it._view.metrics, it._view.status]
        questions.append(lambda: it._view.readiness(readiness.ready))
        for question in questions:
            with contextlib.suppress(*FAILURES):
                await question()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[Any]]:
        task = asyncio.create_task(self.supervisor.run())
        try:
            yield task
        finally:
            if not task.done():
                self.supervisor._on_stop("SIGTERM")
                self.supervisor._on_stop("SIGTERM")
            await asyncio.wait([task], timeout=WAIT_S)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                asyncio.get_running_loop().remove_signal_handler(number)


class Clumsy(Random):
    """Fails once, and so does the task that uses it."""

    def __init__(self, shaper: Any) -> None:
        super().__init__()
        self._shaper = shaper

    def shuffle(self, x: Any) -> None:
        self._shaper._rng = Random(7)
        raise ArithmeticError("a defect")


@contextlib.contextmanager
def a_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        yield Path(name)


async def test_a_defect_ends_neither_the_supervisor_nor_its_workers(awaits: Awaits, tried: set[str]) -> None:
    """Wherever one supervisor fails, again and again while its workers are hurt, both work again, and it lives on."""
    with a_folder() as folder:
        trial = Trial(folder)
        async with trial.running() as task:
            await trial.whole()
            awaits.passed.clear()
            for _ in range(8):
                await trial.hurt()
                await trial.whole()
            missed = []
            for number, place in enumerate(sorted(awaits.passed[""])):
                if place.startswith(GUARDED):
                    continue
                awaits.arm(place, "", FAILURES[number % len(FAILURES)])
                until = asyncio.get_running_loop().time() + WAIT_S
                while not awaits.hits and asyncio.get_running_loop().time() < until:
                    await trial.hurt()
                    await trial.whole()
                    assert not task.done(), place
                if not awaits.hits:  # a report that waits for a killed worker's answer begins no other meanwhile
                    missed.append(place)
                tried.add(place)
            awaits.arm("", "", RuntimeError)
            await trial.hurt()
            await trial.whole()

            assert len(tried) > 50
            assert missed == []
            assert trial.crashes() > len(tried) / 2
            trial.supervisor._on_stop("SIGTERM")
            assert await task == Exit.OK


async def test_a_defect_at_the_start_or_the_stop_leaves_no_worker_behind(awaits: Awaits, tried: set[str]) -> None:
    """Wherever it fails, a supervisor that has begun to start workers has all of them work, and ends all at a stop."""
    awaits.arm("", "", RuntimeError)
    awaits.passed.clear()
    await begin_and_end()
    for number, place in enumerate(sorted(awaits.passed[""].keys() - tried)):
        if not place.startswith(GUARDED):
            awaits.arm(place, "", FAILURES[number % len(FAILURES)])
            await begin_and_end(place)
            assert awaits.hits, place
            tried.add(place)

    assert [place for place in awaits.places if place not in tried and not place.startswith(GUARDED)] == []


async def begin_and_end(place: str = "") -> None:
    """One life; what failed before any worker was there may end it."""
    with a_folder() as folder:
        try:
            trial = Trial(folder)
        except FAILURES:
            assert place.startswith("policy: "), place
            return
        async with trial.running() as task:
            if not await trial.begins(task):
                return
            await trial.whole()
            assert not task.done(), place
            trial.supervisor._on_stop("SIGTERM")
            async with asyncio.timeout(WAIT_S):
                assert await task == Exit.OK, place
        assert [each.poll() for each in trial.processes] == [0] * len(trial.processes) or place
        assert None not in [each.poll() for each in trial.processes]


async def test_two_workers_that_end_in_the_same_moment_are_replaced(awaits: Awaits) -> None:
    """The successor of one is told of the other's end though its pipe is not open yet, and both work."""
    awaits.arm("", "", RuntimeError)
    with a_folder() as folder:
        trial = Trial(folder)
        async with trial.running() as task:
            await trial.whole()
            ended = list(trial.supervisor._slots)
            for slot in ended:
                slot.child.code = slot.child._process.kill() or -9
            trial.supervisor._reconcile()

            await trial.whole()
            assert not task.done()
            assert trial.crashes() == 0


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENOENT])
async def test_a_worker_is_tried_again_until_the_host_can_start_it(awaits: Awaits, number: int) -> None:
    """Also the first ones: each failure counts, the log says them once, and the supervisor becomes ready."""
    awaits.arm("", "", RuntimeError)
    with a_folder() as folder:
        trial = Trial(folder)
        trial.refusals = [OSError(number, os.strerror(number))] * 5
        async with trial.running() as task:
            await trial.whole()

            assert not task.done()
            assert sample_value(trial.registry, "remora_worker_start_failures_total") == 5
            assert trial.crashes() == 0


BAD_LINES = [b"", b"no json", b"\xff\xfe", b"[]", b'{"type":"Unknown"}', b'{"type":"Shares","shares":{"a":"b"}}']


async def test_a_worker_that_talks_nonsense_costs_nobody_anything(awaits: Awaits) -> None:
    """Lines that are no messages are logged and passed over: what else the same worker says is heard."""
    awaits.arm("", "", RuntimeError)
    with a_folder() as folder:
        trial = Trial(folder)
        async with trial.running() as task:
            await trial.whole()
            child = trial.supervisor._slots[0].child
            child._pipe._reader.feed_data(b"\n".join(BAD_LINES) + b"\n")

            async with asyncio.timeout(WAIT_S):
                while trial.crashes() < len(BAD_LINES):  # noqa: ASYNC110  # a counter
                    await asyncio.sleep(0.005)
            await trial.whole()
            assert not task.done()
            assert trial.supervisor._slots[0].child is child


async def test_a_reload_takes_the_file_that_a_start_would_take(
    awaits: Awaits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was named must be there; the default one may come and go, and the log says what was read."""
    awaits.arm("", "", RuntimeError)
    caplog.set_level("INFO")
    with a_folder() as folder:
        trial = Trial(folder)
        it, file = trial.supervisor, trial.supervisor._file
        monkeypatch.setattr(config.document, "DEFAULT_FILE", file)

        def read_from() -> list[str]:
            fields = [getattr(each, "fields", {}) for each in caplog.records]
            return [each["config"] for each in fields if "changed" in each]

        async with trial.running():
            await trial.whole()
            file.unlink()
            it._on_reload()
            assert read_from() == []
            assert sample_value(trial.registry, "remora_config_last_reload_successful") == 0

            it._file = None
            it._on_reload()
            assert sample_value(trial.registry, "remora_config_last_reload_successful") == 1
            trial.write()
            it._on_reload()
            assert read_from() == ["built-in", str(file)]
