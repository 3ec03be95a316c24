"""Questions to this host that may never be answered: files on a share that hangs, names of a resolver that does.

Each is asked in a thread of its own, and not in the event loop's pool, which is small and belongs to everybody: a few
topics with such a file or name would take all of it, and with it metrics, ingest and other topics' connections. Nor
does the end of the process wait for these threads.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from remora.model.errors import EndpointUnavailable

MOST_OPEN = 128
"""Questions without an answer in this process; what is asked beyond that fails at once."""

PATIENCE_S = 5.0
"""How long whoever asks waits."""

_open: dict[Hashable, Future[Any]] = {}

T = TypeVar("T")


async def ask_aside(question: Hashable, call: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """What `call` returns or raises; it may block for ever.

    The same question is never under way twice: whoever asks it again meanwhile gets the same answer. Raises
    EndpointUnavailable, beginning with `what`, when there is no answer in time.
    """
    asked = _open.get(question)
    if asked is None:
        if len(_open) >= MOST_OPEN:
            raise EndpointUnavailable(f"{what}: {MOST_OPEN} other names and files do not answer already")
        asked = _open[question] = Future()
        asked.set_running_or_notify_cancel()  # from here on nobody who gives up can cancel it for the others
        Thread(target=_answer, args=(question, call, asked), name="remora-aside", daemon=True).start()
    answer: asyncio.Future[T] = asyncio.wrap_future(asked)
    try:
        done, _ = await asyncio.wait([answer], timeout=timeout_s)
    finally:
        if not answer.done():
            answer.cancel()
    if not done:
        raise EndpointUnavailable(f"{what}: no answer within {timeout_s:g} s")
    try:
        return answer.result()
    finally:
        del asked, answer, done  # an exception's frames must not hold the exception: see `without_frames`


def _answer(question: Hashable, call: Callable[[], Any], asked: Future[Any]) -> None:
    try:
        result = call()
    except Exception as exc:  # whoever asked gets it
        _open.pop(question, None)
        asked.set_exception(exc)
        del asked
    else:
        _open.pop(question, None)
        asked.set_result(result)


async def resolve(host: str, timeout_s: float = PATIENCE_S) -> None:
    """Return when a name can be looked up without waiting, as it was answered a moment ago.

    The look-up that connecting makes then is short; without this one, it would wait in the event loop's own few threads
    for a resolver that hangs. Raises OSError where there is no such name, else EndpointUnavailable.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        await ask_aside(
            ("name", host),
            lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM),
            f"{host}: its address",
            timeout_s,
        )
