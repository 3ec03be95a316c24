"""What the tests of the sequencer have in common."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remora.model.log import LogName

LOG, OTHER = LogName(b"pool", b"log"), LogName(b"p", b"\xff\0")
FAR = 1 << 62
"""A bound that nobody reaches."""


@contextmanager
def listening(path: Path | None) -> Iterator[socket.socket]:
    """A socket that listens, on a path or on a free port of loopback; its buffers for sending are small."""
    if path is None:
        made = socket.create_server(("127.0.0.1", 0))
    else:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(path))
        made.listen()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)  # those that are accepted inherit it
    with made:
        yield made
