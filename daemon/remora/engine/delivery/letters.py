"""Makes dead letters, with everything that is known of an entry at the moment it is given up, and stores them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from remora.codec.sequence import number_of
from remora.engine.delivery.scope import DeliveryScope, WorkerContext
from remora.engine.delivery.shard_state import Redelivery, Unclear
from remora.engine.delivery.triage import Rejected
from remora.engine.lease import Lease
from remora.model.record import Attempt, CorruptLetter, DeadLetter, LastAttempt, Page
from remora.model.shard import LockToken
from remora.model.topic import Topic

AT_ONCE = 64
"""Letters that are stored together, which costs a store little more than one."""


TRIED = ("refused", "expired", "exhausted")
"""The causes of entries that may have been sent; others are known to be unfit before that."""


def letter(
    token: LockToken,
    topic: Topic | None,
    page: Page,
    rejected: Rejected,
    tried: Attempt | None = None,
    last: LastAttempt | None = None,
) -> DeadLetter:
    """The letter of one entry of a listing; `tried` is None for one that never failed, `last` how it failed last."""
    now, raw = time.time(), page.entries[rejected.ordinal]
    if rejected.cause == "refused":
        last = LastAttempt(rejected.reason, now)
    elif rejected.cause not in TRIED:
        last = None
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
        last_failure=last.failure if last else "",
        failed_at=last.at if last else 0.0,
    )


def _sequence(topic: Topic | None, raw: bytes) -> str:
    """`<topic id>:<number>` of an entry; empty where its topic gives none."""
    number = number_of(raw) if topic is not None and topic.is_sequenced else None
    return "" if topic is None or number is None else f"{topic.id}:{number}"


async def without_late(
    scope: DeliveryScope, page: Page, rejected: Sequence[Rejected]
) -> tuple[Sequence[Rejected], list[int]]:
    """Divide entries of a session's page that are about to be given up; see `without_late_all`."""
    return await without_late_all(scope.context, scope.topic, scope.state.redelivery, page, rejected)


async def without_late_all(
    context: WorkerContext, topic: Topic, redelivery: Redelivery, page: Page, rejected: Sequence[Rejected]
) -> tuple[Sequence[Rejected], list[int]]:
    """Divide entries that are about to be given up: those that are, and the ordinals of those that have arrived.

    The endpoint is asked about those whose attempts were not answered, and knows of answers that came too late. What
    may have arrived without anybody's knowledge is given up with a reason that says so. A letter that was begun stays.
    """
    unclear = {
        position: found
        for each in rejected
        if (found := redelivery.unclear.get(position := page.positions[each.ordinal])) is not None
        and position not in redelivery.letters
    }
    if not unclear:
        return rejected, []
    # One question for each: what is known of one does not wait for what another's answer will be.
    asked = [found.ask([position]) for position, found in unclear.items() if found.ask is not None]
    arrived = frozenset[bytes]().union(*await asyncio.gather(*asked))
    late = [each.ordinal for each in rejected if page.positions[each.ordinal] in arrived]
    if late:
        context.telemetry.delivered(topic.label, len(late), 0, (), time.time_ns())  # there is no record of it any more
    left = [each for each in rejected if page.positions[each.ordinal] not in arrived]
    return [_with_fate(each, unclear.get(page.positions[each.ordinal])) for each in left], late


def _with_fate(rejected: Rejected, unclear: Unclear | None) -> Rejected:
    if unclear is None:
        return rejected
    which = "the last attempt" if unclear.is_last else "an earlier attempt"
    return replace(rejected, reason=f"{rejected.reason}; its fate is unknown: {which} was not answered")


async def dead_letter(scope: DeliveryScope, page: Page, rejected: Sequence[Rejected]) -> Sequence[DeadLetter]:
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
    return letter(token, topic, page, rejected, redelivery.attempts.get(position), redelivery.last_failure_of(position))
