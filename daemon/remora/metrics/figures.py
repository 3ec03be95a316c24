"""What is counted of each topic, as the status shows it: the same figures as the metrics', by the same labels."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

import msgspec

from remora.metrics.series import BacklogFigures, Books, RoomLeft
from remora.policy.queues.mends import is_full_by_leak, words
from remora.policy.status.objectives import Objective, parse_objective


class LastFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last attempt that failed, also when others succeeded since; `kind` as in `remora_failures_total`."""

    kind: str
    reason: str
    age_seconds: float


class RoomFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The room of a topic's worst queue; `seconds_until_full` is None where it does not grow.

    `advice` is what a person should know of it, and empty while that is nothing. It `leaks` when it is full by a leak.
    """

    room_bytes: int
    capacity_bytes: int
    leaked_bytes: int
    seconds_until_full: float | None
    advice: str = ""
    leaks: bool = False

    @classmethod
    def of(cls, left: RoomLeft) -> RoomFigures:
        """As the status shows it; JSON has no infinity."""
        seconds = left.seconds_until_full
        return cls(
            room_bytes=left.room_bytes,
            capacity_bytes=left.capacity_bytes,
            leaked_bytes=left.leaked_bytes,
            seconds_until_full=None if math.isinf(seconds) else round(seconds, 1),
            advice=words(left.of_queue, seconds),
            leaks=is_full_by_leak(left.of_queue),
        )

    def __add__(self, other: RoomFigures) -> RoomFigures:
        """The figures of two workers that hold queues of one topic."""
        return RoomFigures.of(self._left() + other._left())

    def _left(self) -> RoomLeft:
        seconds = math.inf if self.seconds_until_full is None else self.seconds_until_full
        return RoomLeft(self.room_bytes, self.capacity_bytes, self.leaked_bytes, seconds)


class SloFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's service level, how many of its events kept it and how many there were since its workers' start, and
    which part of the budget of these is left; below 0 where more were late than may be.
    """

    objective: str
    good: int
    total: int
    budget_left: float

    @classmethod
    def of(cls, objective: Objective, good: int, total: int) -> SloFigures:
        """The figures of so many events."""
        left = round(objective.left(good, total), 6)
        return cls(objective=str(objective), good=good, total=total, budget_left=left)

    def __add__(self, other: SloFigures) -> SloFigures:
        """The figures of two workers that hold queues of one topic."""
        return SloFigures.of(parse_objective(self.objective), self.good + other.good, self.total + other.total)


class TopicFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's figures. Counts begin with the process that counts; a topic's backlog and ledger go with its queues.
    `dead_letters` are those that the store has now.

    `backlog_entries` is None where no backlog was looked at yet, `oldest_age_seconds` where nothing waits or it is not
    known. `ledger` has `committed`, `pending`, `unaccounted` and each cause of a removal, and is None if none was read.
    `spilled_entries` of the backlog stand in runs beside its queues.
    """

    topic: str
    delivered_entries: int = 0
    parked_entries: int = 0
    dead_letters: int = 0
    ingested_events: int = 0
    backlog_entries: int | None = None
    backlog_exact: bool = True
    backlog_bytes: int = 0
    oldest_age_seconds: float | None = None
    ledger: Mapping[str, int] | None = None
    last_failure: LastFailure | None = None
    room: RoomFigures | None = None
    slo: SloFigures | None = None
    spilled_entries: int = 0

    def __add__(self, other: TopicFigures) -> TopicFigures:
        """The figures of two workers that hold queues of one topic."""
        ages = [each for each in (self.oldest_age_seconds, other.oldest_age_seconds) if each is not None]
        waiting = [each for each in (self.backlog_entries, other.backlog_entries) if each is not None]
        failures = [each for each in (self.last_failure, other.last_failure) if each is not None]
        ledgers = [each for each in (self.ledger, other.ledger) if each is not None]
        rooms = [each for each in (self.room, other.room) if each is not None]
        slos = [each for each in (self.slo, other.slo) if each is not None]
        return TopicFigures(
            topic=self.topic,
            delivered_entries=self.delivered_entries + other.delivered_entries,
            parked_entries=self.parked_entries + other.parked_entries,
            dead_letters=max(self.dead_letters, other.dead_letters),  # each that counts has counted all
            ingested_events=self.ingested_events + other.ingested_events,
            backlog_entries=sum(waiting) if waiting else None,
            backlog_exact=self.backlog_exact and other.backlog_exact,
            backlog_bytes=self.backlog_bytes + other.backlog_bytes,
            oldest_age_seconds=max(ages, default=None),
            ledger=_sum(ledgers) if ledgers else None,
            last_failure=min(failures, key=lambda each: each.age_seconds, default=None),
            room=functools.reduce(operator.add, rooms) if rooms else None,
            slo=functools.reduce(operator.add, slos) if slos else None,
            spilled_entries=self.spilled_entries + other.spilled_entries,
        )


class TopicCounts(NamedTuple):
    """What is counted of each topic."""

    delivered: Mapping[str, int]
    parked: Mapping[str, int]
    letters: Mapping[str, int]
    ingested: Mapping[str, int]


def topic_figures(
    counts: TopicCounts,
    backlogs: Mapping[str, BacklogFigures],
    ledgers: Mapping[str, Books],
    failures: Mapping[str, LastFailure],
) -> list[TopicFigures]:
    """A row for each topic that any of these knows, in order."""
    rows = []
    for topic in sorted({*chain(*counts), *backlogs, *ledgers, *failures}):
        backlog, books = backlogs.get(topic), ledgers.get(topic)
        rows.append(
            TopicFigures(
                topic=topic,
                delivered_entries=counts.delivered.get(topic, 0),
                parked_entries=counts.parked.get(topic, 0),
                dead_letters=counts.letters.get(topic, 0),
                ingested_events=counts.ingested.get(topic, 0),
                backlog_entries=backlog.entries if backlog else None,
                backlog_exact=backlog.exact if backlog else True,
                backlog_bytes=backlog.nbytes if backlog else 0,
                oldest_age_seconds=backlog.oldest_age_s if backlog else None,
                ledger=_shown(books) if books else None,
                last_failure=failures.get(topic),
            )
        )
    return rows


def merged_figures(rows: Iterable[TopicFigures]) -> list[TopicFigures]:
    """One row for each topic, of the rows of all workers."""
    found: dict[str, TopicFigures] = {}
    for each in rows:
        found[each.topic] = found[each.topic] + each if each.topic in found else each
    return [found[topic] for topic in sorted(found)]


def _shown(books: Books) -> dict[str, int]:
    removed = {str(cause): count for cause, count in books.removed.items()}
    return {"committed": books.committed, "pending": books.pending, "unaccounted": books.unaccounted, **removed}


def _sum(ledgers: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for ledger in ledgers:
        for name, count in ledger.items():
            total[name] = total.get(name, 0) + count
    return total
