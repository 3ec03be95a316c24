"""What becomes of each entry of a listing: packed, dead-lettered, or skipped because it was done before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from remora.codec.event_entry import attributes
from remora.codec.rendering_cached import Renderer
from remora.codec.sequence import sequence_prefix
from remora.codec.speedups import extent
from remora.engine.delivery.shard_state import Redelivery
from remora.model.errors import CodecError
from remora.model.record import Page, Record
from remora.model.topic import Source, Target, Topic
from remora.policy.delivery.lifetime import LifetimeLimits
from remora.ports.endpoint import Batch, ExactRoute, Route


@dataclass(frozen=True, slots=True)
class Rejected:
    """An entry that cannot or must not be sent; `cause` and `reason` as in a DeadLetter."""

    ordinal: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class Triaged:
    """A listing, divided."""

    records: Sequence[Record] = ()
    rejected: list[Rejected] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


def triage(
    page: Page,
    topic: Topic,
    limits: LifetimeLimits,
    redelivery: Redelivery,
    renderer: Renderer,
) -> Triaged:
    """Divide a page. `redelivery` is empty unless something failed before.

    An entry that has a letter stays rejected for that letter's cause, whatever its limits are by now.
    """
    done, attempts, letters = redelivery.done, redelivery.attempts, redelivery.letters
    sequence = sequence_prefix(topic.id) if topic.is_sequenced else b""
    records, refused = renderer.render(page, topic.opaque_data, sequence)
    rejected = [Rejected(i, "undecodable", str(exc)) for i, exc in refused.items()]
    if page.corrupt:
        records, rejected = _without_corrupt(page, records, rejected)
    positions, expired_before = page.positions, limits.expires_before_ns(time.time_ns())
    has_expired = expired_before and records and extent(records).oldest_ns < expired_before
    if not (done or attempts or letters or has_expired):  # nearly always so
        return Triaged(records, rejected)

    known = [(i, letters[p]) for i, p in enumerate(positions[:-1]) if p in letters and p not in done]
    rejected = [each for each in rejected if (p := positions[each.ordinal]) not in done and p not in letters]
    rejected += [Rejected(i, letter.cause, letter.reason) for i, letter in known]
    left: list[Record] = []
    for record in records:
        position = record.position
        if position in done or position in letters:
            continue
        if record.created_ns < expired_before:
            reason = f"older than its time_to_live of {limits.time_to_live_s:g} s"
            rejected.append(Rejected(record.ordinal, "expired", reason))
        elif position in attempts and limits.is_exhausted(attempts[position].count):
            reason = f"not delivered by {limits.max_retries} retries"
            rejected.append(Rejected(record.ordinal, "exhausted", reason))
        else:
            left.append(record)
    rejected.sort(key=attrgetter("ordinal"))
    return Triaged(left, rejected, [i for i, position in enumerate(positions[:-1]) if position in done])


def _without_corrupt(
    page: Page, records: Sequence[Record], rejected: Sequence[Rejected]
) -> tuple[Sequence[Record], list[Rejected]]:
    """Rejects corrupt entries even if they still decode."""
    corrupt = [Rejected(i, "corrupt", why) for i, why in page.corrupt.items()]
    others = [each for each in rejected if each.ordinal not in page.corrupt]
    sound = [record for record in records if record.ordinal not in page.corrupt]
    return sound, sorted(corrupt + others, key=attrgetter("ordinal"))


def own_part(page: Page, topic: Topic) -> Page:
    """The front part of a page that goes to this topic's target; nearly always the page itself."""
    return page if topic.source is Source.METADATA else same_target(page, topic.target)


def same_target(page: Page, target: Target) -> Page:
    """The front part of a listing whose entries name this target themselves.

    Only asked where topic metadata is unreadable, since then each entry goes where its own copy of the
    attributes says. Undecodable and corrupt entries belong to whatever is around them.
    """
    for i, raw in enumerate(page.entries):
        if i in page.corrupt:
            continue
        try:
            own = attributes(raw).target
        except CodecError:
            continue
        if own != target:
            return page.front(i)
    return page


async def pack_surely(
    route: Route | ExactRoute, records: Sequence[Record]
) -> tuple[list[Batch], list[tuple[Record, str]]]:
    """As `pack` of the route; what it refuses it refuses by what was looked up after these records were read.

    A limit may have been raised while the route was open, and a refused record is given up for good. Where nothing is
    refused, which is nearly always, nothing is looked up. Raises EndpointError.
    """
    batches, refused = route.pack(records) if records else ([], [])
    if refused:
        await route.look_again()
        batches, refused = route.pack(records)
    return batches, refused
