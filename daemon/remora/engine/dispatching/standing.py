"""How an owned shard is doing: its state with the reason, and its failures in a row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from remora.engine.dispatching.outlet import Outlet
from remora.engine.dispatching.scope import DispatchScope
from remora.engine.status import ShardStatus
from remora.metrics.figures import LastFailure
from remora.model.errors import EndpointError, RemoraError
from remora.model.record import LastAttempt
from remora.policy.delivery.retry import ShardFailure
from remora.policy.status.condition import Condition, Facts, FailedSince, State, of_shard


@dataclass(frozen=True, slots=True)
class _Failed:
    """A failure, and when it was by the loop's clock."""

    kind: str
    reason: str
    at: float

    def shown(self, now: float) -> LastFailure:
        return LastFailure(kind=self.kind, reason=self.reason, age_seconds=round(now - self.at, 3))


class Standing:
    """See the module."""

    def __init__(self, scope: DispatchScope, outlet: Outlet) -> None:
        self._scope = scope
        self._outlet = outlet
        self._telemetry = scope.context.telemetry
        self._queue = scope.lease.shard.queue
        self._said_of = ""  # the topic that is said to fail; the queue may become another topic's meanwhile
        self._reads, self._progress, self._shaped = scope.state.reads, scope.state.progress, scope.state.shaped
        self._state, self._reason = State.STARTING, ""
        self._since = self._progress.progress_at = asyncio.get_running_loop().time()
        self._failures = 0
        self._failures_before = 0
        self._last_kind: ShardFailure | None = None
        self._failed: _Failed | None = None
        self._fails_since: float | None = None
        self._next_at: float | None = None
        self.last_failure = ""
        """What failed last, until something was delivered since."""
        self.returns = 0
        """How often the destination had come back when this shard failed last."""

    def enter(self, state: State, reason: str) -> None:
        """The shard is in this state now; once it finishes it stays in that one."""
        if self._scope.finishing.is_set():
            state = State.FINISHING
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            self._since = asyncio.get_running_loop().time()

    def failed(self, exc: RemoraError, kind: str) -> None:
        """An attempt failed; `kind` is one that `Telemetry.failed` knows, and a `Failure` where a pause follows."""
        now = asyncio.get_running_loop().time()
        if self._progress.has_acks and kind not in (ShardFailure.STORE, ShardFailure.DAMAGED):
            self._failures = self._failures_before = 0  # what the endpoint takes says nothing of the store
        self._progress.has_acks = False
        if self._fails_since is None:
            self._fails_since = now
        self._failures += 1
        self.last_failure = str(exc)
        self._failed = _Failed(kind, str(exc), now)
        if isinstance(exc, EndpointError):
            self._scope.state.redelivery.last_failure = LastAttempt(str(exc), time.time())
        if isinstance(kind, ShardFailure):
            self._last_kind = kind
        self._reads.pages_delivered = 0
        label = self._outlet.label
        if not isinstance(kind, ShardFailure):
            self._telemetry.failed_in_passing(label, kind, str(exc))
            return
        topic, self._said_of = self._outlet.topic, label
        endpoint = topic.target.redacted if topic is not None and isinstance(exc, EndpointError) else ""
        self._telemetry.failed(label, kind, str(exc), queue=self._queue, endpoint=endpoint)

    def failed_in_a_row(self) -> int:
        """How often in a row this shard failed since anything of it arrived, or more of its destination answered again.

        Also when that was during the attempt that failed just now: right after an outage attempts fail for reasons
        that are gone in a moment.
        """
        destination = self._outlet.destination
        returns = destination.returns if destination else 0
        if returns != self.returns:
            self.returns, self._failures_before = returns, self._failures - 1
        return self._failures - self._failures_before

    def emptied(self) -> None:
        """Nothing waits, so nothing fails any more; whether the destination works again remains to be seen."""
        self.enter(State.IDLE, "")
        self._ended()
        self._telemetry.emptied(self._said_of, self._queue)

    def held(self, why: str) -> None:
        """An operator holds the topic: nothing is tried, so nothing fails; what fails later fails since then."""
        self.enter(State.HELD, why)
        self._ended()
        self._telemetry.left(self._said_of, self._queue)

    def recovered(self) -> None:
        """Something was delivered, or nothing waited for long on an open way."""
        had_failures, self.last_failure = self._failures, ""
        self._scope.state.redelivery.last_failure = None
        self._ended()
        if had_failures:
            self._telemetry.recovered(self._said_of, self._queue)
            if self._outlet.destination is not None:
                self._outlet.destination.recovered()

    def left(self) -> None:
        """Nothing runs for the shard here any more."""
        self._telemetry.left(self._said_of, self._queue)

    def _ended(self) -> None:
        self._failures = self._failures_before = 0
        self._last_kind = self._fails_since = None

    def status(self, *, is_open: bool = False, is_full: bool = False) -> ShardStatus:
        """The shard as `remora status` shows it.

        `is_open` while a session runs, `is_full` where that waits because as many entries are under way as may be.
        """
        now = asyncio.get_running_loop().time()
        outlet, topic = self._outlet, self._outlet.topic
        shown = self._shown(now, is_full=is_full)
        remarks = outlet.remarks
        if shown.state is State.IDLE and self.last_failure:
            remarks = (*remarks, f"nothing waits; the last attempt failed: {self.last_failure}")
        return ShardStatus(
            queue=self._queue,
            topic=topic.label if topic else "",
            endpoint=topic.target.redacted if topic else "",
            delivery=outlet.delivery,
            state=shown.state,
            reason=shown.reason,
            since_s=shown.since_s,
            failures=self._failures,
            in_flight_bytes=self._progress.held_bytes,
            has_work=self._progress.has_work,
            progress_age_s=now - self._progress.progress_at,
            remarks=remarks,
            failure=self._last_kind,
            is_open=is_open,
            last_failure=self._failed.shown(now) if self._failed else None,
            failing_s=None if self._fails_since is None else now - self._fails_since,
            next_attempt_s=shown.next_attempt_s,
            is_trying=shown.is_trying,
        )

    @contextmanager
    def pausing(self, delay_s: float) -> Iterator[None]:
        """The next attempt comes in `delay_s` seconds, or before that when something changes."""
        self._next_at = asyncio.get_running_loop().time() + delay_s
        try:
            yield
        finally:
            self._next_at = None

    def _shown(self, now: float, *, is_full: bool) -> Condition:
        progress, pending, failing = self._progress, self._shaped.pending, None
        if self._fails_since is not None and self._last_kind is not None:
            failing = FailedSince(self._last_kind, self.last_failure, now - self._fails_since)
        is_empty = progress.empty_since is not None and not progress.has_work
        facts = Facts(
            step=self._state,
            why=self._reason,
            step_s=now - self._since,
            failing=failing,
            empty_s=now - progress.empty_since if is_empty and progress.empty_since is not None else None,
            shaped=(now - pending.asked_at, pending.reason) if pending is not None and pending.grant is None else None,
            is_full=is_full,
            next_attempt_s=None if self._next_at is None else max(0.0, self._next_at - now),
        )
        return of_shard(facts)
