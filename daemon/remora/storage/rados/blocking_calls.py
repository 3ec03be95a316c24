"""Blocking calls: runs the few librados functions that have no asynchronous form."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


async def run_blocking(call: Callable[[], T], name: str, discard: Callable[[T], object] | None = None) -> T:
    """Run `call`, which may block, in a thread of its own and return its result, or raise what it raises.

    `asyncio.to_thread` was weighed: its executor joins its threads when the loop or the interpreter ends, so a call
    that waits for a monitor would keep the process from ending. This thread is a daemon. Cancelling the caller leaves
    the call running; its result then goes to `discard`, in a thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if error is not None:
            if not future.done():
                future.set_exception(error)
        elif not future.done():
            future.set_result(cast("T", result))
        elif discard is not None:
            threading.Thread(target=discard, args=(result,), name=name, daemon=True).start()

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as exc:  # handed to the caller, whatever it is
            error = exc
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop has closed: no caller waits any more
            if discard is not None and error is None:
                discard(cast("T", result))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
