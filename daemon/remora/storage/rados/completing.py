"""Carries out what was decided, ends what was given up, and forgets what nobody repeats any more.

Anybody may do this at any time and side by side: each part of a request is committed by one operation that demands
that it has not been, and that says so from then on.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from remora.model.errors import ShardGone, StoreError, StoreUnavailable, TopicUnknown
from remora.model.ingest import RESERVATION_AGE_S
from remora.model.shard import Shard
from remora.storage.rados.own_queues import Outcome, OwnQueues, each_of
from remora.storage.rados.refusals import MismatchError
from remora.storage.rados.requests import Entry, Part, Request, Requests, Stage, State, now_ms

_GRACE_S = 3.0
_REMEMBERED_S = 900.0

# The marks of a request that nobody can repeat have to outlast whoever is carrying it out, and he stops in time.
_MARKED_S, _CARRYING_S = 180.0, 60.0
_TRIES = 5


def open_entry(name: str, request: Request) -> Entry:
    """The agenda's entry of a request that is being carried out."""
    return Entry(Stage.OPEN, request.decided_ms + int(_GRACE_S * 1000), name)


def held_entry(name: str, request: Request) -> Entry:
    """The agenda's entry of a reservation."""
    return Entry(Stage.HELD, request.made_ms + int((RESERVATION_AGE_S + _GRACE_S) * 1000), name)


class Completer:
    """Brings requests to their end."""

    def __init__(self, requests: Requests, queues: OwnQueues) -> None:
        self._requests = requests
        self._queues = queues

    async def carry_out(self, name: str, request: Request) -> None:
        """Commit the parts of a decided request that are not committed yet.

        Raises StoreUnavailable when some cannot be now; somebody will, later. TopicUnknown when the topic is gone.
        """
        begun, queues = _seconds(), request.queues()

        async def fill(shard: Shard) -> None:
            for number, part in queues[shard]:
                await self._carry_out(request, shard, f"{name}.{number}", part, begun)

        errors = [outcome for outcome in await each_of(list(queues), fill) if outcome is not None]
        gone = [error for error in errors if isinstance(error, TopicUnknown)]
        if len(errors) > len(gone):
            problem = next(error for error in errors if error not in gone)
            raise StoreUnavailable(f"events of topic {request.topic} are about to be stored: {problem}") from problem
        # Should this fail, the request is found open later, and every part of it as done.
        with contextlib.suppress(StoreError):
            await self._requests.change(name, request.slim(), State.DECIDED, State.ENDED if gone else State.DONE)
        with contextlib.suppress(StoreError):
            await self.keep(name, request)
        if gone:
            raise gone[0]

    async def end(self, name: str, request: Request) -> None:
        """Give a reservation's room back for good. MismatchError when it is not merely reserved any more."""
        await self._requests.change(name, request.slim(), State.RESERVED, State.ENDED)
        await self.give_back(request)
        await self.keep(name, request)

    async def give_back(self, request: Request) -> None:
        """End the queues' own reservations; those that cannot be ended now expire."""
        await each_of(
            request.parts, lambda part: self._queues.abort(request.shard(part), request.topic_id, part.reservation)
        )

    async def forget(self, entries: Sequence[Entry]) -> None:
        """Remove requests that are done or ended, and before them the marks that they left in queues."""
        found = await each_of(entries, self._finished)
        marks: dict[tuple[Shard, str], list[str]] = defaultdict(list)
        for entry, request in zip(entries, found, strict=True):
            if isinstance(request, Request):
                for shard, parts in request.queues().items():
                    marks[shard, request.topic_id] += [f"{entry.name}.{number}" for number, _ in parts]
        queues = list(marks)
        answers = await each_of(queues, lambda queue: self._queues.forget(*queue, marks[queue]))
        if any(answers):
            return  # which requests have left marks there is not looked into: all are tried again
        free = [entry for entry, request in zip(entries, found, strict=True) if not isinstance(request, StoreError)]
        answers = await each_of(free, lambda entry: self._requests.remove(entry.name))
        if removed := [entry for entry, answer in zip(free, answers, strict=True) if answer is None]:
            await self._requests.move(removed, None)

    async def _finished(self, entry: Entry) -> Request | None:
        """A request that is done or ended; one whose last step got lost is so by now."""
        known = await self._requests.load(entry.name)
        if known is not None and known.state is State.DECIDED:
            with contextlib.suppress(TopicUnknown):
                await self.carry_out(entry.name, known.request)
        return known.request if known else None

    async def _carry_out(self, request: Request, shard: Shard, name: str, part: Part, begun: float) -> None:
        """Commit one part, in a new reservation when the first one has expired.

        `begun` is when the request was seen to be decided. Long after that it may be done and its marks forgotten.
        """
        sizes = [len(payload) for payload in part.payloads]
        for _ in range(_TRIES):
            if await self._is_committed(request, shard, name, part):
                return
            if _seconds() - begun > _CARRYING_S:
                raise StoreUnavailable(f"committing to {shard} takes too long")
            try:
                reservation = await self._queues.reserve(shard, request.topic_id, sizes, late=True)
            except (MismatchError, ShardGone) as exc:
                raise StoreUnavailable(f"topic {request.topic} is being removed") from exc
            part = msgspec.structs.replace(part, reservation=reservation)
        raise StoreUnavailable(f"committing to {shard}: its reservations keep expiring")

    async def _is_committed(self, request: Request, shard: Shard, name: str, part: Part) -> bool:
        """Commit one part in its reservation; False when that has expired.

        When somebody else has committed the part the reservation is given back, should it be another one.
        """
        try:
            await self._queues.commit_once(shard, request.topic_id, part.reservation, part.payloads, name)
        except (MismatchError, ShardGone):
            outcome = await self._queues.outcome(shard, request.topic_id, name)
        else:
            return True
        if outcome is Outcome.GONE:
            raise TopicUnknown(f"topic {request.topic} was removed")
        if outcome is Outcome.LEAVING:
            raise StoreUnavailable(f"topic {request.topic} is being removed")
        if outcome is Outcome.DONE:
            await self._queues.abort(shard, request.topic_id, part.reservation)
        return outcome is Outcome.DONE

    async def keep(self, name: str, request: Request) -> None:
        """Have the agenda show the request as one that is remembered, and as nothing else."""
        kept_s = _REMEMBERED_S if request.repeated else _MARKED_S
        entries = [open_entry(name, request), held_entry(name, request)]
        await self._requests.move(entries, Entry(Stage.KEPT, now_ms() + int(kept_s * 1000), name))


def _seconds() -> float:
    """A clock that goes on while this host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
