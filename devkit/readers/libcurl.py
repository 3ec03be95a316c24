"""What libcurl makes of the bytes of an answer: the client that radosgw posts with."""

from __future__ import annotations

import array
import fcntl
import socket
import termios
from contextlib import closing
from typing import NamedTuple

import pycurl

_REQUEST_END = b"\r\n\r\nx"
_MOST_STEPS = 10_000


class LibcurlRead(NamedTuple):
    """What became of an answer. `status` is 0 where it is none, for the reason `error`.

    `is_early` says that it was complete before the connection's end, `stays` that the connection was kept for the next
    request.
    """

    status: int
    error: str
    is_early: bool
    stays: bool


def libcurl_read(answer: bytes) -> LibcurlRead:
    """Post once over a connection of its own; the answer is these bytes, and the receiver sends nothing behind them.

    The connection exists in memory alone, so that nothing is waited for.
    """
    near, far = socket.socketpair()
    with near, far, closing(pycurl.CurlMulti()) as multi, closing(_handle(far)) as easy:
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        multi.add_handle(easy)
        try:
            _post(multi, near)
            far.close()  # libcurl has a copy of it
            near.sendall(answer)
            if (error := _outcome(multi, near)) is not None:
                return LibcurlRead(_status(easy, error), error, True, _received(near) is None)
            near.shutdown(socket.SHUT_WR)
            for _ in range(_MOST_STEPS):
                if (error := _outcome(multi, near)) is not None:
                    return LibcurlRead(_status(easy, error), error, False, False)
        finally:
            multi.remove_handle(easy)
    raise AssertionError(f"libcurl does not see the end of {answer!r}")


def _handle(connection: socket.socket) -> pycurl.Curl:
    easy = pycurl.Curl()
    easy.setopt(pycurl.URL, "http://127.0.0.1:1/")
    easy.setopt(pycurl.NOPROXY, "*")
    easy.setopt(pycurl.POSTFIELDS, "x")
    easy.setopt(pycurl.HTTPHEADER, ["Expect:"])  # as radosgw does
    easy.setopt(pycurl.OPENSOCKETFUNCTION, lambda _, __: connection)
    easy.setopt(pycurl.SOCKOPTFUNCTION, lambda _, __: pycurl.SOCKOPT_ALREADY_CONNECTED)
    easy.setopt(pycurl.WRITEFUNCTION, lambda _: None)
    easy.setopt(pycurl.HEADERFUNCTION, lambda _: None)
    return easy


def _post(multi: pycurl.CurlMulti, near: socket.socket) -> None:
    request = b""
    for _ in range(_MOST_STEPS):
        multi.perform()
        request += _received(near) or b""
        if request.endswith(_REQUEST_END):
            return
    raise AssertionError(f"libcurl did not post: {request!r}")


def _outcome(multi: pycurl.CurlMulti, near: socket.socket) -> str | None:
    """Why it failed, empty where it did not; None while it waits for more than has been sent."""
    unread = array.array("i", [1])
    for turn in range(_MOST_STEPS):
        multi.perform()
        _, good, bad = multi.info_read()
        if good:
            return ""
        if bad:
            return f"{bad[0][1]}: {bad[0][2]}"
        fcntl.ioctl(near, termios.TIOCOUTQ, unread)
        if not unread[0] and turn > 2:
            return None
    raise AssertionError("libcurl does not read")


def _status(easy: pycurl.Curl, error: str) -> int:
    return 0 if error else int(easy.getinfo(pycurl.RESPONSE_CODE))


def _received(near: socket.socket) -> bytes | None:
    """What has come: None where nothing has, and no bytes where libcurl has closed the connection."""
    try:
        return near.recv(65536)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""
