"""What all parts of one session share: the owned shard, its topic, and the services of the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remora.engine.delivery.shard_state import AskLate, ShardState
from remora.engine.delivery.spans import ShardSpans
from remora.engine.delivery.worker_context import WorkerContext
from remora.engine.lease import Lease
from remora.model.topic import Topic
from remora.policy.lifetime import Limits


@dataclass(frozen=True, slots=True)
class Scope:
    """One shard on its way to one topic. The topic is a snapshot: a session ends when its attributes change."""

    context: WorkerContext
    lease: Lease
    topic: Topic
    state: ShardState
    publishes_letters: bool = False
    """Whether the endpoint gets the shard's dead letters, too."""
    arrived_late: AskLate | None = None
    """Asks the endpoint which records arrived of which a push could not tell; None where it never knows."""
    succeeds: Callable[[bytes], None] = field(default=lambda _: None, compare=False)
    """Told where the parents of this shard ended, before its first entries are packed."""
    spans: ShardSpans = field(init=False)

    def __post_init__(self) -> None:
        spans = ShardSpans(self.context.tracer, self.lease.shard.queue, self.topic.label)
        object.__setattr__(self, "spans", spans)

    @property
    def limits(self) -> Limits:
        """How long and how often an entry is tried, as the settings say now where the topic leaves it open."""
        return self.context.settings.limits.of(self.topic)

    def delivered(self, events: int, nbytes: int, created_ns: Sequence[int], now_ns: int) -> None:
        """Count events that have arrived, created and acknowledged at these times."""
        self.state.progress.has_acks = True
        self.context.telemetry.delivered(self.topic.label, events, nbytes, created_ns, now_ns)
        self.context.traffic.acknowledged(self.lease.shard, nbytes)
