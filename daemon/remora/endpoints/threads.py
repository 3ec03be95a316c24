"""Calls that may block for ever: files on a share that hangs, names of a resolver that does.

Each runs in a thread of its own. `asyncio.to_thread` was weighed: its threads are few and shared by the whole process,
so that a few topics with such a file or name would take all of them, and with them metrics, ingest and other topics'
connections; and the process does not end before they do.
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
"""Calls under way in this process; a further one fails at once."""

PATIENCE_S = 5.0
"""How long a caller waits."""

_open: dict[Hashable, Future[Any]] = {}

T = TypeVar("T")


async def run_blocking(question: Hashable, call: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """What `call` returns or raises; it may block for ever.

    The same question is never under way twice: callers that ask it meanwhile get the same answer. Raises
    EndpointUnavailable, beginning with `what`, when there is no answer in time.
    """
    asked = _open.get(question)
    if asked is None:
        if len(_open) >= MOST_OPEN:
            raise EndpointUnavailable(f"{what}: {MOST_OPEN} other names and files do not answer already", "connect")
        asked = _open[question] = Future()
        asked.set_running_or_notify_cancel()  # a caller that gives up cannot cancel it for the others
        Thread(target=_answer, args=(question, call, asked), name="remora-blocking", daemon=True).start()
    answer: asyncio.Future[T] = asyncio.wrap_future(asked)
    try:
        done, _ = await asyncio.wait([answer], timeout=timeout_s)
    finally:
        if not answer.done():
            answer.cancel()
    if not done:
        raise EndpointUnavailable(f"{what}: no answer within {timeout_s:g} s", "connect")
    try:
        return answer.result()
    finally:
        del asked, answer, done  # an exception's frames must not hold the exception: see `without_frames`


def _answer(question: Hashable, call: Callable[[], Any], asked: Future[Any]) -> None:
    try:
        result = call()
    except Exception as exc:  # the callers get it
        _open.pop(question, None)
        asked.set_exception(exc)
        del asked
    else:
        _open.pop(question, None)
        asked.set_result(result)


async def resolve(host: str, timeout_s: float = PATIENCE_S) -> tuple[str, ...]:
    """The addresses of a name, in their order; those of an address are itself.

    The look-up that connecting makes then is short, as it was answered a moment ago; without this one, it would wait in
    the event loop's own few threads for a resolver that hangs. Raises OSError or UnicodeError where there is no such
    name, else EndpointUnavailable.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await run_blocking(
            ("name", host),
            lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM),
            f"{host}: its address",
            timeout_s,
        )
        return tuple(sorted({str(each[4][0]) for each in found}))
    return (host,)


async def addresses_of(host: str) -> tuple[str, ...] | None:
    """Returns what `resolve` does, or None without an answer: the endpoint says why when it is opened."""
    try:
        return await resolve(host)
    except (OSError, UnicodeError, EndpointUnavailable):
        return None
