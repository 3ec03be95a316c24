"""The finisher: drives committed intents to completion, aborts expired ones, deletes those retained long enough.

Any process may do so at any time, and several at once: each part of an intent is committed by one operation that
demands that the part's mark is absent, and sets it.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from remora.model.errors import ShardGone, StoreError, StoreUnavailable, TopicUnknown
from remora.model.shard import Shard
from remora.storage.rados.intent_log import Intent, IntentLog, IntentPart, IntentState
from remora.storage.rados.own_queues import OwnQueues, PartOutcome, each_of
from remora.storage.rados.refusals import MismatchError
from remora.storage.rados.schedule import Schedule, ScheduleEntry, completion, deletion, expiry

_COMPLETING_S = 60.0
"""An attempt to complete ends well before the marks of an intent are deleted (180 s)."""

_TRIES = 5


class Finisher:
    """Brings intents to their end."""

    def __init__(self, intents: IntentLog, schedule: Schedule, queues: OwnQueues) -> None:
        self._intents = intents
        self._schedule = schedule
        self._queues = queues

    async def complete(self, name: str, intent: Intent) -> None:
        """Commit the parts of a committed intent that are not in their queues yet.

        Raises StoreUnavailable when some cannot be committed now; `recovery.py` tries again. Raises TopicUnknown when
        the topic is gone.
        """
        began, queues = _seconds(), intent.queues()

        async def fill(shard: Shard) -> None:
            for number, part in queues[shard]:
                await self._commit_part(intent, shard, f"{name}.{number}", part, began)

        errors = [outcome for outcome in await each_of(list(queues), fill) if outcome is not None]
        gone = [error for error in errors if isinstance(error, TopicUnknown)]
        if len(errors) > len(gone):
            problem = next(error for error in errors if error not in gone)
            raise StoreUnavailable(f"events of topic {intent.topic} are about to be stored: {problem}") from problem
        # Should this fail, recovery finds the intent committed, and every part of it done.
        end = IntentState.ABORTED if gone else IntentState.COMPLETED
        with contextlib.suppress(StoreError):
            await self._intents.change(name, intent.slim(), IntentState.COMMITTED, end)
        with contextlib.suppress(StoreError):
            await self.retain(name, intent)
        if gone:
            raise gone[0]

    async def abort(self, name: str, intent: Intent) -> None:
        """Abort a prepared intent and give its room back. Raises MismatchError when it is not prepared any more."""
        await self._intents.change(name, intent.slim(), IntentState.PREPARED, IntentState.ABORTED)
        await self.give_back(intent)
        await self.retain(name, intent)

    async def give_back(self, intent: Intent) -> None:
        """End the queues' reservations; one that cannot be ended now expires."""
        await each_of(
            intent.parts, lambda part: self._queues.abort(intent.shard(part), intent.topic_id, part.reservation)
        )

    async def delete(self, entries: Sequence[ScheduleEntry]) -> None:
        """Delete intents that are completed or aborted; first the marks that they left in queues."""
        found = await each_of(entries, self._finished)
        marks: dict[tuple[Shard, str], list[str]] = defaultdict(list)
        for entry, intent in zip(entries, found, strict=True):
            if isinstance(intent, Intent):
                for shard, parts in intent.queues().items():
                    marks[shard, intent.topic_id] += [f"{entry.name}.{number}" for number, _ in parts]
        queues = list(marks)
        answers = await each_of(queues, lambda queue: self._queues.forget(*queue, marks[queue]))
        if any(answers):
            return  # some marks are left, of which intents is not examined: the next look tries all again
        free = [entry for entry, intent in zip(entries, found, strict=True) if not isinstance(intent, StoreError)]
        answers = await each_of(free, lambda entry: self._intents.remove(entry.name))
        if removed := [entry for entry, answer in zip(free, answers, strict=True) if answer is None]:
            await self._schedule.replace(removed, None)

    async def retain(self, name: str, intent: Intent) -> None:
        """Schedule the intent's deletion, and nothing else for it."""
        entries = [completion(name, intent), expiry(name, intent)]
        await self._schedule.replace(entries, deletion(name, intent))

    async def _finished(self, entry: ScheduleEntry) -> Intent | None:
        """The intent, completed first if its last step was lost; None when there is none."""
        known = await self._intents.load(entry.name)
        if known is not None and known.state is IntentState.COMMITTED:
            with contextlib.suppress(TopicUnknown):
                await self.complete(entry.name, known.intent)
        return known.intent if known else None

    async def _commit_part(self, intent: Intent, shard: Shard, name: str, part: IntentPart, began: float) -> None:
        """Commit one part, in a new reservation when its first one has expired.

        `began` is when the intent was seen committed. Long after that another process may have completed it and
        deleted its marks, and a commit would store the part again.
        """
        sizes = [len(payload) for payload in part.payloads]
        for _ in range(_TRIES):
            if await self._is_committed(intent, shard, name, part):
                return
            if _seconds() - began > _COMPLETING_S:
                raise StoreUnavailable(f"committing to {shard} takes too long")
            try:
                reservation = await self._queues.reserve(shard, intent.topic_id, sizes, late=True)
            except (MismatchError, ShardGone) as exc:
                raise StoreUnavailable(f"topic {intent.topic} is being removed") from exc
            part = msgspec.structs.replace(part, reservation=reservation)
        raise StoreUnavailable(f"committing to {shard}: its reservations keep expiring")

    async def _is_committed(self, intent: Intent, shard: Shard, name: str, part: IntentPart) -> bool:
        """Commit one part in its reservation; False when the reservation has expired.

        When another process has committed the part in another reservation, this one is given back.
        """
        try:
            await self._queues.commit_once(shard, intent.topic_id, part.reservation, part.payloads, name)
        except (MismatchError, ShardGone):
            outcome = await self._queues.outcome(shard, intent.topic_id, name)
        else:
            return True
        if outcome is PartOutcome.GONE:
            raise TopicUnknown(f"topic {intent.topic} was removed")
        if outcome is PartOutcome.LEAVING:
            raise StoreUnavailable(f"topic {intent.topic} is being removed")
        if outcome is PartOutcome.DONE:
            await self._queues.abort(shard, intent.topic_id, part.reservation)
        return outcome is PartOutcome.DONE


def _seconds() -> float:
    """A clock that goes on while this host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
