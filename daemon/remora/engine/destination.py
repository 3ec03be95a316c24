"""What the shards of one destination share: bytes and entries that they may hold, and the news that it works again.

The lookout looks at destinations that shards wait for after a failure, so that they are used soon after they answer
again. The pause before an attempt grows with an outage, and so would the time from its end to the first entry that
leaves. A look costs a connection and a question, whatever number of shards waits, and holds no entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from remora.engine.admission.gate import Gate
from remora.engine.admission.givers import Allowance, Givers
from remora.metrics import Telemetry
from remora.model.topic import Target
from remora.policy.admission.limits import ByteLimit, EntryLimit
from remora.policy.delivery.retry import look_every_s

SPREAD_S = 0.5
"""Spreads the retries of notified shards over this time."""

TOLD_EVERY_S = 5.0
"""Shards are notified no more often, so that one which fails for a reason of its own keeps its back-off although others
of the same destination fail and recover."""


@dataclass(frozen=True, slots=True)
class UnackedBounds:
    """How many entries may be listed and not acknowledged as things stand, 0 for any number.

    Those of all destinations count in `worker`. At `gate` shards wait for them.
    """

    of_topic: Callable[[], int]
    of_destination: Callable[[], int]
    worker: EntryLimit
    gate: Gate


class Destination:
    """A hanging destination leaves room for the others, and one that is back is used by all its shards at once.

    Without the second, each shard would find out by itself at the end of its own pause, which grows with the outage.
    The news come from a shard that delivers, or from a look (`lookout`) that finds more of the destination answering
    than the one before.
    """

    def __init__(
        self,
        nbytes: int,
        within: ByteLimit,
        unacked: UnackedBounds | None = None,
        want: Callable[[], None] = lambda: None,
        givers: Givers | None = None,
    ) -> None:
        """All its shards together hold at most `nbytes`, and no more than they leave free `within` the worker.

        Without `unacked` there is no bound of entries. `want` is called when a shard begins to wait for its return.
        `givers` are those of its shards that have read ahead.
        """
        self.givers = givers or Givers()
        self.room = ByteLimit(nbytes, within=within, leaves_room=True, evict=self.givers.make_room)
        self.returns = 0
        """How often more of it answered than at the look before: pauses that had grown by then begin anew."""
        self._unacked = unacked
        self._entries: tuple[EntryLimit, ...] = ()
        if unacked is not None:
            self._entries = (EntryLimit(unacked.of_destination, "destination"), unacked.worker)
        self._topics: WeakValueDictionary[str, EntryLimit] = WeakValueDictionary()
        self._want = want
        self._waiting = 0
        self._ask: Callable[[], Awaitable[frozenset[str]]] | None = None
        self._up: frozenset[str] = frozenset()
        self._returned = asyncio.Event()
        self._works = asyncio.Event()
        self._told_at = -TOLD_EVERY_S

    def allowance(self, topic: str, shard_bytes: int) -> Allowance:
        """What a shard of this topic may hold, `shard_bytes` of it at most."""
        room = ByteLimit(shard_bytes, within=self.room)
        if self._unacked is None:
            return Allowance(room, self._entries, self.givers)
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = EntryLimit(self._unacked.of_topic, "topic")
        return Allowance(room, (found, *self._entries), self.givers)

    def admit(self) -> None:
        """The bounds of entries may have changed: let go on who may by now."""
        if self._unacked is not None:
            self._unacked.gate.free((*self._entries, *self._topics.values()))

    def recovered(self) -> None:
        """A shard that failed before has delivered again."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            self._works.set()
            self._works = asyncio.Event()

    async def recovery(self, chance: float) -> None:
        """Wait until another shard has recovered; `chance`, in [0, 1), spreads those who wait."""
        await self._works.wait()
        await asyncio.sleep(chance * SPREAD_S)

    async def back(self, ask: Callable[[], Awaitable[frozenset[str]]], returns: int, chance: float) -> None:
        """Wait until it has returned more often than that; `ask` looks at it, `chance` spreads those who wait."""
        self._ask = ask
        self._waiting += 1
        self._want()
        try:
            while self.returns == returns:
                await self._returned.wait()
        finally:
            self._waiting -= 1
        await asyncio.sleep(chance * SPREAD_S)

    @property
    def is_wanted(self) -> bool:
        """Whether a shard waits for its return."""
        return self._waiting > 0

    async def look(self) -> None:
        """Ask what of it answers, and tell those who wait when that is more than it was.

        At the first look all that answers is news: the outage may have ended before it. What goes on answering although
        deliveries fail is none, so that its shards keep their pauses.
        """
        if self._ask is None:
            return
        up = await self._ask()
        more, self._up = up - self._up, up
        if more:
            self.returns += 1
            self._returned.set()
            self._returned = asyncio.Event()


class Destinations:
    """The destinations of a worker, each for as long as a shard uses it."""

    def __init__(self, key_of: Callable[[Target], Hashable], make: Callable[[], Destination]) -> None:
        """`key_of` is equal for targets that are up and down together; `make` gives a destination of its own."""
        self._key_of = key_of
        self._make = make
        self._known: WeakValueDictionary[Hashable, Destination] = WeakValueDictionary()

    def of(self, target: Target) -> Destination:
        """What the shards share that go to the same place as this target."""
        key = self._key_of(target)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make()
        return found

    def in_use(self) -> list[Destination]:
        """Those that a shard uses now."""
        return list(self._known.values())


class Lookout:
    """Looks for a worker, in a task that lives while shards wait. `destinations` gives all that it has now."""

    def __init__(self, destinations: Callable[[], Iterable[Destination]], telemetry: Telemetry) -> None:
        self._destinations = destinations
        self._telemetry = telemetry
        self._tasks: asyncio.TaskGroup | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at: set[Destination] = set()

    @contextmanager
    def within(self, tasks: asyncio.TaskGroup) -> Iterator[None]:
        """Look while the block runs, in a task of this group."""
        self._tasks = tasks
        try:
            yield
        finally:
            self._tasks = None
            if self._looking is not None:
                self._looking.cancel()

    def want(self) -> None:
        """A shard has begun to wait for a destination."""
        if self._tasks is not None and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.create_task(self._guarded(), name="lookout")

    async def _guarded(self) -> None:
        """A defect costs the looks until a shard begins to wait once more: pauses end by themselves."""
        try:
            await self._look_on()
        except Exception:
            self._telemetry.crashed("looking at destinations")
            self._looked_at.clear()

    async def _look_on(self) -> None:
        """Look at each destination that is waited for, at once and then again and again, as long as one is.

        A look that hangs holds up no other one.
        """
        async with asyncio.TaskGroup() as tasks:
            while (wanted := [each for each in self._destinations() if each.is_wanted]) or self._looked_at:
                for each in wanted:
                    if each not in self._looked_at:
                        self._looked_at.add(each)
                        tasks.create_task(self._look(each), name="look at a destination")
                await asyncio.sleep(look_every_s(len(wanted)))

    async def _look(self, destination: Destination) -> None:
        try:
            await destination.look()
        except Exception:  # a defect in a look costs the look: pauses end by themselves
            self._telemetry.crashed("looking at a destination")
        finally:
            self._looked_at.discard(destination)
