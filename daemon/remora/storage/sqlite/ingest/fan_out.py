"""Storing events in several topics, all copies or none.

A topic lies whole in one file. Where all topics of a request lie in one, and it need not be recognised, it is one
transaction. Else room is reserved in each other file, so that none can refuse later; the home file decides; the others
take their parts; then comes the answer. What was decided and not finished, `finisher.py` finishes.

The home of a request with a key is the file that the key names, since by the time that it is repeated its events may
match other notifications: only then does the repeat find what was decided. Without a key it is the file of the first
topic.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from remora.codec.trace_context import context_of
from remora.model.errors import StoreError, StoreUnavailable, TopicMoved
from remora.model.fan_out import FannedOut, TopicCopies, TopicRooms
from remora.model.ingest import IdempotencyKey, ReservedRoom
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.ports.stages import NO_METER, StageMeter
from remora.ports.tracing import NO_TRACER, Tracer
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.ingest import decisions
from remora.storage.sqlite.ingest.decisions import Decision, FilePart, Take
from remora.storage.sqlite.ingest.group_commit import NOTHING, GroupCommit, Wants
from remora.storage.sqlite.ingest.one_topic import Load, ReserveRoom, SqliteIngest, append, check_open, loaded, sums
from remora.storage.sqlite.tables.clock import now_ns
from remora.storage.sqlite.tables.write_batch import QueueUpdate, TopicRow, WriteBatch

ByFile = dict[int, list[TopicCopies]]
"""Copies by the number of their topic's file, those of a file in the order of their topics' names."""


class FanOut(SqliteIngest):
    """Ingest, and events for several topics at once; see `ports.FanningOut`."""

    def __init__(self, files: Files, tracer: Tracer = NO_TRACER, meter: StageMeter = NO_METER) -> None:
        super().__init__(files, tracer, meter)
        self._unsynced = GroupCommit(durable=False)

    def fan_out_soon(
        self, copies: Sequence[TopicCopies], answer: FannedOut, done: Callable[[FannedOut | Exception], None]
    ) -> bool:
        """Store copies that lie in one file, without a coroutine for each request."""
        found = self._by_file(copies)
        if len(found) != 1:
            return False
        ((number, of_file),) = found.items()
        self._commits.submit_soon(self._files.numbered(number), _Direct(of_file, answer), _wants(of_file), done)
        return True

    async def fan_out(
        self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None = None
    ) -> FannedOut:
        """Store the copies; returns when all are durable."""
        found = self._by_file(copies)
        if not found and once is None:
            return answer
        home = self._home(once) if once else next(iter(found))
        direct = found.pop(home, [])
        if not found and once is None:
            return await self._commits.submit(self._files.numbered(home), _Direct(direct, answer), _wants(direct))
        request = secrets.token_hex(16)
        await self._reserve_all(request, {number: [rooms_of(each) for each in made] for number, made in found.items()})
        parts = [decisions.part_of(number, of_file) for number, of_file in found.items()]
        until_ns = now_ns() + decisions.MAY_BE_TAKEN_NS
        deciding = _Decide(request, direct, answer, once, decisions.packed(parts))
        try:
            before = await self._commits.submit(self._files.numbered(home), deciding, _wants(direct))
        except StoreUnavailable:
            raise  # whether it is decided is unknown; if it is not, the room expires
        except (StoreError, ValueError):
            await self._release_all(request, _topics(found))
            raise
        if before is not None:
            await self._release_all(request, _topics(found))
            await self._finish(home, before)
            return before.answer
        await self._finish(home, Decision(request, answer, parts, until_ns))
        return answer

    async def fanned_out(self, once: IdempotencyKey) -> FannedOut | None:
        """The answer that a request with this key had before, when every file has its part of it."""
        home = self._home(once)
        found = await self._files.numbered(home).read(lambda connection: decisions.recalled(connection, once))
        if found is None:
            return None
        await self._finish(home, found)
        return found.answer

    async def _finish(self, home: int, decision: Decision) -> None:
        """Complete it for who has sent the request: whatever keeps a file from its part is StoreUnavailable.

        The request is decided, and who took it for refused would send it anew.
        """
        for part, failure in await self.complete(home, decision):
            if isinstance(failure, StoreError):
                topics = ", ".join(each.name for each in part.topics)
                raise StoreUnavailable(
                    f"the request is decided: what is for {topics} is stored as soon as that can be: {failure}"
                ) from failure
            raise failure

    async def complete(
        self, home: int, decision: Decision, but: Collection[int] = ()
    ) -> list[tuple[FilePart, BaseException]]:
        """Have every file take its part, but those that are passed over; those that did not, and why. Where all did
        the decision is closed."""
        parts = [part for part in decision.parts if part.file not in but]
        taking = [asyncio.ensure_future(self._take(home, decision, part)) for part in parts]
        outcomes = await asyncio.gather(*taking, return_exceptions=True)
        failed = [(part, each) for part, each in zip(parts, outcomes, strict=True) if isinstance(each, BaseException)]
        if taking and not failed and len(parts) == len(decision.parts):
            # Nobody waits for the closing: where it fails, whoever finishes the request next does it again.
            home_file, name = self._files.numbered(home), decision.id
            self._unsynced.submit_soon(home_file, lambda batch: decisions.close(batch, name), NOTHING, lambda _: None)
        return failed

    async def _take(self, home: int, decision: Decision, part: FilePart) -> None:
        """Have a file take its part; in the layouts that its topics have by now."""
        if not self._files.has(part.file):
            return None  # its directory was removed with the topics that were in it
        file = self._files.numbered(part.file)
        context = context_of(part.topics[0].events[0][2])
        while True:
            take = Take(decision.id, home, part, decision.until_ns)
            try:
                return await self._commits.submit(file, take, Wants(part.nbytes, part.shards, context))
            except TopicMoved:
                part = await file.read(partial(decisions.placed_now, part=part))

    async def _reserve_all(self, request: str, rooms: Mapping[int, Sequence[TopicRooms]]) -> None:
        """Reserve room in each file, or in none. It is not synced: what a power cut takes was not decided, or its part
        is taken without."""
        asked = [
            self._unsynced.submit(self._files.numbered(number), _ReserveAll(request, of_file))
            for number, of_file in rooms.items()
        ]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        failed = [each for each in outcomes if isinstance(each, BaseException)]
        if failed:
            topics = {number: [each.topic for each in of_file] for number, of_file in rooms.items()}
            await self._release_all(request, topics)
            raise failed[0]

    async def _release_all(self, request: str, found: Mapping[int, Sequence[Topic]]) -> None:
        """Give reserved room back; where that fails it expires."""

        def job(topics: Sequence[Topic]) -> Callable[[sqlite3.Connection], None]:
            return in_batch(lambda batch: decisions.release(batch, request, topics))

        with suppress(StoreError):
            await asyncio.gather(
                *(
                    self._files.numbered(number).write(job(topics), durable=False, upkeep=True)
                    for number, topics in found.items()
                )
            )

    def _by_file(self, copies: Sequence[TopicCopies]) -> ByFile:
        found: ByFile = {}
        for each in sorted(copies, key=lambda each: each.topic.name):
            found.setdefault(self._files.number_of(each.topic.name), []).append(each)
        return found

    def _home(self, once: IdempotencyKey) -> int:
        return self._files.number_in_first(once.key)


def in_batch(request: Callable[[WriteBatch], None]) -> Callable[[sqlite3.Connection], None]:
    """A job that carries one request out."""

    def job(connection: sqlite3.Connection) -> None:
        batch = WriteBatch(connection)
        request(batch)
        batch.flush()

    return job


# ------------------------------------------------------------------------------------------- requests


class _Placed(NamedTuple):
    """Copies for a topic that has room for them."""

    row: TopicRow
    queues: dict[int, QueueUpdate]
    load: Load
    copies: TopicCopies


@dataclass(frozen=True, slots=True)
class _Direct:
    """Stores the copies of a request in one file."""

    copies: Sequence[TopicCopies]
    answer: FannedOut

    def __call__(self, batch: WriteBatch) -> FannedOut:
        _append_all(batch, _with_room(batch, self.copies))
        return self.answer


@dataclass(frozen=True, slots=True)
class _Decide:
    """Stores the copies for the home file and the parts of others, unless the request was decided before: then that."""

    id: str
    copies: Sequence[TopicCopies]
    answer: FannedOut
    once: IdempotencyKey | None
    parts: bytes

    def __call__(self, batch: WriteBatch) -> Decision | None:
        if self.once and (before := decisions.recalled(batch.connection, self.once)):
            return before
        _append_all(batch, _with_room(batch, self.copies))
        decisions.decide(batch, self.id, self.once, self.answer, self.parts)
        return None


@dataclass(frozen=True, slots=True)
class _ReserveAll:
    """Reserves the room of a request in one file: in all its topics, or in none."""

    id: str
    rooms: Sequence[TopicRooms]

    def __call__(self, batch: WriteBatch) -> None:
        found = [(each, sums(each.rooms)) for each in self.rooms]
        for each, needs in found:
            check_open(batch.topic(each.topic), each.topic)
            batch.with_room(each.topic, needs)
        for each, needs in found:
            name = decisions.reservation_of(self.id, each.topic.name)
            ReserveRoom(each.topic, name, needs, msgspec.msgpack.encode(each.rooms), len(each.rooms))(batch)


def rooms_of(copies: TopicCopies) -> TopicRooms:
    """The room that copies take."""
    return TopicRooms(copies.topic, [ReservedRoom(shard, b"", len(payload)) for shard, _, payload in copies.events])


def _topics(found: ByFile) -> Mapping[int, Sequence[Topic]]:
    return {number: [each.topic for each in of_file] for number, of_file in found.items()}


def _with_room(batch: WriteBatch, copies: Sequence[TopicCopies]) -> list[_Placed]:
    """The queues of each topic. Raises before anything is changed where a topic is gone, closed or full."""
    found = []
    for each in copies:
        row = batch.topic(each.topic)
        check_open(row, each.topic)
        load = loaded(each.topic, each.events)
        queues = batch.with_room(each.topic, {number: need for number, (_, need) in load.items()})
        found.append(_Placed(row, queues, load, each))
    return found


def _append_all(batch: WriteBatch, placed: Sequence[_Placed]) -> None:
    for row, queues, load, each in placed:
        append(batch, row, queues, load, each.events)


def _wants(copies: Sequence[TopicCopies]) -> Wants:
    nbytes, arrived = 0, list[Shard]()
    for each in copies:
        nbytes += sum(len(event.payload) for event in each.events)
        arrived += [each.topic.shard(number) for number in {event.shard for event in each.events}]
    return Wants(nbytes, arrived, context_of(copies[0].events[0].payload) if copies else b"")
