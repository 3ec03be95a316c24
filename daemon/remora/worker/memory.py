"""A worker that cannot allocate memory ends, with a line that says why.

Where memory is short, any line of any part may fail: a callback of the event loop, the store's thread, Kafka's sender.
Each of them outlives it, and the worker goes on with whatever is left: it loses locks that it did not renew, reads the
same entries again and delivers them again and again. So the first such failure ends the process at once. Better, a look
finds that little is left before anything fails; then what is in flight is finished first. Started anew a worker begins
with little, and the pauses of the supervisor bound how often that happens.

The kernel says no only where address space is limited, or where it must not promise more than it has; a control group's
limit (`MemoryMax=`) it keeps by SIGKILL.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from remora.metrics import Telemetry
from remora.model.exits import Exit

START_BYTES = 64 << 20
"""What must be left at the start: `delivery.worker_bytes`, and as much again that is made of it. With less, worker upon
worker would begin to deliver, and none would get to removing."""

PROBE_BYTES = 16 << 20
"""What must be left later, at each look: about what one listing and what is made of it takes, or two stacks."""

FINISH_S = 5.0
"""How long a worker that found less may finish what is in flight, so that little is sent twice."""

RESERVE_BYTES = 4 << 20
"""What is kept for the last words."""

_LOGGERS = ("remora", "asyncio", "aiohttp", "aiokafka", "concurrent")
"""A part that outlives an unexpected exception logs it with its traceback."""

_LIMITS = (
    (resource.RLIMIT_AS, "its address space", "ulimit -v, LimitAS="),
    (resource.RLIMIT_DATA, "its data", "ulimit -d, LimitDATA="),
)


class MemoryGuard(logging.Handler):
    """Sees every MemoryError of this process that is logged or comes to an end of a task or thread, and ends it."""

    def __init__(self, number: int, telemetry: Telemetry, exit_: Callable[[int], NoReturn] = os._exit) -> None:
        super().__init__(logging.ERROR)
        self._number = number
        self._telemetry = telemetry
        self._exit = exit_
        self._ends = False
        self._reserve: mmap.mmap | None = mmap.mmap(-1, RESERVE_BYTES)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See them while the block runs."""
        unraisable, of_threads = sys.unraisablehook, threading.excepthook

        def on_unraisable(args: Any) -> None:
            self.saw(args.exc_value)
            unraisable(args)

        def on_thread(args: Any) -> None:
            self.saw(args.exc_value)
            of_threads(args)

        sys.unraisablehook, threading.excepthook = on_unraisable, on_thread
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        try:
            yield
        finally:
            sys.unraisablehook, threading.excepthook = unraisable, of_threads
            for name in _LOGGERS:
                logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Look at the exception of a line of the log."""
        if record.exc_info:
            self.saw(record.exc_info[1])

    def saw(self, exc: BaseException | None) -> None:
        """End the process where this is a want of memory, or was caused by one."""
        if exc is None or self._ends:
            return
        # The system starts no thread for want of memory for its stack, or since there are too many.
        is_thread_refused = isinstance(exc, RuntimeError) and "start new thread" in str(exc)
        if is_want_of_memory(exc) or (is_thread_refused and not self.has(PROBE_BYTES)):
            self.end()

    def has(self, nbytes: int) -> bool:
        """Whether so much could be allocated now; where not, that is said."""
        try:
            mmap.mmap(-1, nbytes).close()
        except (OSError, MemoryError):
            self._say()
            return False
        return True

    def end(self) -> None:
        """End the process, whatever it is about."""
        self._ends = True
        try:
            self._say()
        finally:
            self._exit(Exit.OUT_OF_MEMORY)

    def _say(self) -> None:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            reserve.close()
            self._telemetry.out_of_memory(self._number, os.getpid(), limit_shown(), _held_bytes() >> 20)


def is_want_of_memory(exc: BaseException) -> bool:
    """Whether an exception, or one in its group, or what it was raised from, says that memory is short."""
    seen: set[int] = set()
    unseen: list[BaseException | None] = [exc]
    while unseen:
        each = unseen.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, MemoryError) or (isinstance(each, OSError) and each.errno == errno.ENOMEM):
            return True
        unseen += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            unseen += each.exceptions
    return False


def limit_shown() -> str:
    """What this process may have at most, in words."""
    for number, what, where in _LIMITS:
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY:
            return f"{what} is limited to {limit >> 20} MiB ({where})"
    return "no limit is set for it, so the host has no more to give"


def _held_bytes() -> int:
    """The address space that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except OSError:
        return 0
