"""What happened in a run, as values: what was sent, what Kafka shows, what the stores say, what was hurt when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from devkit.verdicts.verdict import Copy, Fate, Place


class Kind(Enum):
    """What has to become of an entry."""

    GOOD = "delivered"
    BAD = "dead-lettered: it cannot be decoded, or is too large for its Kafka topic"
    REFUSED = "dead-lettered as refused: its receiver takes it in no attempt"
    EITHER = "delivered or dead-lettered: it is too large for its Kafka topic or its broker at times"


class Sent(NamedTuple):
    """One event that somebody wanted stored. The numbers of a key grow in the order of its commits.

    Events of one `request` are stored together, all or none.
    """

    event_id: str
    key: str
    number: int
    fate: Fate
    request: str
    kind: Kind = Kind.GOOD


class Letter(NamedTuple):
    """One dead letter in the store; `event_id` is what was found in its raw bytes, `number` as in a Copy."""

    event_id: str
    place: Place
    end: Place
    cause: str
    number: str = ""


class Reached(NamedTuple):
    """How far the numbers of a topic have come, as the store says while all queues are empty."""

    topic_id: str
    tail: int
    delivered: int


class Balance(NamedTuple):
    """What the ledger says of one shard, in entries. Those that `expired` have a dead letter, too."""

    shard: str
    unaccounted: int
    pending: int
    delivered: int
    dead_lettered: int
    expired: int = 0


@dataclass(frozen=True)
class Topic:
    """One topic; its history is judged by itself. Where `lives_end` its entries have been given up after a time, or
    after some attempts: then any entry may be a dead letter. `reached` is there where it numbers its events."""

    name: str
    is_exact: bool
    shards: int
    sent: Sequence[Sent] = ()
    seen: Sequence[Copy] = ()
    letters: Sequence[Letter] = ()
    balances: Sequence[Balance] = ()
    lives_end: bool = False
    reached: Reached | None = None

    @property
    def view(self) -> Sequence[Copy]:
        """What its consumers are promised something about."""
        return [each for each in self.seen if each.is_committed] if self.is_exact else self.seen


@dataclass(frozen=True)
class Round:
    """One round: from its load's beginning until every queue was empty, on the brokers' clock.

    `doublings` is how often what was in flight in a shard may have been sent once more because of its faults.
    """

    name: str
    began: float
    ended: float
    doublings: int


@dataclass(frozen=True)
class History:
    """Everything that a verdict rests on.

    `in_flight_bytes` is how much of one shard may be under way at a time. `thaws` has for each owner that was frozen
    for longer than its lease how often it tried to send or to remove after it was continued.
    """

    topics: Sequence[Topic]
    rounds: Sequence[Round] = ()
    in_flight_bytes: int = 0
    thaws: Sequence[int] = field(default=())
