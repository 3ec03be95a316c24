"""A lease of something in a store, a shard or a log: its lock, and until when the holder may trust it.

Both are acquired, trusted, renewed and released by the same rules. Trust is counted from before the call that grants
it, a renewal without an answer is repeated soon, and a lock that is not released in time ends with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from remora.metrics import Telemetry
from remora.model.errors import OwnershipLost, ShardGone, StoreDamaged, StoreError, StoreUnavailable
from remora.model.log import LogLock, LogUnknown
from remora.model.shard import LockToken, Shard
from remora.policy.ownership.lease import LeaseTimes, Term
from remora.ports.delivery import Locks

RELEASE_WITHIN_S = 3.0
"""What a process that ends still spends on releasing its locks."""

RELEASED_AT_ONCE = 256
RELEASED_PER_SECOND = 1000.0
"""How many locks are released side by side, and what a store manages at least when there are very many."""


class LeaseUncertain(StoreUnavailable):
    """The lock could not be renewed in time: nothing may be started until it is."""


Token = TypeVar("Token")
Asked = TypeVar("Asked", contravariant=True)
AnyLease = TypeVar("AnyLease", "Lease", "LogLease")


class Renewable(Protocol[Asked]):
    """The locks of a store that `renew_all` extends."""

    async def renew_all(self, locks: Sequence[Asked], lease_s: float, /) -> Sequence[StoreError | None]:
        """Extend locks that are still held; for each, in order, None or its error."""
        ...


class _TokenLease(Generic[Token]):
    """A lock with its current term; its owner extends it, everything else asks it."""

    __slots__ = ("_why", "term", "token")

    def __init__(self, token: Token, term: Term) -> None:
        self.token = token
        self.term = term
        self._why: StoreError | None = None

    def renewed(self, term: Term) -> None:
        """A renewal succeeded and gave this term."""
        self.term, self._why = term, None

    def renewal_failed(self, times: LeaseTimes, why: StoreError, now: float) -> None:
        """A renewal got no answer: try again soon, and trust as long as before."""
        self.term = self.term.retry_renewal(times, now)
        self._why = why


class LogLease(_TokenLease[LogLock]):
    """The lock of a log that a sequencer serves."""

    __slots__ = ()


class Lease(_TokenLease[LockToken]):
    """The lock of an owned shard."""

    __slots__ = ("active",)

    def __init__(self, token: LockToken, term: Term, active: Callable[[], int]) -> None:
        """`active` tells for how many shards of this worker a dispatcher runs, this one included."""
        super().__init__(token, term)
        self.active = active

    @property
    def shard(self) -> Shard:
        """The shard that is owned."""
        return self.token.shard

    def require_trust(self) -> None:
        """Raise LeaseUncertain when another worker may hold the shard by now. Ask right before each step.

        It says why the lock could not be renewed. Where its part of the store is damaged, that is raised instead.
        """
        if self.term.is_trusted(asyncio.get_running_loop().time()):
            return
        if isinstance(self._why, StoreDamaged):
            raise StoreDamaged(str(self._why))
        why = f": {self._why}" if self._why is not None else ""
        raise LeaseUncertain(f"the lock of {self.shard} was not renewed in time{why}")


async def renew_all(
    locks: Renewable[Any], leases: Sequence[AnyLease], times: LeaseTimes, clock: Callable[[], float]
) -> list[tuple[AnyLease, StoreError]]:
    """Renew leases in one call, and return those that were not renewed, each with its reason.

    Trust is counted by `clock`, from before the call. A lease whose lock `is_lost` is left as it is; one without an
    answer is due again soon.
    """
    asked_at = clock()
    answers: Sequence[StoreError | None]
    try:
        answers = await locks.renew_all([each.token for each in leases], times.lease_s)
    except StoreError as exc:
        answers = [exc] * len(leases)
    term, failed = Term.granted(times, asked_at), []
    for lease, answer in zip(leases, answers, strict=True):
        if answer is None:
            lease.renewed(term)
            continue
        if not is_lost(answer):
            lease.renewal_failed(times, answer, clock())
        failed.append((lease, answer))
    return failed


def is_lost(why: StoreError) -> bool:
    """Whether an error says that the lock is not this process's any more."""
    return isinstance(why, OwnershipLost | ShardGone | LogUnknown)


async def release_all(releases: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run releases side by side for a few seconds; a lock that is not released by then ends with its lease."""
    running = [asyncio.ensure_future(each) for each in releases]
    if running:
        await asyncio.wait(running, timeout=RELEASE_WITHIN_S)


class LeaseReleaser:
    """Releases locks of shards, so that another worker need not wait for the lease to end."""

    def __init__(self, locks: Locks, telemetry: Telemetry, timeout_s: float) -> None:
        """`timeout_s` is for one lock; there is more time where very many are released together."""
        self._locks = locks
        self._telemetry = telemetry
        self._timeout_s = timeout_s
        self._gate = asyncio.Semaphore(RELEASED_AT_ONCE)

    async def release(self, lease: Lease, among: int = 1, *, named: bool = True) -> None:
        """Release a lock, one of `among`. It goes on for a few seconds when cancelled; if it fails the lease ends."""
        release = asyncio.ensure_future(self._release(lease, among, named))
        try:
            await asyncio.shield(release)
        except asyncio.CancelledError:
            await asyncio.wait([release], timeout=RELEASE_WITHIN_S)
            raise

    async def _release(self, lease: Lease, among: int, named: bool) -> None:
        try:
            async with asyncio.timeout(self._timeout_s + among / RELEASED_PER_SECOND), self._gate:
                await self._locks.release(lease.token)
        except (StoreError, TimeoutError) as exc:
            self._telemetry.release_failed(lease.shard.queue, str(exc))
        else:
            self._telemetry.released(lease.shard.queue, named=named)
