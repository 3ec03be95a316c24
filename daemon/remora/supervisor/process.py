"""The supervisor's process: its sockets, the workers that it starts with, and its event loop, in this order.

The first workers are forked before there is an event loop. All of them then share the memory of what was imported, and
nobody imports it again. That is safe only while the process has nothing but imported modules and settings: one thread,
no event loop, no connection. So it happens once. A worker that is started later, in another's place, is a program of
its own (`child.start_process`), and so is each where a fork is refused. docs/decisions/forked-workers.md weighs this.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from remora.app import import_for_workers, listeners
from remora.config import Settings
from remora.metrics import configure_logging
from remora.model.exits import Exit
from remora.process import program
from remora.process.program import end_with
from remora.supervisor.child import MANAGERS, Spawned, spawned, start_process
from remora.supervisor.supervisor import Supervisor

Work = Callable[[int], Exit]
"""What a worker process does with its end of the pipe; its exit code."""


class ForkedProcess:
    """A process that this one has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """As `WorkerProcess`."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """As `WorkerProcess`."""
        while (code := self._wait(0)) is None:
            pass
        return code

    def kill(self) -> None:
        """As `WorkerProcess`."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


class FirstWorkers:
    """Hands out worker processes: those that were forked, and then others."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._forked: list[Spawned] = []

    @contextmanager
    def forked(self, count: int, inherited: Collection[int]) -> Iterator[None]:
        """Fork so many workers now, which inherit these descriptors and wait for their first message.

        Those that nobody has taken are ended when the block is left.
        """
        gc.freeze()  # what was imported stays, and no collection of a worker writes to it
        with suppress(OSError):  # too many processes, too little memory: `spawn` tries again, and says so
            while len(self._forked) < count and is_alone():
                self._forked.append(_fork(inherited, self._work))
        try:
            yield
        finally:
            for each in self._forked:
                each.process.kill()
                each.process.wait()
                os.close(each.end)
                each.channel.close()

    def spawn(self, inherited: Sequence[int]) -> Spawned:
        """A worker process, which inherits these descriptors under their numbers: for all workers the same ones.

        Raises OSError when the host cannot start one now.
        """
        return self._forked.pop(0) if self._forked else start_process(inherited)


def is_alone() -> bool:
    """Whether this process has a single thread, so that no lock of another one is held in a fork of it."""
    return len(os.listdir("/proc/self/task")) == 1


def _fork(inherited: Collection[int], work: Work) -> Spawned:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # else what is not written yet is written twice
        with suppress(OSError):
            stream.flush()

    def start(channel: int) -> ForkedProcess:
        pid = os.fork()
        if not pid:
            _be_worker(channel, inherited, work)
        return ForkedProcess(pid)

    return spawned(start)


def _be_worker(channel: int, inherited: Collection[int], work: Work) -> NoReturn:
    """Become what a started worker is: with the same descriptors, signals and environment; work, and end the process.

    What the supervisor has made stays referred to by the calls below this one, so that nothing of it is closed twice.
    """

    def begin() -> Exit:
        _close_all_but({1, 2, channel, *inherited})
        os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free: standard input
        for name in MANAGERS:
            os.environ.pop(name, None)
        for number in (signal.SIGINT, signal.SIGHUP):  # for the supervisor, until the worker has its own handlers
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        program.show_as("remora", "worker", str(channel))
        return work(channel)

    end_with(begin)


def _close_all_but(kept: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the one that the list was read by
                os.close(int(name))


def run(settings: Settings, file: Path | None, work: Work, retired: Sequence[str] = ()) -> Exit:
    """Deliver until a signal; returns the exit code. Raises WorkerFailed when a worker ends before it is ready.

    `file` is the configuration file that was given, `work` what a worker process does, `retired` what to say of options
    of the file that are none any longer.
    """
    configure_logging(settings.log)
    import_for_workers(settings)
    workers = FirstWorkers(work)
    with listeners(settings) as listening:
        supervisor = Supervisor(settings, file, workers.spawn, retired, listening)
        with workers.forked(supervisor.count, supervisor.inherited), asyncio.Runner() as runner:
            return runner.run(supervisor.run())
