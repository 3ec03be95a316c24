"""How a shard is doing, as status and metrics show it."""

from __future__ import annotations

from dataclasses import dataclass

from remora.metrics.figures import LastFailure
from remora.policy.delivery.retry import ShardFailure
from remora.policy.status.condition import State


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard as `status` shows it. `state`, `reason`, `since_s`, `next_attempt_s` and `is_trying` are its condition's.

    `delivery` is the mode that its topic is delivered in, empty before its first session. `failures` are those since
    something was last delivered, the first of which was `failing_s` seconds ago, and `failure` is the kind of the last
    of them; `is_open` whether a way to the endpoint is open now. `last_failure` stays when deliveries succeed again.
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
    failure: ShardFailure | None = None
    is_open: bool = False
    last_failure: LastFailure | None = None
    failing_s: float | None = None
    next_attempt_s: float | None = None
    is_trying: bool = False
