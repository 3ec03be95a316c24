"""What `remora explain` shows of a queue: its figures, its owner, what its worker says, and the advice."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remora.cli.output import size
from remora.cli.rows import Row
from remora.cli.status import some
from remora.model.ledger import Balance, Tally
from remora.model.member import WorkerCookie, is_workers
from remora.model.shard import LockHolder, ShardStats
from remora.model.topic import TopicHold
from remora.model.words import duration, several, when
from remora.policy.admission.holds import hold_text
from remora.policy.ownership.hosts import Names, owner_text
from remora.policy.queues.mends import is_full_by_leak, words
from remora.policy.status.condition import Condition, State, together
from remora.policy.status.explanation import Daemon, LockOwner, QueueFacts, Remedy, advice
from remora.policy.status.next_command import TopicSubject


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A place where an event was found: in a queue behind `ahead` other entries, or, with a cause, as a dead letter."""

    queue: str
    position: str
    key: str
    event_id: str
    event_name: str
    created: float
    ahead: int = 0
    cause: str = ""
    reason: str = ""
    attempts: int = 0
    parked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """What the daemon of this host says: its status, None where it does not answer for the reason `silence`.

    `host` is this host in the cookies of its workers, `names` those of hosts for people.
    """

    host: str
    status: dict[str, Any] | None
    silence: str = ""
    names: Names = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueOrders:
    """What settings and commands say of a queue: why remora does not deliver it, None where it does; whether it is left
    to radosgw; and how its topic is held."""

    foreign: str | None
    is_released: bool = False
    hold: TopicHold | None = None


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with all that is known of it. `shard` is what the daemon's status has of it, None where it has none.

    `last_failure` is that of the queue's attempts, or of its topic's where the worker that holds it knows of none; `of`
    in it says which. It is None where nothing has failed since the daemon's start. `room` is that of the topic's worst
    queue, as the daemon has it.
    """

    row: Row
    stats: ShardStats
    balance: Balance | None
    shard: dict[str, Any] | None
    advice: Remedy
    last_failure: dict[str, Any] | None = None
    room: dict[str, Any] | None = None
    names: Names = field(default_factory=dict)

    @property
    def queue(self) -> str:
        """Its name."""
        return self.stats.shard.queue


def view_queue(
    row: Row,
    stats: ShardStats,
    balance: Balance | None,
    orders: QueueOrders,
    said: DaemonAnswer,
) -> QueueView:
    """Put together what the store and the daemon's status say of a queue."""
    queue, status = stats.shard.queue, said.status
    shard = next((each for each in (status or {}).get("shards", ()) if each["queue"] == queue), None)
    last = _last_failure(row.label, shard, status or {})
    topics = (status or {}).get("topics", ())
    room = next((each.get("room") for each in topics if each["topic"] == row.label), None)
    known = QueueFacts(
        name=queue,
        topic=row.label,
        origin=row.origin,
        waiting=stats.entries,
        reservations=stats.reservations,
        spilled=stats.spilled_entries,
        full=words(stats.room, math.inf) if is_full_by_leak(stats.room) else "",
        subject=subject_of(row),
        foreign=orders.foreign,
        is_released=orders.is_released,
        held=hold_text(orders.hold) if orders.hold else "",
        owner=_owner(stats.holder, said.host, is_here=shard is not None),
        owner_name=owner_text(stats.holder, said.names).removesuffix(" expired"),
        lease_left_s=stats.holder.lease_left_s if stats.holder else 0.0,
        daemon=None if status is None else _daemon(queue, shard, status, last),
    )
    return QueueView(row, stats, balance, shard, advice(known), last, room, said.names)


def _last_failure(topic: str, shard: dict[str, Any] | None, status: dict[str, Any]) -> dict[str, Any] | None:
    if shard and shard.get("last_failure"):
        return {"of": "queue", **shard["last_failure"]}
    last = next((each["last_failure"] for each in status.get("topics", ()) if each["topic"] == topic), None)
    return {"of": "topic", **last} if last else None


def _owner(holder: LockHolder | None, host: str, *, is_here: bool) -> LockOwner:
    if holder is None:
        return LockOwner.NONE
    worker = WorkerCookie.parse(holder.cookie)
    if worker is None:
        if is_workers(holder.cookie):
            return LockOwner.ELSEWHERE
        return LockOwner.COMMAND if holder.cookie.startswith("remora/") else LockOwner.GATEWAY
    if is_here:
        return LockOwner.HERE
    if holder.lease_left_s <= 0:
        return LockOwner.LAPSED
    return LockOwner.SILENT if worker.host == host else LockOwner.ELSEWHERE


def _daemon(queue: str, shard: dict[str, Any] | None, status: dict[str, Any], last: dict[str, Any] | None) -> Daemon:
    left = next((each["reason"] for each in status["left"] if each["queue"] == queue), "")
    if shard is None:
        return Daemon(is_draining=status["draining"], not_held=left)
    return Daemon(
        is_draining=status["draining"],
        condition=condition_of(shard),
        progress_age_s=shard["progress_age_seconds"],
        destination=shard["endpoint"],
        last_failure=last["reason"] if last else "",
    )


def condition_of(shown: dict[str, Any]) -> Condition:
    """How a queue or a topic does, as the daemon says."""
    return Condition(
        State.named(shown["state"]),
        "; ".join(filter(None, [shown["reason"], *shown.get("remarks", ())])),
        shown["since_seconds"],
        shown.get("next_attempt_seconds"),
        shown.get("trying", False),  # a daemon of an earlier release does not say
    )


def subject_of(row: Row) -> TopicSubject:
    """The topic as commands name it."""
    target = row.topic.target if row.topic else None
    return TopicSubject(
        topic=row.label,
        origin=row.origin,
        endpoint=target.redacted if target else "",
        there=target.topic if target else "",
    )


# --------------------------------------------------------------------------------------------------------- text


def queue_lines(view: QueueView) -> list[str]:
    """All of a queue, a line for each thing."""
    stats, shards = view.stats, view.row.shards
    number = f"{shards.index(stats.shard) + 1} of {len(shards)}" if stats.shard in shards else "one"
    holder = stats.holder
    lock = "free" if holder is None else f"{owner_text(holder, view.names)}, {duration(holder.lease_left_s)} left"
    return [
        f"queue {view.queue}, {number} of topic {view.row.label}, made by {view.row.origin}",
        *_advice_lines(view.advice),
        *_state_lines(view),
        f"  lock: {lock}",
        f"  waiting: {_waiting(stats)}",
        *_room_lines([view]),
        *_ledger_lines(view.balance),
    ]


def topic_lines(name: str, views: Sequence[QueueView]) -> list[str]:
    """A topic: its figures, and the queues that say the same in a line each."""
    entries = sum(each.stats.entries for each in views)
    tilde = "" if all(each.stats.entries_exact for each in views) else "~"
    ages = [each.stats.oldest_age_s for each in views if each.stats.oldest_age_s is not None]
    endpoints = sorted(
        {each.row.topic.target.redacted for each in views if each.row.topic and each.row.topic.target.uri}
    )
    counted = f"{several(len(views), 'queue')}, {tilde}{several(entries, 'entry', 'entries')}"
    lines = [
        f"topic {name}: {counted}, oldest {duration(max(ages, default=None))}",
        *_topic_state_lines(views),
        *(f"  endpoint: {each}" for each in endpoints),
        *_room_lines(views),
    ]
    groups: dict[tuple[str, str], list[QueueView]] = {}
    # First come the queues whose entries have waited longest.
    for each in sorted(views, key=lambda view: view.stats.oldest_age_s or 0.0, reverse=True):
        cause, command = each.advice.cause or each.advice.why, each.advice.command
        if len(views) > 1 and command.startswith("remora shard "):  # elsewhere the queue's name is the topic's
            command = command.replace(each.queue, "QUEUE")
        groups.setdefault((cause, command), []).append(each)
    for (_, command), members in groups.items():
        lines.append(f"  {some(each.queue for each in members)}: {members[0].advice.why}")
        if command:
            lines.append(f"    try: {command}")
    return [*lines, *_given_up_lines(name, views)]


def _room_lines(views: Sequence[QueueView]) -> list[str]:
    """How long the topic's worst queue lasts, where that is not long; a leak is said as a queue's advice."""
    room = next((each.room for each in views if each.room), {})
    return [f"  room: {room['advice']}"] if room.get("advice") and not room["leaks"] else []


def _topic_state_lines(views: Sequence[QueueView]) -> list[str]:
    """The state of the topic, as status and page have it, of what this host holds of it."""
    found = together(condition_of(each.shard) for each in views if each.shard)
    if found is None:
        return []
    follows = "" if found.next_attempt_s is None else f", the next attempt {when(found.next_attempt_s)}"
    return [f"  state: {found.text} for {duration(found.since_s)}{follows}"]


def _given_up_lines(name: str, views: Sequence[QueueView]) -> list[str]:
    """What has left the queues of a topic undelivered, where anything has."""
    removed = sum((each.balance.removed for each in views if each.balance), Tally())
    if not removed.dead_lettered + removed.expired:
        return []
    counts = {"dead lettered": removed.dead_lettered, "expired": removed.expired}
    said = ", ".join(f"{what} {count}" for what, count in counts.items() if count)
    return [f"  given up since its ledger began: {said}", f"    try: remora dlq list --topic {shlex.quote(name)}"]


def event_lines(place: EventPlace, views: Sequence[QueueView]) -> list[str]:
    """One place of an event."""
    what = f"{place.event_name} of {place.key}, id {place.event_id}, {duration(time.time() - place.created)} old"
    if place.cause:
        tried = f", after {several(place.attempts, 'attempt')}" if place.attempts else ""
        parked = f"{duration(time.time() - place.parked_at)} ago{tried}"
        return [
            f"  {what}",
            f"    dead letter of queue {place.queue} for {place.cause}, {parked}: {place.reason}",
            f"    try: remora dlq show {place.queue} {place.position}",
        ]
    view = next((each for each in views if each.queue == place.queue), None)
    ahead = several(place.ahead, "other entry", "other entries")
    return [
        f"  {what}",
        f"    waits in queue {place.queue} at {place.position} behind {ahead}",
        *(f"  {line}" for line in ([*_advice_lines(view.advice), *_attempt_lines(view)] if view else ())),
    ]


def _advice_lines(found: Remedy) -> list[str]:
    return [f"  why: {found.why}", *([f"  try: {found.command}"] if found.command else [])]


def _state_lines(view: QueueView) -> list[str]:
    shard = view.shard
    if shard is None:
        return _attempt_lines(view)
    return [
        f"  state: {condition_of(shard).text} for {duration(shard['since_seconds'])}, worker {shard['worker']}",
        *_attempt_lines(view),
        f"  endpoint: {shard['endpoint'] or '-'}, {shard['delivery'] or 'no session yet'}",
    ]


def _attempt_lines(view: QueueView) -> list[str]:
    """How many attempts failed in a row, and how the last failure went, where that is known."""
    shard, last = view.shard or {}, view.last_failure
    said = []
    if shard.get("failures"):
        said.append(f"{shard['failures']} failed in a row")
    if last is not None:
        whose = "the last failure" if last["of"] == "queue" else f"the last failure of topic {view.row.label}"
        reason = "" if last["reason"] == shard.get("reason") else f": {last['reason']}"
        said.append(f"{whose} was {duration(last['age_seconds'])} ago ({last['kind']}){reason}")
    return [f"  attempts: {'; '.join(said)}"] if said else []


def _waiting(stats: ShardStats) -> str:
    tilde = "" if stats.entries_exact else "~"
    reserved = f", {several(stats.reservations, 'open reservation')}" if stats.reservations else ""
    room = f", {size(stats.leaked_bytes)} leaked, room for {size(stats.room.room_bytes)}" if stats.leaked_bytes else ""
    entries = f"{tilde}{several(stats.entries, 'entry', 'entries')}"
    waits = f"{entries}, {size(stats.used_bytes)}, oldest {duration(stats.oldest_age_s)}"
    return waits + reserved + room


def _ledger_lines(balance: Balance | None) -> list[str]:
    if balance is None:
        return []
    removed = ", ".join(f"{str(cause).replace('_', ' ')} {count}" for cause, count in balance.removed.items() if count)
    wrong = f"; UNACCOUNTED {balance.unaccounted}" if balance.unaccounted else ""
    return [
        f"  ledger: committed {balance.committed}, pending {balance.pending}{', ' if removed else ''}{removed}{wrong}"
    ]


# --------------------------------------------------------------------------------------------------------- JSON


def as_json_queue(view: QueueView) -> dict[str, object]:
    """A queue with the names that `remora explain --json` promises."""
    stats, holder, shard = view.stats, view.stats.holder, view.shard or {}
    return {
        "queue": view.queue,
        "topic": view.row.label,
        "origin": str(view.row.origin),
        "why": view.advice.why,
        "command": view.advice.command,
        "state": shard.get("state"),
        "since_seconds": shard.get("since_seconds"),
        "reason": shard.get("reason"),
        "failures": shard.get("failures"),
        "failing_seconds": shard.get("failing_seconds"),
        "last_failure": view.last_failure,
        "next_attempt_seconds": shard.get("next_attempt_seconds"),
        "worker": shard.get("worker"),
        "endpoint": shard.get("endpoint"),
        "delivery": shard.get("delivery"),
        "owner": holder
        and {"entity": holder.entity, "cookie": holder.cookie, "lease_left_seconds": holder.lease_left_s},
        "entries": stats.entries,
        "entries_exact": stats.entries_exact,
        "bytes": stats.used_bytes,
        "reservations": stats.reservations,
        "leaked_bytes": stats.leaked_bytes,
        "room_bytes": stats.room.room_bytes,
        "seconds_until_full": (view.room or {}).get("seconds_until_full"),
        "oldest_age_seconds": stats.oldest_age_s,
        "ledger": view.balance
        and {
            "committed": view.balance.committed,
            "pending": view.balance.pending,
            "unaccounted": view.balance.unaccounted,
            **{str(cause): count for cause, count in view.balance.removed.items()},
        },
    }
