"""The batches of one sender that wait for their turn, lane by lane."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remora.engine.admission.givers import PageAhead
from remora.engine.delivery.reader import at_most
from remora.model.record import Page
from remora.policy.acks import PageAcks
from remora.ports.endpoint import Batch


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """A batch, the page it came from, and since when it waits for its turn."""

    page: Page
    acks: PageAcks
    batch: Batch
    since: float


class LaneQueues:
    """See the module. A lane is busy from its first batch until `end`."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[InFlightBatch]] = {}
        self._all_started = asyncio.Event()

    @property
    def are_busy(self) -> bool:
        """Whether any lane is."""
        return bool(self._lanes)

    def add(self, load: InFlightBatch) -> bool:
        """Let a batch wait behind those of its lane; returns whether the lane was not busy."""
        self._all_started.clear()
        waiting = self._lanes.get(load.batch.lane)
        if waiting is not None:
            waiting.append(load)
            return False
        self._lanes[load.batch.lane] = deque([load])
        return True

    def put_first(self, lane: int, loads: Sequence[InFlightBatch]) -> None:
        """Let batches wait ahead of their lane."""
        self._lanes[lane].extendleft(reversed(loads))
        self._all_started.clear()

    def begin(self, lane: int) -> InFlightBatch | None:
        """Take the batch of a lane whose turn it is; None where none waits."""
        waiting = self._lanes[lane]
        load = waiting.popleft() if waiting else None
        self._look()
        return load

    def end(self, lane: int) -> None:
        """Nothing of a lane waits or is under way."""
        del self._lanes[lane]

    def clear(self) -> None:
        """Begin none of those that wait."""
        for waiting in self._lanes.values():
            waiting.clear()
        self._look()

    async def started(self, within_s: float) -> None:
        """Wait until no batch waits for its turn any more, but no longer than this."""
        if any(self._lanes.values()):
            await at_most(self._all_started, within_s)

    def _look(self) -> None:
        if not any(self._lanes.values()):
            self._all_started.set()

    # ------------------------------------------------------------------------------- turning back

    def untouched(self, pages: Sequence[PageAhead]) -> int:
        """How many of the newest of these pages have all their batches waiting, and nothing done."""
        waiting = Counter(id(load.acks) for loads in self._lanes.values() for load in loads)
        count = 0
        for page in reversed(pages):
            if waiting[id(page.acks)] < page.batches or page.acks.open < page.entries:
                break
            count += 1
        return count

    def take_out(self, pages: Iterable[PageAhead]) -> None:
        """Begin nothing of these pages, the newest ones."""
        gone = {id(page.acks) for page in pages}
        for waiting in self._lanes.values():
            while waiting and id(waiting[-1].acks) in gone:
                waiting.pop()
        self._look()
