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
from typing import Literal, assert_never

import msgspec

from remora.model.exits import Exit
from remora.process.pipe import (
    Ask,
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

_MANAGERS = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""The service manager's words to its own child, which is the supervisor."""

_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=33554432:glibc.malloc.mmap_threshold=4194304"
"""How a worker's C library keeps memory, unless the environment says it: in huge pages where the system has them for
who asks (fewer misses when an address is looked up), and 32 MiB at the heap's end are not given back, as the next
listing needs them again. A tenth of a busy worker's processor time. Other C libraries do not know the variable."""


class Child:
    """A worker process. Calls `hear` with each of its messages, and with None when it has ended."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        cookie: str,
        number: int,
        hear: Callable[[Child, ToSupervisor | None], None],
    ) -> None:
        self.number = number
        self.cookie = cookie
        self.pid = process.pid
        self.started_at = asyncio.get_running_loop().time()
        self.ready_at: float | None = None
        self.heartbeat: Heartbeat | None = None
        self.failed: Failed | None = None
        self.code: int | None = None
        """The exit code, negative for a signal; None while it runs."""
        self._process = process
        self._on_message = hear
        self._pipe: Pipe
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

    async def run(self, channel: socket.socket, start: Start) -> None:
        """Tell it to start, and hear what it says, until it has ended and is reaped."""
        ended = asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        self._pipe = await Pipe.opened(channel)
        try:
            self.tell(start)
            hearing = asyncio.ensure_future(self._hear())
            await ended.wait()
            code = self._process.wait()
            await hearing  # its last words are in the pipe, and the pipe ends with it
            self.code = code
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            self._pipe.close()
            for each in self._asked.values():
                each.cancel()
        self._on_message(self, None)

    def tell(self, message: Message) -> None:
        """Send it a message; without effect when it has ended."""
        self._pipe.send(message)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        if self.code is None:
            self._process.kill()

    async def ask(self, what: Literal["use", "status", "metrics"], within_s: float) -> bytes | None:
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
        while (line := await self._pipe.line()) is not None:
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


def start_process(inherited: Sequence[int]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A worker process that waits for its first message, and the supervisor's end of its pipe.

    It inherits these descriptors under their numbers.
    """
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name not in _MANAGERS}
    environment.setdefault("GLIBC_TUNABLES", _MEMORY)
    with contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        with theirs:
            process = subprocess.Popen(  # noqa: S603  # the very program that runs here
                # -P: a folder named remora where the daemon happens to be started is not the package.
                [sys.executable, "-P", "-m", "remora", "worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *inherited),
                env=environment,
            )
        undo.pop_all()
    return process, ours
