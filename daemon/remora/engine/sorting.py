"""What becomes of each entry of a listing: sent, parked, or skipped because it was done before."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from remora.codec.event_entry import attributes
from remora.codec.render import Renderer
from remora.model.errors import CodecError
from remora.model.record import Attempt, Listing, Record
from remora.model.topic import Target, Topic
from remora.policy.lifetime import Limits


@dataclass(frozen=True, slots=True)
class Condemned:
    """An entry that cannot or must not be sent; `cause` and `reason` as in a DeadLetter."""

    ordinal: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sorted:
    """A listing, divided."""

    records: list[Record] = field(default_factory=list)
    condemned: list[Condemned] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


def sort_entries(
    listing: Listing,
    topic: Topic,
    limits: Limits,
    done: Collection[bytes],
    attempts: Mapping[bytes, Attempt],
    renderer: Renderer,
) -> Sorted:
    """Divide a listing. `done` and `attempts` are by position, and empty unless something failed before."""
    result = Sorted()
    render, opaque, positions = renderer.render, topic.opaque_data, listing.positions
    expired_before = limits.expires_before_ns(time.time_ns())
    for i, raw in enumerate(listing.entries):
        position = positions[i]
        if done and position in done:
            result.skipped.append(i)
            continue
        try:
            key, body, event_id, created_ns = render(raw, opaque)
        except CodecError as exc:
            result.condemned.append(Condemned(i, "undecodable", str(exc)))
            continue
        if created_ns < expired_before:
            reason = f"older than its time_to_live of {limits.time_to_live_s:g} s"
            result.condemned.append(Condemned(i, "expired", reason))
        elif position in attempts and limits.is_exhausted(attempts[position].count):
            reason = f"not delivered by {limits.max_retries} retries"
            result.condemned.append(Condemned(i, "exhausted", reason))
        else:
            result.records.append(Record(key, body, event_id, created_ns, position, positions[i + 1], i))
    return result


def same_target(listing: Listing, target: Target) -> Listing:
    """The front part of a listing whose entries name this target themselves.

    Only asked where topic metadata is unreadable, since then each entry goes where its own copy of the
    attributes says. Undecodable entries belong to whatever is around them.
    """
    for i, raw in enumerate(listing.entries):
        try:
            own = attributes(raw).target
        except CodecError:
            continue
        if own != target:
            return Listing(listing.positions[: i + 1], listing.entries[:i], truncated=True)
    return listing
