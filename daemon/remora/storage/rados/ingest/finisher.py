"""The finisher: drives committed intents to completion, aborts expired ones, deletes those retained long enough; and
recovery, by which every open store finishes the intents of processes that have stopped, every few seconds.

Any process may do so at any time, and several at once: each part of an intent is committed by one operation that
demands that the part's mark is absent, and sets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeAlias

from remora.bounded import each_of
from remora.model.errors import StoreError, StoreUnavailable, TopicUnknown
from remora.model.ingest import RESERVATION_AGE_S
from remora.model.shard import Shard
from remora.policy.ingest.reservations import Sightings
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.refusals import MismatchError, MissingError
from remora.storage.rados.ingest.intent_log import Intent, IntentLog, IntentPart, IntentState, L, Logged
from remora.storage.rados.ingest.part_commits import CommittedIntent, PartCommits, seconds
from remora.storage.rados.ingest.schedule import DueAction, Schedule, ScheduleEntry, completion, deletion, expiry
from remora.storage.rados.queues.own_queues import OwnQueues
from remora.storage.rados.topics.registry import Registry, as_topic

_Queue: TypeAlias = tuple[Shard, str]
"""A queue, and the id of its topic."""


class _Share(NamedTuple):
    """The parts of a member of a request that one queue gets, each with its number."""

    member: str
    of: CommittedIntent
    parts: Sequence[tuple[str, IntentPart]]


class Finisher(Generic[L]):
    """Brings requests of one kind to their end."""

    def __init__(self, intents: IntentLog[L], schedule: Schedule, queues: OwnQueues, registry: Registry) -> None:
        self._intents = intents
        self._schedule = schedule
        self._queues = queues
        self._registry = registry
        self._parts = PartCommits(intents, queues, registry)

    async def complete(self, name: str, request: L) -> None:
        """Commit the parts of a committed request that are not in their queues yet.

        Raises StoreUnavailable when some cannot be committed now; `Recovery` tries again. Raises TopicUnknown when
        the topic is gone; of several topics the others get their parts, and one that is gone needs none.
        """
        began = seconds()
        shares = [
            _Share(member, CommittedIntent(name, name + member, intent, began), parts)
            for member, intent in request.members
            for parts in intent.queues().values()
        ]

        async def fill(share: _Share) -> bool:
            return any([await self._parts.store(share.of, number, part) for number, part in share.parts])

        outcomes = await each_of(shares, fill, StoreError)
        errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
        gone = [error for error in errors if isinstance(error, TopicUnknown)]
        if len(errors) > len(gone):
            problem = next(error for error in errors if error not in gone)
            what = f"events of topic {', '.join(intent.topic_name for _, intent in request.members)}"
            raise StoreUnavailable(f"{what} are about to be stored: {problem}") from problem
        # Should this fail, recovery finds the request committed, and every part of it done.
        is_void = bool(gone) and not request.OF_SEVERAL_TOPICS
        end = IntentState.ABORTED if is_void else IntentState.COMPLETED
        moved = frozenset(share.member for share, outcome in zip(shares, outcomes, strict=True) if outcome is True)
        with contextlib.suppress(StoreError):
            await self._intents.change(name, request.slim(moved), IntentState.COMMITTED, end)
        with contextlib.suppress(StoreError):
            await self.retain(name, request)
        if is_void:
            raise gone[0]

    async def abort(self, name: str, request: L) -> None:
        """Abort a prepared request and give its room back. Raises MismatchError when it is not prepared any more."""
        await self._intents.change(name, request.slim(), IntentState.PREPARED, IntentState.ABORTED)
        await self.release(request)
        await self.retain(name, request)

    async def release(self, request: Logged) -> None:
        """End the queues' reservations; one that cannot be ended now expires."""
        reserved = [
            (intent.shard(part), intent.topic_id, part.reservation)
            for _, intent in request.members
            for part in intent.parts
        ]
        await each_of(reserved, lambda each: self._queues.abort(*each), StoreError)

    async def delete(self, entries: Sequence[ScheduleEntry]) -> None:
        """Delete intents that are completed or aborted; first the marks that they left in queues.

        One stays while a queue that has marks of it does not answer, or while it cannot be read; a later look tries it
        again.
        """
        found = await each_of(entries, self._marks, StoreError)
        marks: defaultdict[_Queue, list[str]] = defaultdict(list)
        for queue, names in (pair for each in found if not isinstance(each, StoreError) for pair in each.items()):
            marks[queue] += names
        queues = list(marks)
        answers = await each_of(queues, lambda queue: self._queues.forget(*queue, marks[queue]), StoreError)
        left = {queue for queue, answer in zip(queues, answers, strict=True) if answer is not None}
        free = [
            entry
            for entry, each in zip(entries, found, strict=True)
            if not isinstance(each, StoreError) and left.isdisjoint(each)
        ]
        gone = await each_of(free, lambda entry: self._intents.remove(entry.name), StoreError)
        if removed := [entry for entry, answer in zip(free, gone, strict=True) if answer is None]:
            await self._schedule.replace(removed, None)

    async def _marks(self, entry: ScheduleEntry) -> dict[_Queue, list[str]]:
        """The marks that an intent may have left, by the queues; it is completed first if its last step was lost."""
        known = await self._intents.load(entry.name)
        if known is None:
            return {}
        if known.state is IntentState.COMMITTED:
            with contextlib.suppress(TopicUnknown):
                await self.complete(entry.name, known.intent)
        found: defaultdict[_Queue, list[str]] = defaultdict(list)
        for member, intent in known.intent.members:
            for shard, numbers in (await self._marked(intent)).items():
                found[shard, intent.topic_id] += [f"{entry.name}{member}.{number}" for number in numbers]
        return found

    async def _marked(self, intent: Intent) -> dict[Shard, list[str]]:
        """The queues that may have marks of an intent, with the numbers of the parts."""
        marked = {shard: [number for number, _ in parts] for shard, parts in intent.queues().items()}
        if intent.moved and (found := await self._registry.find(intent.topic_name)) is not None:
            numbers = [str(number) for number in range(len(intent.parts))]
            marked |= dict.fromkeys(as_topic(intent.topic_name, found.stored).all_shards(), numbers)
        return marked

    async def retain(self, name: str, request: L) -> None:
        """Schedule the request's deletion, and nothing else for it."""
        entries = [completion(name, request), expiry(name, request)]
        await self._schedule.replace(entries, deletion(name, request))


class RequestLog(NamedTuple, Generic[L]):
    """One kind of requests: where they are kept, when they are looked at, and what brings them to their end."""

    kind: type[L]
    intents: IntentLog[L]
    schedule: Schedule
    finisher: Finisher[L]


def request_log(connection: ClusterConnection, kind: type[L], queues: OwnQueues, registry: Registry) -> RequestLog[L]:
    """The log of a kind of requests."""
    intents, schedule = IntentLog(connection, kind), Schedule(connection, kind)
    return RequestLog(kind, intents, schedule, Finisher(intents, schedule, queues, registry))


_log = logging.getLogger(__name__)

_EVERY_S = 3.0
_AT_ONCE = 256

_GRACE_S = 3.0
"""How long the process that commits an intent is left alone with it."""

_NEVER_CREATED_S = 900.0
"""After this time a missing intent counts as never created: the process that added its entry has stopped."""


class _Due(NamedTuple):
    """An entry, and for how many seconds this process has seen it."""

    entry: ScheduleEntry
    seen_s: float


class Recovery(Generic[L]):
    """Goes through the schedule of one kind of requests. `clock` is monotonic, in seconds."""

    def __init__(self, log: RequestLog[L], clock: Callable[[], float] = time.monotonic) -> None:
        self._intents, self._schedule, self._finisher = log.intents, log.schedule, log.finisher
        self._clock = clock
        self._seen: Sightings[ScheduleEntry] = Sightings()
        self._unreadable: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Look at the schedule every few seconds until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as exc:
                _log.debug("cannot look for unfinished requests: %s", exc)
            await asyncio.sleep(random.uniform(0.5, 1.5) * _EVERY_S)  # noqa: S311 - keeps daemons out of step

    async def look(self) -> None:
        """Finish what is due now, the longest seen first, a bounded number for each action. Then delete, for some
        seconds, what was retained for long enough. Raises StoreError.
        """
        schedule, now = await self._schedule.entries(), self._clock()
        self._seen = self._seen.after_look([*schedule[DueAction.COMPLETE], *schedule[DueAction.ABORT]], now)
        due = [*self._due(DueAction.COMPLETE, _GRACE_S, now), *self._due(DueAction.ABORT, RESERVATION_AGE_S, now)]
        self._report([each.entry for each in due], await each_of(due, self._finish, StoreError))
        page = schedule[DueAction.DELETE]
        while retained := [entry for entry in page if entry.overdue_s >= 0]:
            await self._finisher.delete(retained)
            if self._clock() - now > _EVERY_S:
                return
            page = await self._schedule.retained(retained[-1])

    def _due(self, action: DueAction, age_s: float, now: float) -> list[_Due]:
        """The entries of an action that were first seen this long ago or longer, the longest seen first."""
        found = [entry for entry in self._seen.seen_for(age_s, now) if entry.action is action]
        return [_Due(entry, now - self._seen.first_seen[entry]) for entry in found[:_AT_ONCE]]

    def _report(self, entries: Sequence[ScheduleEntry], outcomes: Sequence[StoreError | None]) -> None:
        """Log the intents that could not be finished: at ERROR, once each, where waiting does not help."""
        unreadable = set()
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                _log.debug("a request is not completed yet: %s", outcome)
            elif outcome is not None:
                unreadable.add(entry.name)
                if entry.name not in self._unreadable:
                    _log.error("events that were sent are not stored: %s", outcome)
        self._unreadable = frozenset(unreadable)

    async def _finish(self, due: _Due) -> None:
        """Finish the intent of an entry, if there is one, and remove the entry."""
        entry, seen_s = due
        known = await self._intents.load(entry.name)
        if known is None:
            if seen_s > _NEVER_CREATED_S:
                await self._schedule.replace([entry], None)
            return
        if known.state is IntentState.PREPARED:
            if entry.action is DueAction.ABORT:
                with contextlib.suppress(MismatchError, MissingError):  # committed in the last moment
                    await self._finisher.abort(entry.name, known.intent)
            elif seen_s > 2 * RESERVATION_AGE_S:  # the commit that added the entry failed
                await self._schedule.replace([entry], None)
            return
        if known.state is IntentState.COMMITTED:
            _log.info("storing the %d events of request %s, left by its process", known.intent.events, entry.name)
            with contextlib.suppress(TopicUnknown):
                await self._finisher.complete(entry.name, known.intent)
        else:
            await self._finisher.retain(entry.name, known.intent)
        await self._schedule.replace([entry], None)
