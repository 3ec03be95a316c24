"""The services that all sessions of a worker share."""

from __future__ import annotations

from dataclasses import dataclass, field

from remora.codec.rendering_cached import Renderer
from remora.config.delivery import DeliverySettings
from remora.engine.admission.gate import Gate
from remora.engine.admission.holds import HeldTopics
from remora.engine.catalogue import Catalogue
from remora.engine.quarantines import Quarantines
from remora.engine.traffic import Traffic
from remora.metrics import Telemetry
from remora.policy.idle import Looks
from remora.policy.pace import Pace
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
