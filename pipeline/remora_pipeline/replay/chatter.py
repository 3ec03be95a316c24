"""What a starting program says, kept back: the many lines with which Java fetches Spark's packages."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_CHUNK = 1 << 16
_ENDED = b"\0the program has started\0"


@contextmanager
def kept_back() -> Iterator[None]:
    """Keep back what this process and those that it starts write to standard error while the block runs.

    It is written when the block fails, and forgotten else. What the started ones write later is passed on at once, for
    as long as they live: errors of a running Java are seen.
    """
    sys.stderr.flush()
    reading, writing = os.pipe()
    relay = _Relay(reading, os.dup(_STDERR))
    os.dup2(writing, _STDERR)
    threading.Thread(target=relay.run, name="chatter", daemon=True).start()
    try:
        yield
        relay.is_wanted = False
    finally:
        sys.stderr.flush()
        os.dup2(relay.screen, _STDERR)
        os.write(writing, _ENDED)
        os.close(writing)
        relay.is_past.wait()


class _Relay:
    """Passes a pipe on to the screen; what comes before _ENDED at once, and only where it is wanted."""

    def __init__(self, reading: int, screen: int) -> None:
        self.screen = screen
        self.is_wanted = True
        self.is_past = threading.Event()
        self._reading = reading

    def run(self) -> None:
        """Until every writer has closed the pipe."""
        held = b""
        while _ENDED not in held:
            held += os.read(self._reading, _CHUNK)
        before, _, chunk = held.partition(_ENDED)
        self._show(before if self.is_wanted else b"")
        self.is_past.set()
        while True:
            self._show(chunk)
            if not (chunk := os.read(self._reading, _CHUNK)):
                return

    def _show(self, text: bytes) -> None:
        while text:
            text = text[os.write(self.screen, text) :]
