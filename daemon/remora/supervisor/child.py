"""One worker process in its supervisor: starts it, sends it messages, reads its answers, reaps it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

import msgspec

from remora.model.exits import Exit
from remora.process import program
from remora.process.alone import Alone
from remora.process.pipe import (
    Ask,
    AskedFor,
    Failed,
    Heartbeat,
    Message,
    Pipe,
    Ready,
    Reply,
    Shares,
    Start,
    ToSupervisor,
    WantGroup,
)

POLL_S = 0.05
"""How often a worker is looked at whose end no descriptor tells any longer."""

MANAGERS = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""The service manager's words to its own child, which is the supervisor."""


class WorkerProcess(Protocol):
    """A process that this one has started, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    def wait(self) -> int:
        """Its exit code, as soon as it has ended."""
        ...

    def kill(self) -> None:
        """End it at once; without effect where it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker process that waits for its first message, and the supervisor's end of its pipe."""

    process: WorkerProcess
    channel: socket.socket
    end: int
    """A descriptor that can be read from when the process has ended."""


class Child:
    """A worker process. Calls `hear` with each of its messages, and with None when it has ended."""

    def __init__(
        self,
        spawned: Spawned,
        cookie: str,
        number: int,
        hear: Callable[[Child, ToSupervisor | None], None],
        alone: Alone,
    ) -> None:
        self.number = number
        self.cookie = cookie
        self.pid = spawned.process.pid
        self.started_at = asyncio.get_running_loop().time()
        self.ready_at: float | None = None
        self.heartbeat: Heartbeat | None = None
        self.failed: Failed | None = None
        self.code: int | None = None
        """The exit code, negative for a signal; None while it runs."""
        self.is_given_up = False
        """Whether the supervisor ended it for a defect of its own."""
        self._process = spawned.process
        self._channel = spawned.channel
        self._end = spawned.end
        self._on_message = hear
        self._alone = alone
        self._pipe: Pipe | None = None
        self._unsent: list[Message] = []
        """What it is to get as soon as its pipe is open."""
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._questions = 0

    @property
    def is_ready(self) -> bool:
        """Whether it works: it has been ready and has not ended."""
        return self.ready_at is not None and self.code is None

    @property
    def why(self) -> str:
        """What its end was, in plain words."""
        if self.failed is not None:
            return self.failed.reason
        if self.code is None:
            return "it does not end"
        if self.code == Exit.OUT_OF_MEMORY:
            return "it could not allocate memory, and said why"
        return f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"

    async def run(self, start: Start) -> None:
        """Tell it to start, and hear what it says, until it has ended and is reaped."""
        what = f"worker {self.number}"
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self._end)
            undo.callback(self._channel.close)
            undo.callback(self._forget_questions)
            with self._alone.step(what):
                await self._serve(start)
            if self.code is None:
                await self._alone.task(what, self._give_up)
        with self._alone.step(what):
            self._on_message(self, None)

    async def _serve(self, start: Start) -> None:
        """Do what `run` says; what fails here leaves the process to `_give_up`."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            loop.add_reader(self._end, ended.set)
            undo.callback(loop.remove_reader, self._end)
            pipe = await Pipe.opened(self._channel)
            undo.callback(pipe.close)
            for each in (start, *self._unsent):
                pipe.send(each)
            self._unsent.clear()
            self._pipe = pipe
            hearing = asyncio.ensure_future(self._alone.task(f"messages of worker {self.number}", self._hear))
            undo.callback(hearing.cancel)
            await ended.wait()
            code = self._process.wait()
            await hearing  # its last words are in the pipe, and the pipe ends with it
            self.code = code

    async def _give_up(self) -> None:
        """Ends a worker whose messages no task reads after a defect, and waits for its end."""
        self.is_given_up = True
        self._process.kill()
        while (code := self._process.poll()) is None:  # noqa: ASYNC110  # what would tell may be what failed
            await asyncio.sleep(POLL_S)
        self.code = code

    def _forget_questions(self) -> None:
        for each in self._asked.values():
            each.cancel()

    def tell(self, message: Message) -> None:
        """Send it a message, as soon as it can get any; without effect when it has ended."""
        if self._pipe is None:
            self._unsent.append(message)
        else:
            self._pipe.send(message)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        if self.code is None:
            self._process.kill()

    async def ask(self, what: AskedFor, within_s: float) -> bytes | None:
        """Its answer as JSON; None when it does not answer in time."""
        self._questions += 1
        number = self._questions
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell(Ask(number=number, what=what))
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if answer.cancelled():
                return None
            raise
        finally:
            del self._asked[number]

    async def _hear(self) -> None:
        assert self._pipe is not None
        while (line := await self._pipe.line()) is not None:
            with self._alone.step(f"a message of worker {self.number}"):
                self._take(msgspec.json.decode(line, type=ToSupervisor))

    def _take(self, message: ToSupervisor) -> None:
        match message:
            case Ready():
                self.ready_at = asyncio.get_running_loop().time()
            case Failed():
                self.failed = message
            case Heartbeat():
                self.heartbeat = message
            case WantGroup() | Shares():
                pass
            case Reply():
                if (answer := self._asked.get(message.number)) is not None and not answer.done():
                    answer.set_result(bytes(message.body))
                return
            case _:
                assert_never(message)
        self._on_message(self, message)


def start_process(inherited: Sequence[int]) -> Spawned:
    """Start a worker process as a program of its own, which inherits these descriptors under their numbers.

    Raises OSError when the host cannot start one now.
    """
    environment = program.environment({name: value for name, value in os.environ.items() if name not in MANAGERS})
    return spawned(
        lambda channel: subprocess.Popen(  # noqa: S603  # the very program that runs here
            # -P: a folder named remora where the daemon happens to be started is not the package.
            [sys.executable, "-P", "-m", "remora", "worker", str(channel)],
            stdin=subprocess.DEVNULL,
            pass_fds=(channel, *inherited),
            env=environment,
        )
    )


def spawned(start: Callable[[int], WorkerProcess]) -> Spawned:
    """The process that `start` makes, which is given the number of its end of the channel; raises what that raises."""
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as undo, theirs:
        undo.callback(ours.close)
        process = start(theirs.fileno())
        undo.callback(process.wait)
        undo.callback(process.kill)
        end = os.pidfd_open(process.pid)
        undo.pop_all()
    return Spawned(process, ours, end)
