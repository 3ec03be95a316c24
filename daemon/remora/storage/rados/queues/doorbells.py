"""The doorbells of remora's own queues: objects that those watch who hold queues, and those notify who commit.

Whoever commits to a queue that is not busy notifies its bell's object, and waits for nobody. A worker watches the bells
of the queues that it holds; the queues of a bell that was rung are told as `arrivals`. Nothing depends on it: a worker
without a watch, and one whose watch was lost a moment ago, finds entries when it looks.

One bell more is for topics: whoever changes or holds one notifies it, and who reads the catalogue watches it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from remora.model.errors import StoreError
from remora.model.shard import Origin, Shard
from remora.policy.delivery.doorbells import BELLS, RingPace, bell_of, pause_s
from remora.storage.bell import Bell, CatalogueNews
from remora.storage.librados import NotifyOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection, reconnect_pause_s
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import MissingError

_ANSWER_S = 1
"""For how long an OSD waits until all watchers have acknowledged a ring."""


class _Doorbell:
    """One bell, as this process knows it."""

    def __init__(self, name: int | str) -> None:
        self.oid = f"remora.bell.{name}"
        self.held: dict[Shard, None] = {}
        self.is_wanted = False
        """Whether it is watched though no queue is held."""
        self.changed = asyncio.Event()
        """Set when queues are held that were not, or none is held any longer, or the watch was lost."""
        self.rung_at = float("-inf")
        self.unanswered = 0
        self.answered = asyncio.Event()
        """Set when the next ring is answered, or given up."""
        self.is_due = False

    @property
    def is_watched(self) -> bool:
        """Whether this process wants to be told when it is rung."""
        return self.is_wanted or bool(self.held)


class Doorbells(RadosPart):
    """Rings bells, and hears them."""

    def __init__(self, connection: ClusterConnection, tell: Callable[[Iterable[Shard]], None]) -> None:
        """`tell` is called with held queues that may have got entries."""
        super().__init__(connection)
        self._tell = tell
        self._bells = [_Doorbell(number) for number in range(BELLS)]
        self._topics_bell, self._news = _Doorbell("topics"), CatalogueNews()
        self._pace = RingPace()
        self._tasks: asyncio.TaskGroup | None = None

    def hold(self, shard: Shard) -> None:
        """This process holds a queue from now on. A radosgw's has no bell: no radosgw would ring it."""
        if shard.origin is Origin.REMORA:
            bell = self._bells[bell_of(shard.queue)]
            bell.held[shard] = None
            bell.changed.set()

    def let_go(self, shard: Shard) -> None:
        """This process does not hold a queue, or not any longer."""
        bell = self._bells[bell_of(shard.queue)]
        bell.held.pop(shard, None)
        bell.changed.set()

    def ring(self, shard: Shard) -> None:
        """Entries were committed to a queue. Neither waits nor fails."""
        now = asyncio.get_running_loop().time()
        if self._tasks is None or not self._pace.rings(shard.queue, now):
            return
        bell = self._bells[bell_of(shard.queue)]
        if shard in bell.held:
            self._tell([shard])
        elif not bell.is_due and self._pace.notifies(now):
            self._ring_soon(bell)

    def ring_topics(self) -> None:
        """A topic was made, changed, held or removed. Neither waits nor fails."""
        if not self._topics_bell.is_due:
            self._ring_soon(self._topics_bell)

    def _ring_soon(self, bell: _Doorbell) -> None:
        if self._tasks is not None:
            bell.is_due = True
            self._tasks.create_task(self._ring(bell), name=f"ring {bell.oid}")

    async def changed(self) -> None:
        """Return when the bell of the topics was rung, or may have been while it was not watched."""
        if not self._topics_bell.is_wanted:
            self._topics_bell.is_wanted = True
            self._topics_bell.changed.set()
        await self._news.wait()

    async def rung(self) -> None:
        """Return when those who watch the bell of the topics have been told of what it was rung for, or soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                while self._topics_bell.is_due or self._topics_bell.unanswered:
                    await self._topics_bell.answered.wait()

    async def _ring(self, bell: _Doorbell) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(pause_s(now() - bell.rung_at, bell.unanswered))
        bell.is_due, bell.rung_at = False, now()
        bell.unanswered += 1
        try:
            await self._connection.session.run(NotifyOp(_ANSWER_S), self._own, bell.oid, f"ringing {bell.oid}")
        except StoreError:  # nobody has made it, so nobody watches it; or a watcher is away
            return
        finally:
            bell.unanswered -= 1
            bell.answered.set()
            bell.answered = asyncio.Event()

    async def run(self) -> None:
        """Ring and watch until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for bell in (*self._bells, self._topics_bell):
                    self._tasks.create_task(self._keep(bell), name=f"watch {bell.oid}")
        finally:
            self._tasks = None

    async def _keep(self, bell: _Doorbell) -> None:
        """Watch a bell whenever queues of it are held; after a failure try again, less and less often."""
        failures = 0
        while True:
            while not bell.is_watched:
                bell.changed.clear()
                await bell.changed.wait()
            try:
                await self._watch(bell)
                failures = 0
            except StoreError:
                failures += 1
            if bell.is_watched:
                await asyncio.sleep(reconnect_pause_s(failures))

    async def _watch(self, bell: _Doorbell) -> None:
        try:
            await self._watch_made(bell)
        except MissingError:
            making = WriteOp().create(exclusive=False)
            await self._connection.session.run(making, self._own, bell.oid, f"making {bell.oid}")
            await self._watch_made(bell)

    async def _watch_made(self, bell: _Doorbell) -> None:
        """Watch a bell until no queue of it is held, or until the watch is lost."""

        def notified() -> None:
            if bell.is_wanted:
                self._news.tell()
            self._tell(tuple(bell.held))

        session = self._connection.session
        async with session.watching(self._own, bell.oid, notified, bell.changed.set) as watch:
            if bell.is_wanted:
                self._news.tell()  # what was rung for while nobody watched
            while bell.is_watched and not watch.is_lost:
                bell.changed.clear()
                await bell.changed.wait()


_WAIT_S = 3600.0


class RadosArrivals:
    """Waits for rings. Neither radosgw nor older remoras ring, so the queues have to be polled as well."""

    notifies = False

    def __init__(self) -> None:
        self._bell = Bell()
        self.tell = self._bell.ring

    async def wait(self) -> Sequence[Shard]:
        """Wait for rings, and answer which held queues may have got entries."""
        while not (found := self._bell.take()):
            await self._bell.wait(_WAIT_S)
        return found
