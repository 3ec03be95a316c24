"""The embedded store: queues in SQLite files of one directory, and the watch over these files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from remora.config.stores import SqliteSettings
from remora.model.errors import StoreError, StoreMisconfigured
from remora.ports.stages import NO_METER, StageMeter
from remora.ports.tracing import NO_TRACER, Tracer
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.writer import WriterStats
from remora.storage.sqlite.ingest.announcements import AnnouncedIngest
from remora.storage.sqlite.ingest.finisher import DecisionFinisher
from remora.storage.sqlite.logs import SqliteLogs
from remora.storage.sqlite.members import SqliteMembers
from remora.storage.sqlite.queues.arrivals import SqliteArrivals
from remora.storage.sqlite.queues.attempts import SqliteAttempts
from remora.storage.sqlite.queues.catalog import SqliteCatalog
from remora.storage.sqlite.queues.dead_letters import SqliteLetters
from remora.storage.sqlite.queues.inspection import SqliteInspection
from remora.storage.sqlite.queues.ledger import SqliteLedger
from remora.storage.sqlite.queues.locks import SqliteLocks
from remora.storage.sqlite.queues.queue import SqliteQueue
from remora.storage.sqlite.queues.spills import NoMends, NoSpills
from remora.storage.sqlite.queues.two_phase import SqliteTwoPhase
from remora.storage.sqlite.topics.holds import TopicHolds
from remora.storage.sqlite.topics.notifications import StoredNotifications
from remora.storage.sqlite.topics.own_topics import Topics, sweep_all
from remora.storage.sqlite.topics.peaks import SqlitePeaks

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class SqliteStore:
    """One store with all its parts, on one directory; see `ports.ShardStore`.

    `on_state` is called with whether the store can be used, and a sentence: when it was opened, and whenever a file
    turns out to be unusable, or usable again. Where there is no store in the directory yet it is made, or without
    `make` refused when it is opened. One that `waits` opens in any case, and is usable as soon as its files are.
    Several stores, of one process or of many, may share a directory; each is a holder of locks of its own.
    """

    def __init__(
        self,
        settings: SqliteSettings,
        on_state: Callable[[bool, str], None] = lambda _connected, _text: None,
        *,
        make: bool = True,
        waits: bool = False,
        tracer: Tracer = NO_TRACER,
        meter: StageMeter = NO_METER,
    ) -> None:
        self._files = files = Files(settings, on_state, make=make, waits=waits, meter=meter)
        self.catalog = self.releases = SqliteCatalog(files)
        self.holds = TopicHolds(files, self.catalog.held)
        self.locks, self.members, self.queue = SqliteLocks(files), SqliteMembers(files), SqliteQueue(files)
        self.attempts, self.arrivals, self.letters = SqliteAttempts(files), SqliteArrivals(files), SqliteLetters(files)
        self.inspection, self.ledger = SqliteInspection(files), SqliteLedger(files)
        self.mends, self.spill = NoMends(self.inspection), NoSpills(self.inspection)
        self.notifications, self.logs, self.peaks = StoredNotifications(files), SqliteLogs(files), SqlitePeaks(files)
        self.own_topics, self.two_phase, self.ingest = (
            Topics(files, self.notifications),
            SqliteTwoPhase(files),
            AnnouncedIngest(files, tracer, meter),
        )
        self._finisher = DecisionFinisher(files, self.ingest)
        self._watch = Watch(files, self._begin)

    kind = "sqlite"

    @property
    def connected(self) -> bool:
        """Whether the store can be used, save for files that are damaged while others are not."""
        return self._files.is_usable

    @property
    def damaged(self) -> Mapping[str, str]:
        """The files that cannot be used any more, with the reason."""
        return self._files.damaged

    @property
    def failing(self) -> Mapping[str, str]:
        """Why the store or a part of it cannot be used now, in a sentence by its cause."""
        return self._files.failing

    @property
    def writers(self) -> Mapping[str, WriterStats]:
        """What was written to each file since the store was opened."""
        return {file.path.name: file.stats for file in self._files.all} if self._files.is_open else {}

    @property
    def depth(self) -> tuple[int, int]:
        """The jobs that wait for the writers of its files; it has no servers."""
        return sum(file.waiting for file in self._files.all) if self._files.is_open else 0, 0

    @property
    def synced(self) -> int:
        """How many transactions were synced since the store was opened first, of all files."""
        return self._files.synced

    @property
    def description(self) -> str:
        """What this store is and where that was learnt, one line for log and status."""
        return self._files.description

    async def __aenter__(self) -> SqliteStore:
        """Make or migrate the files, and open them. Raises StoreMisconfigured."""
        try:
            await self._watch.open()
        except BaseException:
            await self._files.close()
            raise
        return self

    async def _begin(self) -> None:
        """What comes first whenever the files were opened."""
        self.arrivals.begin()
        await sweep_all(self._files)
        await self._finisher.begin()

    async def __aexit__(self, *exc_info: object) -> None:
        await self._watch.close()
        await self._finisher.end()
        self.arrivals.end()
        await self._files.close()


class Watch:
    """Looks at the files of a store for as long as it is open: notices where they cannot be used and no other part
    asks, and when they can be used again.

    A process goes on with files that are gone from their directory as if nothing had happened: what it stored there
    would be lost with it. So every write looks first whether the file still lies where it was opened; and all files are
    looked at every second, since a daemon that gets no requests must not seem ready either.
    """

    def __init__(self, files: Files, begin: Callable[[], Awaitable[None]]) -> None:
        """`begin` is called whenever the files were opened."""
        self._files = files
        self._begin = begin
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the files and look after them from now on; those that are to be waited for are opened later."""
        await self._files.open()
        if self._files.is_open:
            await self._begin()
        self._task = asyncio.create_task(self._run(), name="watch the store")

    async def close(self) -> None:
        """Stop looking. The files stay open where they were."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
                told = ""
            except StoreError:
                pass  # which the state says
            except Exception as exc:  # a defect costs one look: without looks a store that is away would stay so
                if told != repr(exc):
                    told = repr(exc)
                    _log.exception("the look at the embedded store failed, and the next one follows")

    async def look(self) -> None:
        """Find out what cannot be used, and what can be used again. Other files in the place of ours are opened: they
        are those of a disk that came back under another number, or of a backup."""
        files = self._files
        if files.is_open:
            await files.look()
            if files.has_found_again:
                files.has_found_again = False
                await self._begin()
        if not files.is_open or files.is_stale:
            with suppress(StoreMisconfigured):  # which the state tells
                await files.reopen()
                await self._begin()
