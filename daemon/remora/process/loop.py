"""The event loop of a process: from its first step to its end, which nothing left of it holds up, and how late it is.

A process may wait for a processor, be held back by a control group's quota, or be stopped and continued time and again.
Then it uses little processor time, though it has more to do. Timers that are late while the process computes nothing
show that. /proc/self/schedstat counts waits for a processor only, not a stopped process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

import uvloop

from remora.metrics import Telemetry
from remora.metrics.events import say
from remora.model.exits import Exit
from remora.process.program import end_at_once

CLOSE_S = 2.0
"""How long closing the event loop may take when all work is over."""

PROBE_S = 0.05
"""Half of a quota's period of 100 ms, so that much of each pause is seen; a quarter of a percent of a core."""


def run_loop(main: Coroutine[Any, Any, Exit], close_s: float = CLOSE_S) -> Exit:
    """What `main` answers or raises, from an event loop of its own.

    The loop then waits for its threads, for names that are looked up, and for what else is not closed. After `close_s`
    the process ends without it, with its exit code and a line of the log: all that had to be closed is closed.
    """
    code, failure = Exit.FAILURE, None
    overdue = threading.Timer(close_s, lambda: _leave(code, failure, close_s))
    overdue.daemon = True
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                code = runner.run(main)
            except BaseException as exc:
                failure = exc
                raise
            finally:
                with suppress(RuntimeError, MemoryError):  # no room for a thread: it lasts for as long as it does
                    overdue.start()
    finally:
        overdue.cancel()
    return code


def _leave(code: Exit, failure: BaseException | None, close_s: float) -> None:
    """End the process, and say what is left of its event loop."""
    if failure is not None:
        traceback.print_exception(failure)
    mine = threading.current_thread(), threading.main_thread()
    say(
        logging.WARNING, "loop_not_closed", f"the process ends without its event loop, not closed in {close_s:g} s",
        connections=sorted(peers()),
        threads=sorted(each.name for each in threading.enumerate() if each not in mine),
    )  # fmt: skip
    end_at_once(code)


def peers() -> list[str]:
    """Whom this process has connections to over TCP."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # what is closed meanwhile, and sockets that only listen
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.type == socket.SOCK_STREAM and each.family in (socket.AF_INET, socket.AF_INET6):
                    host, port = each.getpeername()[:2]
                    found.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return found


class Kept:
    """Counts the seconds for which this process was kept from running."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """So far, of one core; a loop that is late because it computes does not count."""

    async def run(self) -> None:
        """Count until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due, used_s = loop.time() + PROBE_S, time.process_time()
            await asyncio.sleep(PROBE_S)
            self.seconds += kept_s(loop.time() - due, time.process_time() - used_s)


def kept_s(late_s: float, used_s: float) -> float:
    """For how long a timer that is `late_s` late was kept back, beside `used_s` of processor time since it was set."""
    return max(0.0, late_s - used_s)


async def measure_lag(telemetry: Telemetry, interval_s: float = 1.0) -> None:
    """Report the loop's lag every `interval_s` until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        telemetry.loop_lag(max(0.0, loop.time() - due))


_MOST = 10_000

SETTLED_LEAST = 1000
"""Fewer shards make no collection long."""


class CountsCollections(Protocol):
    """Counts a collection of a generation, which took so long."""

    def collected(self, generation: int, seconds: float) -> None: ...


class GarbageWatch:
    """Notes each collection while it is entered. It may happen in any thread, at any allocation, also while a metric's
    lock is held: so a collection is only noted, and `report` counts it.

    It also keeps collections short: what a worker has of each shard stays for days, and is no garbage.
    """

    def __init__(self) -> None:
        self._settled = 0
        self._found: deque[tuple[int, float]] = deque(maxlen=_MOST)
        self._began = 0.0

    def __enter__(self) -> GarbageWatch:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._found.append((info["generation"], time.perf_counter() - self._began))

    def settle(self, held: int) -> None:
        """Leave all that is there out of further collections, once a worker holds twice as many shards as last time.

        With 11,000 shards of as many topics a whole collection goes through 181,000 objects in 37 ms, in which no lock
        is renewed. What is left out is still freed when nothing refers to it; only a cycle would stay for good. So
        those of now are collected first, a shard that is released leaves none, and few of these moments come.
        """
        if held < self._settled // 2:
            self._settled = held  # those that come after it are new
        if held >= max(SETTLED_LEAST, 2 * self._settled):
            gc.collect()
            gc.freeze()
            self._settled = held

    def report(self, to: CountsCollections) -> None:
        """Count what was noted since the last time."""
        while self._found:
            to.collected(*self._found.popleft())
