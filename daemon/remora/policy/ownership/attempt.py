"""What is done about one shard that a plan names, once its turn has come: the plan may be some seconds old by then."""

from __future__ import annotations

from enum import Enum

from remora.model.member import CLAIM_COOKIE, WORKER_COOKIE
from remora.model.shard import LockHolder, Shard
from remora.policy.ownership.not_owned import Broken, Deferred, Foreign, NotOwned, Released, deferred
from remora.policy.ownership.owners import avoids
from remora.policy.ownership.view import View

GRACE_S = 1.0
"""How long a free shard is left to a worker that has less than its share; then the first worker to come takes it."""


AVOIDED_S = 5.0
"""How long it is left to workers that its destination does not fail."""


class Step(Enum):
    """The first step with a shard."""

    SKIP = "skip"
    LOOK_FOR_HOLDER = "look for its holder"
    LOOK_FOR_CLAIM = "look for a claim"
    ACQUIRE = "acquire"


def step(view: View, shard: Shard) -> Step:
    """The first step with a shard of the plan."""
    if shard in view.released:
        return Step.LOOK_FOR_HOLDER
    known = view.observed.get(shard)
    if known is None or known.until <= view.now or isinstance(known, Released):
        return Step.ACQUIRE
    if isinstance(known, Deferred) and (shard in view.members.expects or (not known.promised and view.has_room)):
        return Step.ACQUIRE
    return Step.LOOK_FOR_CLAIM if isinstance(known, Broken) else Step.SKIP


def postponed(view: View, shard: Shard, asking: int) -> NotOwned | None:
    """Why a shard that may be free is not acquired now, though others are; None when it is.

    `asking` is for how many further shards this worker asks at the moment: it takes no more than its share, and none
    that is on its way to another worker, until it has left them time.
    """
    if shard in view.members.expects:
        return None
    known = view.observed.get(shard)
    has_waited = isinstance(known, Deferred) and known.until <= view.now
    is_promised = view.members.is_promised(shard, view.now)
    is_avoided = avoids(view, shard)
    if not is_promised and (has_waited or (not is_avoided and view.members.has_room(len(view.owned), asking))):
        return None
    if isinstance(known, Deferred) and not has_waited:
        return known
    known = None if isinstance(known, Released) else known
    wait_s = AVOIDED_S if is_avoided else GRACE_S
    return deferred(known, view.now + wait_s, promised=is_promised or is_avoided)


def may_evict(holder: LockHolder, *, from_radosgw: bool) -> bool:
    """Whether a lock may be broken: a claim's, and a gateway's where the settings say so. Never another worker's."""
    if holder.cookie.startswith(CLAIM_COOKIE):
        return True
    return from_radosgw and not holder.cookie.startswith(WORKER_COOKIE)


def ran_out(known: NotOwned | None, now: float, interval_s: float) -> bool:
    """Whether the lock of a shard that is free now was let run out, rather than released or broken."""
    if known is None or known.holder is None or isinstance(known, Released):
        return False
    return known.holder.lease_left_s <= now - known.seen_at + interval_s


def wants(view: View, shard: Shard) -> bool:
    """Whether this worker would take a shard that is offered to it."""
    known = view.observed.get(shard)
    if avoids(view, shard):
        return False
    if known is None:
        return shard in view.shards
    if isinstance(known, Deferred):
        return True
    is_out = isinstance(known, Released) or (isinstance(known, Foreign) and known.settled)
    return not is_out and known.until <= view.now
