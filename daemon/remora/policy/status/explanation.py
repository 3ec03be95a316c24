"""Why a queue is where it is, in one sentence, and the command to type next, for `remora explain`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import StrEnum

from remora.model.shard import Origin
from remora.model.words import duration, several, when
from remora.policy.status.condition import Condition, State
from remora.policy.status.next_command import TopicSubject, next_command

_HEAL = "shard heal"

SLOW_S = 15.0
"""A queue in which entries wait and of which nothing was acknowledged for this long is worth a word."""


class LockOwner(StrEnum):
    """Who holds a queue's lock, as one host sees it. The lease of a lapsed one has run out.

    A worker of this host is `here` where it says how the queue does, and `silent` where it or its daemon says nothing.
    """

    NONE = "none"
    HERE = "here"
    SILENT = "silent"
    ELSEWHERE = "elsewhere"
    GATEWAY = "gateway"
    COMMAND = "command"
    LAPSED = "lapsed"


@dataclass(frozen=True, slots=True)
class Daemon:
    """What the daemon of this host says of a queue: how it does there, or why no worker of it takes the queue.

    `condition` is None where no worker holds it. `destination` is where it is delivered to, and `last_failure` what the
    last attempt failed with.
    """

    is_draining: bool = False
    condition: Condition | None = None
    progress_age_s: float = 0.0
    destination: str = ""
    not_held: str = ""
    last_failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """What is known of a queue from its store and from the daemon of this host; `daemon` is None while it is away.

    `subject` is its topic, as commands name it. `foreign` is why remora does not deliver its topic, None where it does.
    `owner_name` names the lock's holder. `held` says until when an operator holds the topic, and why; `full` says in
    words that it takes no events because of a leak. Each is empty where that is not so. `spilled` of the entries stand
    in runs beside it.
    """

    name: str
    topic: str
    origin: Origin
    waiting: int
    reservations: int = 0
    spilled: int = 0
    full: str = ""
    subject: TopicSubject
    foreign: str | None = None
    is_released: bool = False
    held: str = ""
    owner: LockOwner = LockOwner.NONE
    owner_name: str = ""
    lease_left_s: float = 0.0
    daemon: Daemon | None = field(default_factory=Daemon)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A sentence, and what to type next; `command` is empty where nothing need be done.

    `cause` is the sentence without numbers that differ from queue to queue: those with the same one stand in a line.
    """

    why: str
    command: str = ""
    cause: str = ""


def advice(queue: QueueFacts) -> Remedy:
    """The first of these that holds: it takes no events because of a leak; who should deliver it does not; an
    operator holds its topic; nothing waits; no worker of this host holds it; and what the worker that holds it says.
    """
    for rule in (_full, _of_others, on_hold, _empty, _not_held, _held):
        found = rule(queue)
        if found is not None:
            return found
    raise AssertionError("the last rule answers always")


def _full(queue: QueueFacts) -> Remedy | None:
    if not queue.full:
        return None
    return Remedy(f"{queue.full}; {queue.waiting} wait in it", _command(_HEAL, queue.name), queue.full)


def _of_others(queue: QueueFacts) -> Remedy | None:
    if queue.foreign is not None:
        show = "remora check-config" if "ownership.schemes" in queue.foreign else _command("topic show", queue.topic)
        who = "radosgw delivers it" if queue.origin is Origin.RADOSGW else "nothing delivers it"
        return Remedy(f"{who}: {queue.foreign}", show)
    claim = _command("shard claim", queue.name)
    if queue.is_released:
        return Remedy("it is released to radosgw until it is claimed", claim)
    if queue.owner is LockOwner.GATEWAY:
        left = f"the lock of {queue.owner_name} ends in {duration(queue.lease_left_s)} unless it is renewed"
        return Remedy(f"a radosgw delivers it: {left}", claim, f"radosgw: {queue.owner_name}")
    return None


def on_hold(queue: QueueFacts) -> Remedy | None:
    """What a hold of its topic says; None where there is none."""
    if not queue.held:
        return None
    return Remedy(f"its topic is {queue.held}", _resume(queue), f"held: {queue.held}")


def _resume(queue: QueueFacts) -> str:
    return _command("topic resume", queue.topic)


def _empty(queue: QueueFacts) -> Remedy | None:
    if queue.waiting:
        return None
    if queue.reservations:
        reserved = several(queue.reservations, "reservation")
        return Remedy(f"no entry waits; of {reserved} no commit has come (yet)")
    return Remedy("no entry waits")


def _not_held(queue: QueueFacts) -> Remedy | None:
    match queue.owner:
        case LockOwner.HERE:
            return None
        case LockOwner.SILENT if queue.daemon is None:
            why, command = "a worker of this host holds it, and its daemon does not answer", "systemctl status remora"
        case LockOwner.SILENT:
            why, command = f"a worker of this host holds it and does not answer: {queue.owner_name}", "remora status"
        case LockOwner.ELSEWHERE if queue.daemon is None:
            why, command = f"worker {queue.owner_name} holds it, and no daemon answers on this host", "remora status"
        case LockOwner.ELSEWHERE:
            why, command = f"a worker of another host holds it: {queue.owner_name}", "remora balance show"
        case LockOwner.COMMAND:
            why, command = f"a command holds it for a moment: {queue.owner_name}", ""
        case _:
            return _free(queue)
    lease = f"; its lock ends in {duration(queue.lease_left_s)} unless it is renewed"
    return Remedy(why + lease, command, why)


def _free(queue: QueueFacts) -> Remedy:
    """Nobody has its lock, or who had it does not renew it."""
    lapsed = f"; the lock of {queue.owner_name} has run out" if queue.owner is LockOwner.LAPSED else ""
    if queue.daemon is None:
        return Remedy(f"no worker holds it, and no daemon answers on this host{lapsed}", "systemctl status remora")
    if queue.daemon.is_draining:
        return Remedy(f"no worker holds it, and this host is drained{lapsed}", "remora drain --undo")
    reason = f": {queue.daemon.not_held}" if queue.daemon.not_held else ""
    return Remedy(f"no worker holds it{reason}{lapsed}", "remora status")


def _held(queue: QueueFacts) -> Remedy | None:
    daemon = queue.daemon or Daemon()
    found = daemon.condition or Condition(State.DELIVERING)
    why = f": {found.reason}" if found.reason else ""
    waits = f"{queue.waiting} {'entry waits' if queue.waiting == 1 else 'entries wait'}"
    waits += f", {queue.spilled} of them spilled" if queue.spilled else ""
    match found.state:
        case State.RETRYING | State.STOPPED:
            spilled = (
                f"; {queue.spilled} {'entry is' if queue.spilled == 1 else 'entries are'} spilled"
                if queue.spilled
                else ""
            )
            return Remedy(
                _failing(found) + why + spilled, next_command(found.reason, queue.subject), f"{found.state}{why}"
            )
        case State.QUARANTINED:
            last = f"; the last attempt failed with: {daemon.last_failure}" if daemon.last_failure else ""
            text = f"its destination is in quarantine and gets a trickle only{why}{last}"
            return Remedy(text, _command("quarantine release", daemon.destination))
        case State.HELD:
            return Remedy(f"its topic is {found.reason}", _resume(queue), found.reason)
        case State.WAITING:
            text = f"it {found.reason}; those may be earlier ones of its keys, since its topic's shards were changed"
            return Remedy(text, "remora status", f"waiting: {found.reason}")
        case State.SHAPED:
            return Remedy(f"it waits for credit to send{why}", "remora shaping show")
        case State.STARTING:
            return Remedy(f"a worker has just taken it{why}")
        case State.FINISHING:
            return Remedy(f"its worker finishes what is in flight and then releases it{why}")
        case State.IDLE:
            return Remedy(f"{waits} since a moment ago, and the worker has yet to see that", cause="idle")
    if daemon.progress_age_s >= SLOW_S:
        text = f"it is being delivered, but nothing was acknowledged for {duration(daemon.progress_age_s)}{why}"
        return Remedy(text, "remora status", f"slow{why}")
    return Remedy(f"it is being delivered; {waits}{why}", cause=f"delivering{why}")


def _failing(found: Condition) -> str:
    """Since when a queue fails, when it is tried next, and whether somebody must act."""
    text = f"{found.state} for {duration(found.since_s)}"
    if found.is_trying:
        text += ", trying now"
    elif found.next_attempt_s is not None:
        at = when(found.next_attempt_s)
        text += f", the next attempt {at}" + (" or sooner" if at != "now" else "")
    return text + ("; an operator must mend the cause" if found.state is State.STOPPED else "")


def _command(command: str, *arguments: str) -> str:
    return f"remora {command} {shlex.join(arguments)}"
