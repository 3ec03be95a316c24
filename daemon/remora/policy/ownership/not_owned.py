"""Which queues remora delivers, why a worker does not own a shard, and from when it may try to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remora.model.member import is_workers
from remora.model.shard import LockHolder, Origin
from remora.model.topic import Topic

RELEASED = "released to radosgw until it is claimed"
BROKEN = "its lock was broken, so it is not held here for a while"
FEWER = "left to workers that hold fewer"


@dataclass(frozen=True, slots=True)
class Schemes:
    """URI schemes of endpoints: those that are `built_in`, and those that are taken over `from_radosgw`.

    The second are the operator's choice, because a release that knows more schemes must not take queues that were left
    to radosgw on purpose; None stands for all that are built in. In remora's own topics every built-in scheme works.
    """

    built_in: frozenset[str]
    from_radosgw: frozenset[str] | None = None


def reason_to_leave(topic: Topic | None, schemes: Schemes) -> str | None:
    """Why a queue stays with its gateway; None when it is ours to deliver."""
    if topic is None:
        return "its topic is unknown: no readable metadata, and no entry that names an endpoint"
    if not topic.target.uri:
        return "its topic has no push-endpoint"
    scheme = topic.target.scheme
    if scheme not in schemes.built_in:
        return f"{scheme or 'schemeless'} endpoints stay with radosgw"
    if topic.origin is Origin.RADOSGW and schemes.from_radosgw is not None and scheme not in schemes.from_radosgw:
        return f"{scheme} endpoints stay with radosgw: {scheme} is not among ownership.schemes"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOwned:
    """What all reasons have: a sentence for the status, the time of the next try, and the lock's holder if known.

    Times are seconds of the monotonic clock. `holder` is as it was at `seen_at`.
    """

    reason: str
    until: float = 0.0
    holder: LockHolder | None = None
    seen_at: float = 0.0

    @property
    def lapses_at(self) -> float:
        """When its holder's lease ends, as far as is known; 0 without a holder."""
        return self.seen_at + self.holder.lease_left_s if self.holder else 0.0

    def is_apart(self, now: float) -> bool:
        """Whether it is none of the shards that the workers share: not ours, paused, or held by no worker.

        A shard whose holder is a worker, or has let the lease run out, is shared.
        """
        if self.holder is None:
            return True
        return now < self.lapses_at and not is_workers(self.holder.cookie)

    @property
    def was_damaged(self) -> bool:
        """Whether its part of the store was damaged at the last try."""
        return False

    def held_by(self, holder: LockHolder | None, now: float) -> NotOwned:
        """The same reason, with the holder that was seen now."""
        return replace(self, holder=holder, seen_at=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(NotOwned):
    """Its topic is none that remora delivers. When `settled`, only a change of the catalogue can change that."""

    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(NotOwned):
    """A command left it to radosgw until it is claimed. Its holder is looked up for the status alone."""

    reason: str = RELEASED

    def is_apart(self, now: float) -> bool:
        """Always: no worker takes it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere(NotOwned):
    """Another owner has its lock."""

    reason: str = "held by another owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(NotOwned):
    """Its lock went while it was trusted, so another owner wants the queue: it is left alone, unless it is claimed."""

    reason: str = BROKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Errored(NotOwned):
    """The last try to take or deliver it ended in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged(NotOwned):
    """Its part of the store is damaged."""

    @property
    def was_damaged(self) -> bool:
        """True."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack(NotOwned):
    """This worker released it, to no worker in particular."""

    reason: str = "given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred(NotOwned):
    """It may be free, and another worker comes first until `until`.

    `promised` when it is on its way to one certain worker; else it is left to those that hold fewer shards. `former`
    is the reason before this one.
    """

    promised: bool = False
    former: NotOwned | None = None

    def is_apart(self, now: float) -> bool:
        """Never without a holder: it is one of the shards that the workers share."""
        return self.holder is not None and now < self.lapses_at and not is_workers(self.holder.cookie)

    @property
    def was_damaged(self) -> bool:
        """Whether it was when it was deferred."""
        return self.former is not None and self.former.was_damaged


def transferred(to: str, until: float) -> Deferred:
    """The reason for a shard that this worker has transferred to another one."""
    return Deferred(reason=f"handed to {to}", until=until, promised=True)


def deferred(known: NotOwned | None, until: float, *, promised: bool) -> Deferred:
    """The reason for a shard that another worker may take first; what is known of its holder stays known."""
    if known is None or (isinstance(known, Foreign) and known.settled):
        return Deferred(reason=FEWER, until=until, promised=promised)
    former = known.former if isinstance(known, Deferred) else known
    return Deferred(
        reason=known.reason,
        until=until,
        holder=known.holder,
        seen_at=known.seen_at,
        promised=promised,
        former=former,
    )
