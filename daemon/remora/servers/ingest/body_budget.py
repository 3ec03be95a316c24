"""Bytes of requests that are under way: bounded over all of them, so that no crowd of clients can take the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remora.process.host_load import HostLoad
from remora.servers.ingest.problems import SLOW_DOWN, Problem


class BodyBudget:
    """How many bytes of bodies are held now, and how many may be by all workers of the host."""

    def __init__(self, most: int, host: HostLoad) -> None:
        self._most = most
        self._host = host
        self.nbytes = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """One request's share; what it took is given back at the end of the block."""
        share = Share(self)
        try:
            yield share
        finally:
            self.nbytes -= share.nbytes
            self._host.hold(nbytes=self.nbytes)

    def acquire(self, nbytes: int) -> None:
        """Take more. Raises Problem when there is no room: waiting for it could only fill the memory by other ways."""
        held = self._host.nbytes
        if held + nbytes > self._most:
            raise Problem(SLOW_DOWN, f"requests that are under way hold {held} of at most {self._most} bytes")
        self.nbytes += nbytes
        self._host.hold(nbytes=self.nbytes)


class Share:
    """What one request holds."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.nbytes = 0

    def cover(self, nbytes: int) -> None:
        """Hold at least so many bytes from now on."""
        if nbytes > self.nbytes:
            self._budget.acquire(nbytes - self.nbytes)
            self.nbytes = nbytes
