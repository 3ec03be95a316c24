"""One worker: the catalogue, the shards it owns, and what waits in them, in one visible block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from remora.codec.rendering_cached import Renderer
from remora.config.delivery import DeliverySettings
from remora.config.workers import BalanceSettings, OwnershipSettings, QuarantineSettings
from remora.engine.admission.gate import Gate
from remora.engine.admission.givers import Givers
from remora.engine.admission.holds import HeldTopics
from remora.engine.admission.shares import WorkerShares
from remora.engine.backlog import BacklogMonitor, LetterCounter
from remora.engine.catalogue import Catalogue
from remora.engine.delivery.scope import WorkerContext
from remora.engine.destination import Destination, Destinations, Lookout, UnackedBounds
from remora.engine.dispatcher import Dispatcher
from remora.engine.dispatching.outlet import MadeEndpoints, Outlets
from remora.engine.layouts import LayoutKeeper
from remora.engine.lease import Lease
from remora.engine.ownership.coordinator import Coordinator
from remora.engine.ownership.worker_info import Meters, WorkerInfo
from remora.engine.quarantines import Quarantines
from remora.engine.spiller import Spiller
from remora.engine.status import ShardStatus
from remora.metrics import Telemetry
from remora.model.health import Waiting
from remora.model.member import Member, WorkerCookie
from remora.model.shard import Shard
from remora.policy.admission.limits import ByteLimit, EntryLimit
from remora.policy.delivery.pace import Pace, most_per_second
from remora.policy.delivery.retry import ShardFailure
from remora.policy.ownership.hosts import Names, names_of
from remora.policy.ownership.not_owned import NotOwned, Schemes
from remora.policy.queues.mends import Heal
from remora.policy.queues.spill import SpillRules
from remora.policy.status.condition import State
from remora.ports.administration import LayoutStorage
from remora.ports.delivery import DeliveryStore
from remora.ports.endpoint import Endpoint, EndpointSource
from remora.ports.tracing import NO_TRACER, Tracer


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """How a worker is set up. `cookie` names it in locks and in the list of workers.

    `group_size` workers start together, this one included: they wait for each other for a moment. `meters` say how busy
    this worker is. At `gate` its shards wait for credit to send, without one they never do; `budgets` are the gate's.
    `heal` says when queues get room back that their store has leaked, `spill` when entries are moved beside them. One
    worker of a host `counts_letters` of the whole store. Of `layouts` the former ones go when they are delivered.
    `hostname` is what people call the host.
    """

    cookie: str
    ownership: OwnershipSettings
    delivery: DeliverySettings
    group_size: int = 1
    meters: Meters | None = None
    gate: Gate | None = None
    quarantine: QuarantineSettings = field(default_factory=QuarantineSettings)
    budgets: WorkerShares | None = None
    tracer: Tracer = NO_TRACER
    heal: Heal = "full"
    spill: SpillRules = field(default_factory=SpillRules)
    counts_letters: bool = False
    layouts: LayoutStorage | None = None
    hostname: str = ""


class Worker:
    """See the module. `run` is called once."""

    def __init__(
        self,
        store: DeliveryStore,
        endpoints: Sequence[Endpoint | EndpointSource],
        telemetry: Telemetry,
        setup: WorkerSetup,
        rng: Random,
    ) -> None:
        """`rng` spreads retries."""
        ownership, delivery = setup.ownership, setup.delivery
        by_scheme = MadeEndpoints(endpoints)
        schemes = Schemes(by_scheme.schemes, frozenset(ownership.schemes))
        meters, budgets = setup.meters or Meters(), setup.budgets or WorkerShares()
        self._info = info = WorkerInfo(setup.cookie, schemes, setup.group_size, meters, budgets, setup.hostname)
        self._letters = LetterCounter(store, telemetry) if setup.counts_letters else None
        self.catalogue = Catalogue(store, telemetry, ownership.discovery_interval_s)
        givers = Givers(lambda: self._context.settings.read_ahead_watermark)
        self.budget = ByteLimit(delivery.worker_bytes, evict=givers.make_room)
        self.entries = EntryLimit()
        self._destinations = destinations = Destinations(
            lambda target: (target.scheme, by_scheme[target.scheme].destination(target)),
            lambda: self._make_destination(givers, delivery.endpoint_bytes),
        )
        self._lookout = Lookout(destinations.in_use, telemetry)
        gate = setup.gate or Gate(telemetry)
        pace = Pace(most_per_second(store.queue.poll_cost_s))
        self.quarantines = quarantines = Quarantines(
            setup.quarantine,
            telemetry,
            rng,
            lambda: ((each.endpoint, each.topic) for each in self.shards if each.endpoint),
        )
        self._context = WorkerContext(
            store,
            self.catalogue,
            telemetry,
            Renderer(),
            delivery,
            pace,
            gate,
            quarantines,
            HeldTopics(self.catalogue.is_held, gate.free),
            meters.traffic,
            tracer=setup.tracer,
        )
        meters.quarantined = lambda: self.quarantines.named
        meters.held = lambda: self.budget.held / delivery.worker_bytes

        outlets = Outlets(by_scheme, lambda: info.schemes, destinations.of)

        def serve(lease: Lease) -> Dispatcher:
            return Dispatcher(self._context, lease, outlets, rng)

        self.ownership = Coordinator(store, self.catalogue, telemetry, ownership, info, serve)
        layouts = setup.layouts
        self._keep_layouts = None if layouts is None else LayoutKeeper(layouts, self.catalogue, telemetry).run
        self._backlog = BacklogMonitor(store, self.catalogue, self.ownership, telemetry, gate, setup.heal)
        self._spiller = Spiller(self._context, self.ownership, setup.spill, self._backlog.rooms)

    def _make_destination(self, givers: Givers, nbytes: int) -> Destination:
        """A destination within the bounds of the worker; a reload may change all of them but `nbytes`."""
        context = self._context
        unacked = UnackedBounds(
            lambda: context.settings.max_unacked,
            lambda: context.settings.destination_max_unacked,
            self.entries,
            context.gate,
        )
        own = Givers(lambda: context.settings.read_ahead_watermark, within=givers)
        return Destination(nbytes, self.budget, unacked, self._lookout.want, own)

    @property
    def shards(self) -> list[ShardStatus]:
        """How each held shard is doing."""
        return [self.ownership.status(each) for each in self.ownership.owned]

    @property
    def served(self) -> list[ShardStatus]:
        """How those held shards are doing that are not idle: all that work, wait or fail are among them."""
        return self.ownership.active()

    @property
    def held_shards(self) -> int:
        """How many shards are held."""
        return len(self.ownership.shards)

    @property
    def not_owned(self) -> Mapping[Shard, NotOwned]:
        """The shards that are not owned, with the reason."""
        return self.ownership.not_owned

    @property
    def others(self) -> Mapping[str, Member]:
        """The rows of the other workers that live, on this and other hosts, by cookie, as far as is known."""
        return self.ownership.others

    @property
    def hosts(self) -> Names:
        """The names of hosts by their ids, this one's included, as far as is known."""
        own = WorkerCookie.parse(self._info.cookie)
        found = names_of(self.others.values())
        return found | {own.host: self._info.hostname} if own is not None else found

    def waiting(self) -> tuple[Waiting, ...]:
        """What waits here, by destination and cause."""
        groups: dict[tuple[str, Literal["", "away", "refused"]], list[ShardStatus]] = {}
        for each in self.ownership.active():
            # To wait for credit, for former shards, or for an operator who holds the topic, is no stall.
            if each.has_work and each.state not in (State.SHAPED, State.HELD, State.WAITING):
                groups.setdefault((each.endpoint, _cause(each)), []).append(each)
        return tuple(
            Waiting(
                destination,
                cause,
                min(each.progress_age_s for each in group),
                tuple(sorted({f"{each.topic or each.queue}: {each.reason}" for each in group if each.reason})[:10]),
            )
            for (destination, cause), group in groups.items()
        )

    def has_way(self) -> bool:
        """Whether a way to some destination is open for a shard in which nothing waits."""
        return any(each.is_open and not each.has_work for each in self.ownership.active())

    def beat_age_s(self) -> float:
        """Seconds since the slower of the worker's own loops last did something, whatever came of it."""
        return asyncio.get_running_loop().time() - min(self.catalogue.beat_at, self.ownership.beat_at)

    def reload(
        self,
        delivery: DeliverySettings,
        balance: BalanceSettings | None = None,
        quarantine: QuarantineSettings | None = None,
        schemes: Iterable[str] | None = None,
    ) -> None:
        """Use other settings from the next step on; the bounds on bytes stay as they were.

        `schemes` are those that radosgw's topics are taken over of. Shards of others are given back when what is under
        way is done, and those of new ones are acquired.
        """
        self._context.settings = delivery
        for each in self._destinations.in_use():
            each.admit()
        if balance is not None:
            self._info.meters.settings = balance
        if quarantine is not None:
            self.quarantines.use(quarantine)
        known = self._info.schemes
        wanted = known if schemes is None else replace(known, from_radosgw=frozenset(schemes))
        if wanted != known:
            self.ownership.follow(wanted)

    async def clear(self, is_dead: Callable[[str, bool], bool]) -> None:
        """Break the locks of all workers whose cookies are dead, count these no more, and take what is free at once.

        `is_dead` is asked of cookies of any form, also of a gateway's, and whether the list of workers shows each as
        live; it may answer True only for a worker whose process surely has ended. Raises StoreError.
        """
        await self.ownership.clear(is_dead)

    def drain(self, on: bool) -> None:
        """With `on` hand every shard to other workers and take none, until it is undone; `held_shards` tells when
        that is done. Where there is no other worker they are given back as they are."""
        self.ownership.drain(on)

    def end(self) -> None:
        """Stop in two phases: take and read nothing more, deliver what is under way, release the locks."""
        self.ownership.end()

    async def run(self) -> None:
        """Work until `end`, and for the time that its settings allow after it."""
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(self.catalogue.run(), name="catalogue"),
                tasks.create_task(self._backlog.run(), name="backlog"),
                tasks.create_task(self.quarantines.run(), name="quarantines"),
                tasks.create_task(self._context.holds.run(self.catalogue.next_change), name="holds"),
                tasks.create_task(self._spiller.run(), name="spiller"),
            ]
            if self._keep_layouts is not None:
                others.append(tasks.create_task(self._keep_layouts(), name="layouts"))
            if self._letters is not None:
                others.append(tasks.create_task(self._letters.run(self.catalogue), name="stored letters"))
            with self._lookout.within(tasks):
                await self.ownership.run()
            for each in others:
                each.cancel()


def _cause(each: ShardStatus) -> Literal["", "away", "refused"]:
    match each.failure:
        case ShardFailure.TRANSIENT:
            return "away"
        case ShardFailure.CONFIGURATION | ShardFailure.DAMAGED:
            return "refused"
        case _:
            return ""
