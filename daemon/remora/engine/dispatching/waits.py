"""What a shard waits for between two sessions: the end of a pause, a change of its topic, its destination, credit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from remora.engine.delivery.head_expiry import FOR_EVER_S, LEAST_S, HeadExpiry
from remora.engine.destination import Destination
from remora.engine.dispatching.outlet import Outlet
from remora.engine.dispatching.scope import DispatchScope
from remora.engine.dispatching.standing import Standing
from remora.engine.lease import LeaseUncertain
from remora.model.errors import (
    EndpointDenied,
    EndpointError,
    EndpointFenced,
    EndpointMisconfigured,
    StoreDamaged,
    StoreError,
)
from remora.policy.admission.limits import ByteLimit
from remora.policy.delivery.retry import Backoff, Pauses, ShardFailure
from remora.policy.ownership.quarantine import COUNTED
from remora.policy.status.condition import State

DAMAGE_RECHECK_S = 30.0
"""How often a queue in a damaged part of the store is looked into: only a repair can help."""


class Waits:
    """See the module. While it waits, what outlives its time at the queue's head is given up, by `head`."""

    def __init__(self, scope: DispatchScope, outlet: Outlet, standing: Standing, head: HeadExpiry) -> None:
        self._scope = scope
        self._context, self._rng = scope.context, scope.rng
        self._redelivery, self._progress, self._shaped = (
            scope.state.redelivery, scope.state.progress, scope.state.shaped,
        )  # fmt: skip
        self._outlet = outlet
        self._standing = standing
        self._head = head

    async def pause_after(self, exc: EndpointError | StoreError) -> None:
        """Wait as the failure demands. A change of the topic's attributes since the attempt began ends it at once;
        that its destination works for another shard ends it soon, where the topic asks for no pause of its own."""
        outlet, kind = self._outlet, _kind(exc)
        self._report(exc, kind)
        asked_s = exc.retry_after_s if isinstance(exc, EndpointError) else None
        settings = self._context.settings
        backoff = Backoff(settings.retry_base_s, settings.retry_cap_s)
        pauses = Pauses(backoff, settings.configuration_recheck_s, DAMAGE_RECHECK_S)
        failures = self._standing.failed_in_a_row()
        pause_s = pauses.pause_s(kind, failures, self._rng.random(), self._outlet.limits.retry_sleep_s)
        delay = max(pause_s, asked_s or 0.0)
        is_stopped = kind in (ShardFailure.CONFIGURATION, ShardFailure.DAMAGED)
        self._standing.enter(State.STOPPED if is_stopped else State.RETRYING, str(exc))
        if outlet.topic is not None:
            self._context.telemetry.retry(outlet.topic.label, delay)
        is_endpoint, self._head.has_looked = isinstance(exc, EndpointError), False
        hears, tried = kind == ShardFailure.TRANSIENT and not asked_s, is_endpoint and not outlet.is_opened
        with self._standing.pausing(delay):
            await self.wait(delay, minds_front=is_endpoint, hears=hears, tried=tried)

    def _report(self, exc: EndpointError | StoreError, kind: ShardFailure) -> None:
        """Tell the quarantines, the metrics and the status what failed."""
        outlet = self._outlet
        if isinstance(exc, EndpointError) and not outlet.is_opened and outlet.topic is not None:
            about = "connect" if exc.kind in COUNTED else exc.kind
            self._context.quarantines.failed(outlet.topic, about, exc.retry_after_s)
        if isinstance(exc, EndpointDenied) and outlet.topic is not None:
            self._context.telemetry.denied(outlet.topic.target.scheme)
        self._standing.failed(exc, kind)

    async def wait(
        self,
        delay: float,
        *,
        minds_front: bool = True,
        hears: bool = False,
        tried: bool = False,
        turn: Callable[[], Coroutine[object, object, object]] | None = None,
    ) -> None:
        """Wait so long, or until a change; look at the queue's head meanwhile, since nothing else reads it.

        `hears` that the destination works for another shard; `tried` to open a way to it in vain; `turn` ends when this
        shard may try a destination that is in quarantine.
        """
        now = asyncio.get_running_loop().time
        until = now() + delay
        while True:
            again_s = await self._look_at_head(tried=tried) if minds_front else FOR_EVER_S
            if again_s is None or self._scope.finishing.is_set() or (minds_front and not self._progress.has_work):
                return
            tried, left_s = False, until - now()
            changes: list[Coroutine[object, object, object]] = [self._outlet.changed()]
            if turn is not None:
                changes.append(turn())
            destination = self._outlet.destination
            if hears and destination and not self._outlet.limits.retry_sleep_s:
                changes += [destination.recovery(self._rng.random()), self._back(destination)]
            if await self._scope.first_of(max(0.0, min(left_s, again_s)), *changes) or left_s <= again_s:
                return

    async def wait_for_credit(self) -> None:
        """Wait in the place of a session, which the next one takes over; what expires meanwhile is given up."""
        pending = self._shaped.pending
        if pending is None:
            return
        while pending.grant is None:
            again_s = await self._look_at_head(tried=False)
            if again_s is None or self._scope.finishing.is_set() or not self._progress.has_work:
                break
            if await self._scope.first_of(again_s, self._outlet.changed(), pending.wait()) and pending.grant is None:
                break
        else:
            self._progress.progress_at = asyncio.get_running_loop().time()
            return
        self._shaped.cancel()

    async def _back(self, destination: Destination) -> None:
        """Wait until more of the destination answers than when this shard failed."""
        topic = self._outlet.topic
        assert topic is not None
        endpoint, target = self._outlet.endpoint_of(topic), topic.target
        await destination.back(lambda: endpoint.up(target), self._standing.returns, self._rng.random())

    async def _look_at_head(self, *, tried: bool) -> float | None:
        """Give up what outlived its time or its attempts; answers when to look again, None for at another target.

        Skips shards with an in-doubt transaction, and topics whose dead-letter route is open: sessions handle those.
        The lock's keeper and the next session meet failures of the store too.
        """
        outlet = self._outlet
        if outlet.topic is None or outlet.destination is None:
            return FOR_EVER_S
        room = ByteLimit(self._context.settings.shard_bytes, within=outlet.destination.room)
        try:
            again_s: float | None = FOR_EVER_S
            publishes = outlet.endpoint_of(outlet.topic).publishes_letters(outlet.topic.target)
            if not ((outlet.is_opened and publishes) or (outlet.is_exact and self._redelivery.in_doubt)):
                again_s = await self._head.look(outlet.topic, room, tried=tried, publishes=publishes)
            await self._head.note(outlet.limits)
        except LeaseUncertain:
            return LEAST_S
        except StoreError as exc:
            self._context.telemetry.failed_in_passing(outlet.label, "store", str(exc))
            return LEAST_S
        return again_s


def _kind(exc: EndpointError | StoreError) -> ShardFailure:
    match exc:
        case EndpointMisconfigured():
            return ShardFailure.CONFIGURATION
        case StoreDamaged():
            return ShardFailure.DAMAGED
        case StoreError():
            return ShardFailure.STORE
        case EndpointFenced():
            return ShardFailure.FENCED
        case _:
            return ShardFailure.TRANSIENT
