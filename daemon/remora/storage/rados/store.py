"""The store of a Ceph cluster: radosgw's own queue objects, locks and registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from remora.config import RadosSettings
from remora.model.shard import Shard
from remora.storage.rados.attempts import Attempts
from remora.storage.rados.catalog import Catalog
from remora.storage.rados.completing import Completer
from remora.storage.rados.connection import Connection
from remora.storage.rados.dead_letters import DeadLetters
from remora.storage.rados.ingest import Ingest
from remora.storage.rados.inspection import Inspection
from remora.storage.rados.ledger import Ledger
from remora.storage.rados.locks import Locks
from remora.storage.rados.members import Members
from remora.storage.rados.own_queues import OwnQueues
from remora.storage.rados.own_topics import OwnTopics
from remora.storage.rados.queue import Queue
from remora.storage.rados.recovery import Recovery
from remora.storage.rados.redriving import Redriving
from remora.storage.rados.registry import Registry
from remora.storage.rados.releases import Releases
from remora.storage.rados.requests import Requests
from remora.storage.rados.two_phase import TwoPhase


def _nobody(connected: bool, text: str) -> None:
    """Whoever does not ask to be told of the connection is not told."""


class RadosStore:
    """One store with all its faces, on one client instance; see `ports.ShardStore`.

    `on_state` is called with whether the cluster is reached, and a sentence, whenever that changes.
    """

    def __init__(self, settings: RadosSettings, on_state: Callable[[bool, str], None] = _nobody) -> None:
        self._connection = Connection(settings, on_state)
        attempts, members = Attempts(self._connection), Members(self._connection)
        letters, inspection = DeadLetters(self._connection), Inspection(self._connection)
        queue = Queue(self._connection, attempts, letters)
        two_phase, ledger = TwoPhase(self._connection), Ledger(self._connection)
        own_queues = OwnQueues(self._connection, two_phase)
        registry = Registry(self._connection)
        own_topics = OwnTopics(registry, own_queues, inspection)
        catalog = Catalog(self._connection, registry)
        locks = Locks(self._connection, catalog)

        self.shards, self.topics, self.peek = catalog.shards, catalog.topics, catalog.peek
        releases = Releases(self._connection)
        self.released, self.set_released = releases.released, releases.set_released
        self.acquire, self.renew, self.renew_all = locks.acquire, locks.renew, locks.renew_all
        self.release, self.evict, self.evict_all = locks.release, locks.evict, locks.evict_all
        self.announce, self.withdraw, self.members = members.announce, members.withdraw, members.members
        self.read, self.remove = queue.read, queue.remove
        self.note_attempts, self.attempts = attempts.note_attempts, attempts.attempts
        self.expire_reservations, self.expire_all = queue.expire_reservations, queue.expire_all
        self.park, self.letters = letters.park, letters.letters
        redriving = Redriving(self._connection, own_queues, own_topics, two_phase)
        self.standing_letters, self.still_standing = letters.standing_letters, redriving.still_standing
        self.drop, self.redrive, self.letter_totals = redriving.drop, redriving.redrive, redriving.letter_totals
        self.stats, self.survey, self.dump = inspection.stats, inspection.survey, inspection.dump
        self.balance, self.balances = ledger.balance, ledger.balances
        self.reserve, self.commit, self.abort = two_phase.reserve, two_phase.commit, two_phase.abort
        requests = Requests(self._connection)
        completer = Completer(requests, own_queues)
        ingest = Ingest(requests, own_queues, own_topics, completer)
        self._recovery = Recovery(requests, completer)
        self._stack = AsyncExitStack()
        self._own_topics = own_topics
        self.own_topic, self.create_topic = own_topics.own_topic, own_topics.create_topic
        self.change_topic, self.remove_topic = own_topics.change_topic, own_topics.remove_topic
        self.publish, self.reserve_events = ingest.publish, ingest.reserve_events
        self.commit_events, self.abort_events = ingest.commit_events, ingest.abort_events

    @property
    def connected(self) -> bool:
        """Whether there is a session with the cluster."""
        return self._connection.connected

    @property
    def tells_arrivals(self) -> bool:
        """An OSD tells nobody of a commit: queues have to be looked into."""
        return False

    async def arrivals(self) -> Sequence[Shard]:
        """Never asked; see `tells_arrivals`."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        """What this store is and where that was learnt, one line for log and status."""
        return self._connection.description

    @property
    def damaged(self) -> Mapping[str, str]:
        """Nothing: what an OSD cannot read it does not serve, and StoreUnavailable says so."""
        return {}

    @property
    def failing(self) -> Mapping[str, str]:
        """Why the cluster cannot be reached."""
        return {} if self.connected else {"unreachable": self.description}

    @property
    def synced(self) -> int:
        """Nothing: the OSDs do that."""
        return 0

    async def __aenter__(self) -> RadosStore:
        """Open without waiting for the cluster. Raises StoreMisconfigured for what can never work."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._connection)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            recovering = tasks.create_task(self._recovery.run(), name="rados recovery")
            stack.callback(recovering.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()
