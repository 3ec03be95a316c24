"""The batches of one sender that wait for their turn, lane by lane."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from remora.engine.admission.givers import PageAhead
from remora.engine.delivery.reader import at_most
from remora.model.record import Page
from remora.policy.delivery.acks import PageAcks
from remora.ports.endpoint import Batch


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """A batch, the page it came from, and since when it waits for its turn."""

    page: Page
    acks: PageAcks
    batch: Batch
    since: float


class LaneQueues:
    """See the module. A lane is busy from its first batch until its last one has ended, or all of them are taken out.

    A busy lane has a batch under way, or rests until its turn: the lane comes first whose next batch waits longest, and
    of those of a page the one whose next batch has the oldest entry. So what is done is a prefix of the queue, nearly.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, list[InFlightBatch]] = {}  # where lanes are many they are short, and deques large
        self._resting: list[tuple[float, int, int]] = []  # a heap: since when its next batch waits, its place, the lane
        self._waiting = 0
        self._is_cleared = False
        self._all_started = asyncio.Event()

    @property
    def are_busy(self) -> bool:
        """Whether any lane is."""
        return bool(self._lanes)

    def add(self, load: InFlightBatch) -> None:
        """Let a batch wait behind those of its lane."""
        self._all_started.clear()
        self._waiting += 1
        lane = load.batch.lane
        waiting = self._lanes.get(lane)
        if waiting is not None:
            waiting.append(load)
            return
        self._lanes[lane] = [load]
        self._rest(lane)

    def _rest(self, lane: int) -> None:
        first = self._lanes[lane][0]
        heapq.heappush(self._resting, (first.since, first.batch.records[0].ordinal, lane))

    def next_lane(self, width: int) -> int | None:
        """The lane whose turn it is; None where none waits, or as many have a batch under way as may."""
        if not self._resting or len(self._lanes) - len(self._resting) >= width:
            return None
        return heapq.heappop(self._resting)[-1]

    def put_first(self, of: InFlightBatch, batches: Sequence[Batch]) -> None:
        """Let what a batch under way is to be followed by wait ahead of its lane; nothing once all were dropped."""
        if self._is_cleared:
            return
        self._lanes[of.batch.lane][:0] = [replace(of, batch=each) for each in batches]
        self._waiting += len(batches)
        self._all_started.clear()

    def begin(self, lane: int) -> InFlightBatch | None:
        """Take the next batch of a lane whose turn it is; None where none waits."""
        waiting = self._lanes[lane]
        load = waiting.pop(0) if waiting else None
        self._waiting -= load is not None
        self._look()
        return load

    def end(self, lane: int) -> None:
        """Nothing of a lane is under way; it waits for its next turn if it has more."""
        if self._lanes[lane]:
            self._rest(lane)
        else:
            del self._lanes[lane]

    def clear(self) -> None:
        """Drops all queued batches, for good: nothing is to be added any more."""
        self._is_cleared = True
        for *_, lane in self._resting:
            del self._lanes[lane]
        self._resting.clear()
        for waiting in self._lanes.values():
            waiting.clear()
        self._waiting = 0
        self._look()

    async def started(self, within_s: float) -> None:
        """Wait until no batch waits for its turn any more, but no longer than this."""
        if self._waiting:
            await at_most(self._all_started, within_s)

    def _look(self) -> None:
        if not self._waiting:
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
                self._waiting -= 1
        for *_, lane in self._resting:
            if not self._lanes[lane]:
                del self._lanes[lane]
        self._resting = [each for each in self._resting if each[-1] in self._lanes]
        heapq.heapify(self._resting)
        self._look()
