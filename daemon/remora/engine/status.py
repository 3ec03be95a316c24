"""How a shard is doing, as status and metrics show it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remora.metrics.figures import LastFailure
from remora.policy.retry import Failure


class State(StrEnum):
    """What a shard is doing, in status and metrics."""

    STARTING = "starting"
    DELIVERING = "delivering"
    RETRYING = "retrying"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"
    SHAPED = "shaped"
    FINISHING = "finishing"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard as `status` shows it. `since_s` is how long it has been in this state.

    `delivery` is the mode that its topic is delivered in, empty before its first session. `failures` are those since
    something was last delivered, the first of which was `failing_s` seconds ago, and `failure` is the kind of the last
    of them; `is_open` whether a way to the endpoint
    is open now. `last_failure` stays when deliveries succeed again. `next_attempt_s` is in how many seconds a pause
    after a failure ends by itself; it is None where none is waited for, as while an attempt is under way.
    """

    queue: str
    topic: str
    endpoint: str
    delivery: str
    state: State
    reason: str
    since_s: float
    failures: int
    in_flight_bytes: int
    has_work: bool
    progress_age_s: float
    remarks: tuple[str, ...]
    failure: Failure | None = None
    is_open: bool = False
    last_failure: LastFailure | None = None
    failing_s: float | None = None
    next_attempt_s: float | None = None
