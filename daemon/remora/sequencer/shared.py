"""The counters of logs that several workers hand out, as the process that registers logs has them.

It answers no request itself. `Sequencing` serves and forgets logs here as in a core of one process; each epoch gets a
cell of its own, and all workers are told of it. docs/decisions/sequencer-workers.md has the order of the steps.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from remora.codec import sequencer, speedups
from remora.codec.sequencer import Counter, Result
from remora.model.log import LogName
from remora.policy.logs.epoch_cells import EpochCells
from remora.process.pipe import Message
from remora.sequencer.messages import Over, Raised, Serve

if TYPE_CHECKING:
    from remora.codec._sequencer import Cells

CELL_BYTES = 64
SPARE_CELLS = 4096
"""More than the logs that may be served: those of epochs that are over, until every worker has forgotten them."""

LEAST_FREE = 64
"""With fewer free cells no further log is registered; more registrations than that are never under way."""


class Told(Protocol):
    """A worker that is told what is served."""

    @property
    def number(self) -> int: ...

    def tell(self, message: Message) -> None: ...


class SharedCounter(Counter):
    """A log that workers serve: its cell, read when it is looked at."""

    __slots__ = ("_cells", "cell")

    def __init__(self, log: LogName, epoch: int, cells: Cells, cell: int) -> None:
        self._cells = cells
        self.cell = cell
        self.log, self.epoch = log, epoch

    position = property(lambda self: self._cells.position(self.cell))
    bound = property(lambda self: self._cells.bound(self.cell))
    requests = property(lambda self: self._cells.requests(self.cell))


class SharedCounters(sequencer.Core):
    """See the module."""

    def __init__(self, max_logs: int, on_miss: Callable[[LogName, Result], None], max_range: int, low: int) -> None:
        """`max_logs` are served at most. Needs the compiled core."""
        super().__init__(on_miss, max_range, low)
        count = max_logs + SPARE_CELLS
        self.memory = os.memfd_create("remora-sequencer")
        """The descriptor of the cells."""
        os.ftruncate(self.memory, count * CELL_BYTES)
        assert speedups.SequencerCells is not None
        self._cells = speedups.SequencerCells(mmap.mmap(self.memory, count * CELL_BYTES))
        self._table = EpochCells(count)
        self._workers: dict[int, Told] = {}

    def has_room(self) -> bool:
        """Whether there are cells for more logs."""
        return self._table.free > LEAST_FREE

    def serve(self, log: LogName, epoch: int, position: int, bound: int) -> None:
        """Have all workers hand out the positions of a log from behind this one on, once `trust` says so."""
        self.forget(log)
        cell = self._table.take()
        self._cells.begin(cell, position, bound)
        self._counters[log] = SharedCounter(log, epoch, self._cells, cell)
        for each in self._workers.values():
            each.tell(self._share(log))

    def trust(self, log: LogName, seconds: float) -> None:
        """Trust the lock of a log for this time from now on; workers look at the clock by themselves."""
        if (counter := self._counters.get(log)) is not None:
            self._cells.trust(cast("SharedCounter", counter).cell, seconds)

    def forget(self, log: LogName) -> Counter | None:
        """Mark the cell of a log dead, then read it: no reply above that figure is ever sent, whoever stands still."""
        self.low.discard(log)
        counter = self._counters.pop(log, None)
        if counter is None:
            return None
        cell = cast("SharedCounter", counter).cell
        requests, bound = counter.requests, counter.bound
        last = Counter(log, counter.epoch, self._cells.fence(cell), bound)
        last.requests = requests
        self._table.end(cell, self._workers)
        for each in self._workers.values():
            each.tell(Over(pool=log.pool, name=log.name, cell=cell))
        return last

    def raise_bound(self, log: LogName, epoch: int, bound: int) -> None:
        """Let more be handed out, and have connections that wait for it answered."""
        counter = self._counters.get(log)
        if counter is None or counter.epoch != epoch:
            return
        self._cells.raise_bound(cast("SharedCounter", counter).cell, max(bound, counter.bound))
        self.low.discard(log)
        for each in self._workers.values():
            each.tell(Raised(pool=log.pool, name=log.name, epoch=epoch, bound=counter.bound))

    # ------------------------------------------------------------------------------------------ workers

    def add(self, worker: Told) -> None:
        """Tell a worker all that is served, and from now on whatever changes."""
        self._workers[worker.number] = worker
        for log in self._counters:
            worker.tell(self._share(log))

    def forgotten(self, cell: int, worker: int) -> None:
        """A worker has forgotten a cell whose epoch is over."""
        self._table.forgotten(cell, worker)

    def remove(self, worker: int) -> None:
        """A worker has ended."""
        self._workers.pop(worker, None)
        self._table.ended(worker)

    def _share(self, log: LogName) -> Serve:
        counter = cast("SharedCounter", self._counters[log])
        return Serve(pool=log.pool, name=log.name, epoch=counter.epoch, cell=counter.cell)
