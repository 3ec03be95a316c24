"""A worker's part of the limits that all workers of a store share: what it wants of them, and what it may have.

What a worker wants stands in its row. From the rows of all, each worker computes its own share of each limit, and all
shares add up to it: no leader hands them out, and no frozen worker can hold them up. While the rows cannot be read
the last shares stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from remora.policy.shaping.split import Need, Wants, busiest, key_of, shares_of


class WorkerShares:
    """See the module. It belongs to one worker; groups are those of its host."""

    def __init__(self) -> None:
        self.on_change: Callable[[Mapping[str, int]], None] = lambda _: None
        """Called with this worker's shares, in bytes per second by group, when they are others than before."""
        self._waiting: Callable[[], Collection[str]] = tuple
        self._limits: Mapping[str, int] = {}
        self._needs: dict[str, Need] = {}
        self._worker = ""
        self._rows: Mapping[str, Wants] = {}
        self._shares: Mapping[str, int] = {}

    def configure(self, limits: Mapping[str, int], waiting: Callable[[], Collection[str]]) -> None:
        """Share these limits, in bytes per second by group; `waiting` says in which groups a listing waits.

        Where limits have changed the host learns this worker's shares again, also equal ones: it has lowered them.
        """
        have_changed = limits != self._limits
        self._limits, self._waiting = limits, waiting
        self._needs = {group: need for group, need in self._needs.items() if group in limits}
        self._share(anew=have_changed)

    def granted(self, group: str, nbytes: int) -> None:
        """A listing was granted `nbytes` in a group."""
        if group in self._limits:
            self._need(group).grant(nbytes, asyncio.get_running_loop().time())

    def waits(self, group: str) -> None:
        """A listing begins to wait in a group."""
        if group in self._limits:
            self._need(group).wait(asyncio.get_running_loop().time())

    def wants(self) -> Wants:
        """What the row of this worker is to say, the most first."""
        if not self._limits:
            return ()
        for group in self._waiting():
            self.waits(group)
        now = asyncio.get_running_loop().time()
        named = busiest({group: need.want(now) for group, need in self._needs.items()})
        return tuple((key_of(group), want) for group, want in named)

    def see(self, worker: str, rows: Mapping[str, Wants]) -> None:
        """The rows of all workers, this one's included, say this."""
        self._worker, self._rows = worker, rows
        self._share()

    def see_nobody(self, worker: str) -> bool:
        """The rows could not be read; whether this worker takes all limits whole, as it has never read them."""
        if self._rows or not self._limits:
            return False
        self.see(worker, {worker: ()})
        return True

    def _need(self, group: str) -> Need:
        need = self._needs.get(group)
        if need is None:
            need = self._needs[group] = Need()
        return need

    def _share(self, *, anew: bool = False) -> None:
        if self._worker not in self._rows:
            return
        shares = shares_of(self._worker, self._limits, self._rows)
        if anew or shares != self._shares:
            self._shares = shares
            self.on_change(shares)
