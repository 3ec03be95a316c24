"""Makes dead letters, with everything that is known of an entry at the moment it is given up, and stores them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from remora.codec.sequence import number_of
from remora.engine.delivery.scope import Scope
from remora.engine.delivery.shard_state import Redelivery
from remora.engine.delivery.triage import Rejected
from remora.engine.delivery.worker_context import WorkerContext
from remora.engine.lease import Lease
from remora.model.record import Attempt, CorruptLetter, DeadLetter, Page
from remora.model.shard import LockToken
from remora.model.topic import Topic

AT_ONCE = 64
"""Letters that are stored together, which costs a store little more than one."""


def letter(
    token: LockToken, topic: Topic | None, page: Page, rejected: Rejected, tried: Attempt | None = None
) -> DeadLetter:
    """The letter of one entry of a listing; `tried` is None for one that never failed."""
    now, raw = time.time(), page.entries[rejected.ordinal]
    return DeadLetter(
        queue=token.shard.queue,
        incarnation=token.incarnation,
        position=page.positions[rejected.ordinal].decode(),
        next_position=page.positions[rejected.ordinal + 1].decode(),
        cause=rejected.cause,
        reason=rejected.reason,
        attempts=tried.count if tried else 0,
        first_seen=tried.first_tried if tried else now,
        parked_at=now,
        raw=raw,
        sequence="" if rejected.cause == "corrupt" else _sequence(topic, raw),
    )


def _sequence(topic: Topic | None, raw: bytes) -> str:
    """`<topic id>:<number>` of an entry; empty where its topic gives none."""
    number = number_of(raw) if topic is not None and topic.is_sequenced else None
    return "" if topic is None or number is None else f"{topic.id}:{number}"


async def dead_letter(scope: Scope, page: Page, rejected: Sequence[Rejected]) -> Sequence[DeadLetter]:
    """Store the letters of entries of a session's page; see `dead_letter_all`. Raises StoreError."""
    return await dead_letter_all(scope.context, scope.lease, scope.topic, scope.state.redelivery, page, rejected)


async def dead_letter_all(
    context: WorkerContext,
    lease: Lease,
    topic: Topic | None,
    redelivery: Redelivery,
    page: Page,
    rejected: Sequence[Rejected],
) -> Sequence[DeadLetter]:
    """Store the letters of entries durably, in order, save those that are stored already; answers all of them.

    `topic` is None where nothing tells it. Only then may the entries leave their queue. Raises StoreError.
    """
    in_order = sorted(rejected, key=attrgetter("ordinal"))
    letters = [_letter_of(lease.token, topic, redelivery, page, each) for each in in_order]
    label = "" if topic is None else topic.label
    new = [each for each in letters if not redelivery.is_stored(each)]
    for i in range(0, len(new), AT_ONCE):
        some = new[i : i + AT_ONCE]
        lease.require_trust()
        redelivery.begin_storing(some)
        await context.store.letters.store(lease.token, *some)
        redelivery.stored(some)
        for each in some:
            context.telemetry.dead_lettered(label, each.queue, each.position, each.cause, each.reason)
    return letters


def _letter_of(
    token: LockToken, topic: Topic | None, redelivery: Redelivery, page: Page, rejected: Rejected
) -> DeadLetter:
    """The letter of an entry as it was first made, else a new one; also where the first one is corrupt by now."""
    position = page.positions[rejected.ordinal]
    known = redelivery.letters.get(position)
    if known is not None and not isinstance(known, CorruptLetter):
        return replace(known, raw=page.entries[rejected.ordinal])
    return letter(token, topic, page, rejected, redelivery.attempts.get(position))
