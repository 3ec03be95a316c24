"""Where a shard's entries go now: its topic, that topic's endpoint and destination, and how it is delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from remora.codec.topic import SLO, class_remarks, limit_remarks, parse_args, usable_delivery
from remora.engine.delivery.scope import WorkerContext
from remora.engine.destination import Destination
from remora.engine.lease import Lease
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Delivery, Target, Topic, TopicHold
from remora.policy.delivery.lifetime import LifetimeLimits
from remora.policy.ownership.not_owned import Schemes, reason_to_leave
from remora.policy.status.objectives import parse_objective
from remora.ports.endpoint import Endpoint, EndpointSource, TransactionalEndpoint


class MadeEndpoints:
    """The endpoints of a worker by URI scheme, each made when a topic first needs it."""

    def __init__(self, given: Sequence[Endpoint | EndpointSource]) -> None:
        self._sources: dict[str, EndpointSource] = {}
        self._made: dict[str, Endpoint] = {}
        for each in given:
            for scheme in each.schemes:
                if isinstance(each, EndpointSource):
                    self._sources[scheme] = each
                else:
                    self._made[scheme] = each

    @property
    def schemes(self) -> frozenset[str]:
        """The schemes that any endpoint delivers to."""
        return frozenset(self._sources) | frozenset(self._made)

    async def make(self, scheme: str) -> None:
        """Have the endpoint of this scheme made."""
        if scheme not in self._made:
            self._made[scheme] = await self._sources[scheme].made()

    def __getitem__(self, scheme: str) -> Endpoint:
        """The endpoint of this scheme, which has been made."""
        return self._made[scheme]


@dataclass(frozen=True, slots=True)
class Outlets:
    """The endpoints of a worker by URI scheme, and which schemes of whose topics it delivers to at the moment.

    `destination` gives what all shards of a target's destination share.
    """

    endpoints: MadeEndpoints
    schemes: Callable[[], Schemes]
    destination: Callable[[Target], Destination]


class Outlet:
    """See the module. Every session begins with another look at the topic; what one look found stays until the next."""

    def __init__(self, context: WorkerContext, lease: Lease, outlets: Outlets) -> None:
        self._context, self._lease = context, lease
        self._outlets = outlets
        self.topic: Topic | None = None
        """Whose entries they are, as the last look found; None before the first."""
        self.seen: Topic | None = None
        """The topic as the catalogue had it when the attempt began: a change since then ends a pause."""
        self.hold: TopicHold | None = None
        """The hold of the topic, as it was then."""
        self.destination: Destination | None = None
        self.is_opened = False
        """Whether a way to the endpoint opened in this attempt."""
        self.delivery = ""
        self.remarks: tuple[str, ...] = ()

    def look(self) -> Topic | None:
        """The shard's topic by its metadata, with which a pause compares what it finds later."""
        catalogue, shard = self._context.catalogue, self._lease.shard
        self.seen, self.hold = catalogue.topic(shard), catalogue.hold(shard)
        return self.seen

    async def changed(self) -> None:
        """Wait until the topic's metadata or its hold are no longer as at the last look."""
        await self._context.catalogue.wait_for_change(self._lease.shard, self.seen, self.hold)

    def reason_to_leave(self, topic: Topic) -> str | None:
        """Why this worker does not deliver the topic; None if it does."""
        return reason_to_leave(topic, self._outlets.schemes())

    async def aim(self, topic: Topic) -> None:
        """An attempt to deliver to this topic's target begins.

        How it is delivered counts from now on, where that can be told: what may have been committed in a transaction
        must not expire while the attempt waits for its turn.
        """
        await self._outlets.endpoints.make(topic.target.scheme)
        self.topic, self.destination, self.is_opened = topic, self._outlets.destination(topic.target), False
        with suppress(EndpointMisconfigured):  # which `examine` raises
            self.delivery = str(self._mode(topic)[0])

    def endpoint_of(self, topic: Topic) -> Endpoint:
        """The endpoint of the topic's scheme."""
        return self._outlets.endpoints[topic.target.scheme]

    def examine(self, topic: Topic) -> None:
        """Find out how the topic is delivered, and what works otherwise than asked. Raises EndpointMisconfigured."""
        endpoint, args = self.endpoint_of(topic), topic.target.args
        mode, mode_remarks = self._mode(topic)
        self.delivery = str(mode)
        asked = (*limit_remarks(args), *class_remarks(args), *_slo_remarks(args))
        self.remarks = (*endpoint.check(topic.target), *asked, *mode_remarks)
        for remark in self.remarks:
            self._context.telemetry.remark(topic.label, remark)

    def _mode(self, topic: Topic) -> tuple[Delivery, list[str]]:
        is_transactional = isinstance(self.endpoint_of(topic), TransactionalEndpoint)
        default = Delivery(self._context.settings.mode)
        return usable_delivery(topic.target, default, is_transactional=is_transactional)

    @property
    def is_exact(self) -> bool:
        """Whether the topic is delivered in transactions."""
        return self.delivery == Delivery.EXACTLY_ONCE

    @property
    def limits(self) -> LifetimeLimits:
        """How long and how often an entry is tried, as the settings say now where the topic leaves it open."""
        limits = self._context.settings.limits
        return limits.of(self.topic) if self.topic is not None else limits

    @property
    def label(self) -> str:
        """The topic's name in metrics and log; the queue's while no topic is known."""
        return self.topic.label if self.topic is not None else self._lease.shard.queue


def _slo_remarks(args: str) -> list[str]:
    """What is wrong with the service level that a topic declares; nothing depends on it."""
    text = parse_args(args).get(SLO, "") if SLO in args else ""
    if text:
        try:
            parse_objective(text)
        except ValueError as exc:
            return [f"{SLO} is ignored: {exc}"]
    return []
