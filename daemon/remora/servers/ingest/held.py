"""Bytes of requests that are under way: bounded over all of them, so that no crowd of clients can take the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remora.servers.ingest.problems import SLOW_DOWN, Problem


class Held:
    """How many bytes of bodies are held now, and how many may be."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.nbytes = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """One request's share; what it took is given back at the end of the block."""
        share = Share(self)
        try:
            yield share
        finally:
            self.nbytes -= share.nbytes

    def take(self, nbytes: int) -> None:
        """Take more. Raises Problem when there is no room: waiting for it could only fill the memory by other ways."""
        if self.nbytes + nbytes > self._most:
            raise Problem(SLOW_DOWN, f"requests that are under way hold {self.nbytes} of at most {self._most} bytes")
        self.nbytes += nbytes


class Share:
    """What one request holds."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.nbytes = 0

    def cover(self, nbytes: int) -> None:
        """Hold at least so many bytes from now on."""
        if nbytes > self.nbytes:
            self._held.take(nbytes - self.nbytes)
            self.nbytes = nbytes
