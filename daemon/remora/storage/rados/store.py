"""The store of a Ceph cluster: radosgw's own queue objects, locks and registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from remora.config.stores import RadosSettings
from remora.ports.credit import NO_TRAFFIC, StoreTraffic
from remora.ports.spill import OnSeam, seam_unseen
from remora.ports.stages import NO_METER, StageMeter
from remora.ports.tracing import NO_TRACER, Tracer
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.ingest.fan_out import RadosAnnouncing
from remora.storage.rados.ingest.finisher import Recovery, request_log
from remora.storage.rados.ingest.intent_log import FanOutEnvelope, Intent
from remora.storage.rados.layouts import LayoutParts, ReshardableTopics
from remora.storage.rados.members import RadosMembers
from remora.storage.rados.own_topics import OwnTopicsParts, RadosOwnTopics
from remora.storage.rados.queues.attempts import RadosAttempts
from remora.storage.rados.queues.catalog import RadosCatalog
from remora.storage.rados.queues.doorbells import Doorbells, RadosArrivals
from remora.storage.rados.queues.inspection import RadosInspection
from remora.storage.rados.queues.ledger import RadosLedger
from remora.storage.rados.queues.locks import RadosLocks
from remora.storage.rados.queues.old_heads import OldHeads, RadosMends
from remora.storage.rados.queues.own_queues import OwnQueues
from remora.storage.rados.queues.queue import QueueParts
from remora.storage.rados.queues.releases import Guards, RadosReleases
from remora.storage.rados.queues.runs import Runs
from remora.storage.rados.queues.sealed_queues import FormerQueues, Parents, SealedQueues
from remora.storage.rados.queues.spills import RadosSpills
from remora.storage.rados.queues.two_phase import RadosTwoPhase
from remora.storage.rados.redriving import RadosLetters
from remora.storage.rados.topics.holds import HoldsObject
from remora.storage.rados.topics.notifications import RadosNotifications
from remora.storage.rados.topics.peaks import RadosPeaks
from remora.storage.rados.topics.registry import Registry


class RadosStore:
    """One store with all its parts, on one client instance; see `ports.ShardStore`.

    `on_state` is called with whether the cluster is reached, and a sentence, whenever that changes. A reservation that
    keeps others from being made is given up when it has been seen for `reservation_age_s`. Spilled entries go to
    `spill_pool`, else to the queues' pool; workers of any host have read what is released `guard_s` after it was
    written. `on_seam`: see `ports.spill`. `traffic` meters what is done beside deliveries.
    """

    def __init__(  # noqa: PLR0913 - each is an option's, or an observer
        self,
        settings: RadosSettings,
        on_state: Callable[[bool, str], None] = lambda _connected, _text: None,
        *,
        tracer: Tracer = NO_TRACER,
        meter: StageMeter = NO_METER,
        reservation_age_s: float = 120.0,
        spill_pool: str = "",
        guard_s: float = 5.0,
        on_seam: OnSeam = seam_unseen,
        traffic: StoreTraffic = NO_TRAFFIC,
    ) -> None:
        self._connection = ClusterConnection(settings, on_state, topics=True, traffic=traffic)
        connection = self._connection
        self.arrivals = RadosArrivals()
        self._doorbells = doorbells = Doorbells(connection, self.arrivals.tell)
        registry = Registry(connection, doorbells.ring_topics)
        self.notifications = RadosNotifications(connection, registry)
        self.mends = RadosMends(connection)
        old_heads = OldHeads(connection, self.mends, may_write=settings.heal != "off")
        self.two_phase, self.attempts = (
            RadosTwoPhase(connection, old_heads, reservation_age_s),
            RadosAttempts(connection),
        )
        own_queues = OwnQueues(connection, self.two_phase, old_heads, doorbells.ring)
        runs = Runs(connection, spill_pool)
        self.inspection = RadosInspection(connection, runs)
        self.holds = HoldsObject(connection, registry, doorbells.ring_topics)
        sealed, former = SealedQueues(connection, own_queues), FormerQueues(connection)
        topics = OwnTopicsParts(registry, own_queues, sealed, self.inspection, self.holds, former, self.notifications)
        own_topics = RadosOwnTopics(topics)
        self.catalog = RadosCatalog(connection, registry, runs, doorbells.changed)
        self.releases, self.members, self.ledger = (
            RadosReleases(connection),
            RadosMembers(connection),
            RadosLedger(connection),
        )
        self.letters = RadosLetters(connection, sealed, own_topics, self.two_phase)
        guards = Guards(connection, self.releases, registry, guard_s)
        parts = QueueParts(old_heads, runs, guards, Parents(registry, sealed, former, doorbells.ring))
        self.queue = self.spill = RadosSpills(connection, parts, self.attempts, self.letters)
        self.locks = RadosLocks(connection, self.catalog, old_heads, doorbells, self.queue, on_seam)
        self.peaks = RadosPeaks(connection)
        requests, fan_outs = (
            request_log(connection, Intent, own_queues, registry),
            request_log(connection, FanOutEnvelope, own_queues, registry),
        )
        self.own_topics = ReshardableTopics(topics, LayoutParts(requests, fan_outs, self.letters))
        self.ingest = RadosAnnouncing(requests, own_queues, own_topics, fan_outs)
        self.ingest.tracer, self.ingest.meter = tracer, meter
        self._recovery, self._fan_out_recovery, self._runs = Recovery(requests), Recovery(fan_outs), runs
        self._guards = guards
        self._stack = AsyncExitStack()

    kind = "rados"

    @property
    def connected(self) -> bool:
        """Whether there is a session with the cluster."""
        return self._connection.connected

    @property
    def description(self) -> str:
        """The pool, what named it, and the user, one line for log and status."""
        return self._connection.description

    @property
    def damaged(self) -> Mapping[str, str]:
        """Empty: an OSD does not serve what it cannot read, and the call raises StoreUnavailable."""
        return {}

    @property
    def failing(self) -> Mapping[str, str]:
        """The reason why the cluster cannot be reached, under `unreachable`."""
        return {} if self.connected else {"unreachable": self.description}

    @property
    def depth(self) -> tuple[int, int]:
        """The operations that OSDs have not answered yet; it has no writers of its own."""
        return 0, self._connection.under_way

    @property
    def synced(self) -> int:
        """0: the OSDs sync."""
        return 0

    async def __aenter__(self) -> RadosStore:
        """Open without waiting for the cluster. Raises StoreMisconfigured for what can never work."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._connection)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for running in (self._recovery.run(), self._fan_out_recovery.run()):
                recovering = tasks.create_task(running, name="rados recovery")
                stack.callback(recovering.cancel)
            ringing = tasks.create_task(self._doorbells.run(), name="rados doorbells")
            stack.callback(ringing.cancel)
            stack.push_async_callback(self._doorbells.rung)
            sweeping = tasks.create_task(self._guards.run(self._runs), name="rados sweep")
            stack.callback(sweeping.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()
