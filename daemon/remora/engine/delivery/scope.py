"""What all parts of one session share: the owned shard, its topic, and the services of the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remora.codec.rendering_cached import Renderer
from remora.config.delivery import DeliverySettings
from remora.engine.admission.gate import Gate
from remora.engine.admission.holds import HeldTopics
from remora.engine.catalogue import Catalogue
from remora.engine.delivery.shard_state import AskLate, ShardState
from remora.engine.delivery.spans import ShardSpans
from remora.engine.lease import Lease
from remora.engine.quarantines import Quarantines
from remora.engine.traffic import Traffic
from remora.metrics import Telemetry
from remora.model.topic import Topic
from remora.policy.delivery.lifetime import LifetimeLimits
from remora.policy.delivery.pace import Looks, Pace
from remora.policy.status.stages import OF_STORE, EventStage
from remora.ports.delivery import DeliveryStore
from remora.ports.tracing import NO_TRACER, Tracer


@dataclass(slots=True)
class WorkerContext:
    """See the module. `settings` is replaced by a reload and read anew at each use.

    `caught_up_at` is when a page with entries last reached the end of its queue: a topic is delivered as it comes in.
    """

    store: DeliveryStore
    catalogue: Catalogue
    telemetry: Telemetry
    renderer: Renderer
    settings: DeliverySettings
    pace: Pace
    gate: Gate
    quarantines: Quarantines
    holds: HeldTopics
    traffic: Traffic = field(default_factory=Traffic)
    looks: Looks = field(default_factory=Looks)
    tracer: Tracer = NO_TRACER
    caught_up_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class DeliveryScope:
    """One shard on its way to one topic, a snapshot: a session ends when entries are to be sent otherwise."""

    context: WorkerContext
    lease: Lease
    topic: Topic
    state: ShardState
    publishes_letters: bool = False
    """Whether the endpoint gets the shard's dead letters, too."""
    arrived_late: AskLate | None = None
    """Asks the endpoint which records with an unknown outcome arrived; None where it never knows."""
    succeeds: Callable[[bytes], None] | None = None
    """Gets where this shard's parents ended, before its first entries are packed; None where nobody passes it on."""
    spans: ShardSpans = field(init=False)
    endpoint_kind: str = field(init=False)
    """The scheme of the target's URI."""

    def __post_init__(self) -> None:
        spans = ShardSpans(self.context.tracer, self.lease.shard.queue, self.topic.label, self.context.telemetry.clock)
        object.__setattr__(self, "spans", spans)
        object.__setattr__(self, "endpoint_kind", self.topic.target.scheme)

    @property
    def limits(self) -> LifetimeLimits:
        """How long and how often an entry is tried, as the settings say now where the topic leaves it open."""
        return self.context.settings.limits.of(self.topic)

    def took(self, stage: EventStage, seconds: float) -> None:
        """A stage of this shard's delivery has ended, which took so long."""
        at = self.context.store.kind if stage in OF_STORE else self.endpoint_kind
        self.context.telemetry.stage_took(stage, at, seconds)

    def clock(self) -> float:
        """The time that stages are measured by, in seconds."""
        return self.context.telemetry.clock()

    def pushed(self, since: float, begun: float) -> None:
        """A batch or a transaction was acknowledged, which waited for its turn since then until its push begun."""
        self.took(EventStage.WAIT_TURN, begun - since)
        self.took(EventStage.PUSH, self.clock() - begun)

    def delivered(self, events: int, nbytes: int, created_ns: Sequence[int], now_ns: int) -> None:
        """Count events that have arrived, created and acknowledged at these times."""
        self.state.progress.has_acks = True
        self.context.telemetry.delivered(self.topic.label, events, nbytes, created_ns, now_ns)
        self.context.traffic.acknowledged(self.lease.shard, nbytes)
