"""The one state of a shard, a topic and a destination, with its reason, its beginning and the next attempt.

Status, page, `explain`, log and metric show what is computed here and nothing of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from remora.policy.delivery.retry import ShardFailure

NAMED = 10
"""How many topics of a destination are named; all of them are counted."""


class State(StrEnum):
    """What a shard or a topic is doing, the worst first."""

    STOPPED = "stopped"
    QUARANTINED = "quarantined"
    RETRYING = "retrying"
    HELD = "held"
    STARTING = "starting"
    WAITING = "waiting"
    SHAPED = "shaped"
    FINISHING = "finishing"
    DELIVERING = "delivering"
    IDLE = "idle"

    @classmethod
    def named(cls, name: str) -> State:
        """The state of this name; that of a newer release which this one does not know counts as delivering."""
        return cls(name) if name in {each.value for each in cls} else cls.DELIVERING

    @property
    def is_failing(self) -> bool:
        """Whether something keeps entries from being delivered."""
        return self in (State.STOPPED, State.QUARANTINED, State.RETRYING)


_SEVERITY = {state: at for at, state in enumerate(State)}


def state_of_failure(kind: str) -> State:
    """What a shard is whose last attempt failed so."""
    return State.STOPPED if kind in (ShardFailure.CONFIGURATION, ShardFailure.DAMAGED) else State.RETRYING


@dataclass(frozen=True, slots=True)
class Condition:
    """A state, why it is so, and for how long.

    `since_s` is how long ago a failing one failed first, however often it was tried since, and how long ago any other
    state began. `next_attempt_s` is in how many seconds a failing one is tried again; it is None where that is not
    known, and while it `is_trying`.
    """

    state: State
    reason: str = ""
    since_s: float = 0.0
    next_attempt_s: float | None = None
    is_trying: bool = False

    @property
    def text(self) -> str:
        """The state in words."""
        return f"{self.state}, trying now" if self.is_trying else str(self.state)


@dataclass(frozen=True, slots=True)
class FailedSince:
    """The failures of a shard since it last delivered: the kind and the reason of the last, the age of the first."""

    kind: ShardFailure
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a worker knows of a shard that it delivers.

    `step` is what its dispatcher is at, for the reason `why` and since `step_s`. `failing` is None where nothing failed
    since something was delivered. `empty_s` is how long ago the queue was found empty, None while entries wait.
    `shaped` is how long it has waited for credit and for whose; `next_attempt_s` as in a Condition.
    """

    step: State
    why: str = ""
    step_s: float = 0.0
    failing: FailedSince | None = None
    empty_s: float | None = None
    shaped: tuple[float, str] | None = None
    is_full: bool = False
    next_attempt_s: float | None = None


FULL = "as many entries are under way as delivery.max_unacked or destination_max_unacked allow"


def of_shard(facts: Facts) -> Condition:
    """How a shard does.

    One whose attempts fail is stopped or retried also while it is being tried, but not while its topic is held. One
    whose queue is empty is idle.
    """
    if facts.step is State.FINISHING:
        return Condition(State.FINISHING, facts.why, facts.step_s)
    if facts.empty_s is not None and facts.step in (State.DELIVERING, State.IDLE):
        return Condition(State.IDLE, "", facts.empty_s)
    if facts.failing is not None and facts.step not in (State.IDLE, State.HELD):
        return _failing(facts, facts.failing)
    if facts.step is State.DELIVERING and facts.shaped is not None:
        waits_s, whose = facts.shaped
        return Condition(State.SHAPED, whose, waits_s)
    why = FULL if facts.step is State.DELIVERING and facts.is_full else facts.why
    return Condition(facts.step, why, facts.step_s, facts.next_attempt_s)


def _failing(facts: Facts, failing: FailedSince) -> Condition:
    if facts.step is State.QUARANTINED:
        return Condition(State.QUARANTINED, facts.why, failing.since_s)
    state, next_s = state_of_failure(failing.kind), facts.next_attempt_s
    return Condition(state, failing.reason, failing.since_s, next_s, is_trying=next_s is None)


def together(conditions: Iterable[Condition]) -> Condition | None:
    """How some do together: as the worst of them do, and of these as that which has for longest.

    It is being tried while one of these is, and tried again when the first of them is. None where there are none.
    """
    all_of_them = list(conditions)
    if not all_of_them:
        return None
    worst = min(all_of_them, key=lambda each: _SEVERITY[each.state]).state
    same = [each for each in all_of_them if each.state is worst]
    longest = max(same, key=lambda each: each.since_s)
    waits = [each.next_attempt_s for each in same if each.next_attempt_s is not None]
    is_trying = any(each.is_trying for each in same)
    return replace(longest, next_attempt_s=None if is_trying else min(waits, default=None), is_trying=is_trying)


# ------------------------------------------------------------------------------------------------ destinations

_OF_TOPIC = re.compile(r"^(?:dead-letter )?(?:topic|exchange|stream) \S+ at ")


def place_of(endpoint: str) -> str:
    """The hosts of an endpoint, which many topics share; its path is a topic's own."""
    return endpoint.partition("://")[2].split("/")[0] or endpoint


def cause_of(reason: str, place: str) -> str:
    """A reason without the topic and the host that it is about: topics that fail for one cause share it."""
    text = _OF_TOPIC.sub("", reason)
    hosts = "|".join(map(re.escape, (place, *place.split(","))))
    return re.sub(rf"^(?:[a-z+.-]+://)?(?:{hosts}): ", "", text) if place else text


@dataclass(frozen=True, slots=True)
class FailingShard:
    """A shard that fails: its topic, where its entries go, what failed last, and how it does."""

    topic: str
    endpoint: str
    failure: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class Outage:
    """A destination that fails topics for one cause: how it does, which topics, and how many entries wait in them.

    `entries` are those of the topics whose number is known, None where that is none of them.
    """

    place: str
    cause: str
    condition: Condition
    topics: Sequence[str]
    entries: int | None
    is_at_least: bool = False
    """Whether more may wait: in topics whose number is not known."""

    @property
    def named(self) -> str:
        """The first of its topics."""
        more = len(self.topics) - NAMED
        return ", ".join(self.topics[:NAMED]) + (f" and {more} more" if more > 0 else "")


def outages(shards: Iterable[FailingShard], waiting: Mapping[str, int | None]) -> list[Outage]:
    """The failing shards by destination and cause, the most topics first.

    `waiting` has the number of entries that wait in each topic, None where it is not known. A topic that fails has
    entries: 0 was counted before they came, and is not known. One that fails in more than one way counts with each.
    """
    groups: dict[tuple[str, str], list[FailingShard]] = {}
    for each in shards:
        place = place_of(each.endpoint)
        groups.setdefault((place, cause_of(each.failure or each.condition.reason, place)), []).append(each)
    found = []
    for (place, cause), members in groups.items():
        condition = together(each.condition for each in members)
        assert condition is not None
        topics = sorted({each.topic for each in members})
        known = [count for topic in topics if (count := waiting.get(topic))]
        is_part = 0 < len(known) < len(topics)
        found.append(Outage(place, cause, condition, topics, sum(known) if known else None, is_part))
    return sorted(found, key=lambda each: (-len(each.topics), each.place, each.cause))
