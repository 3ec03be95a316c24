"""The event loop of a process, from its first step to its end, which nothing that is left of it holds up."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import uvloop

from remora.metrics.events import say
from remora.model.exits import Exit
from remora.process.program import end_at_once

CLOSE_S = 2.0
"""How long closing the event loop may take when all work is over."""


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
