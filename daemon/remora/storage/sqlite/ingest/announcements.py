"""The two phases of events for several topics: room in each that they may go to, and then those copies that do.

The room in a topic is a reservation of the topic's file. The announcement lies in the file that the reservation's id
names, which also decides: a commit is a request of `fan_out.py` whose key is the reservation, so that it is atomic,
finished and repeated as any other. Room that a process leaves behind expires as that of every reservation.
"""

from __future__ import annotations

import secrets
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from remora.model.errors import OnceConflict, ReservationExpired, ReservationUnknown, RowDamaged, StoreError
from remora.model.fan_out import FannedOut, TopicCopies, TopicRooms
from remora.model.ingest import RESERVATION_AGE_S, IdempotencyKey
from remora.model.topic import Topic
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.ingest import decisions
from remora.storage.sqlite.ingest.decisions import Decision, TopicPart
from remora.storage.sqlite.ingest.fan_out import FanOut
from remora.storage.sqlite.ingest.group_commit import Wants
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.soundness import unpacked
from remora.storage.sqlite.tables.write_batch import AGE, WriteBatch

_KEEP = """
INSERT INTO announcements (id, state, topics, announcement, checksum, boot, since_ns)
VALUES (:id, 'open', :topics, :announcement, :checksum, :boot, :now)
"""
_FIND = f"SELECT state, topics, announcement, checksum, {AGE} FROM announcements WHERE id = :id"  # noqa: S608 - a constant
_ABORT = "UPDATE announcements SET state = 'aborted', announcement = x'', checksum = 0 WHERE id = ?"
_DELETE = "DELETE FROM announcements WHERE id = ?"

_decode_topics = msgspec.msgpack.Decoder(list[TopicPart]).decode


@dataclass(frozen=True, slots=True)
class KeptAnnouncement:
    """What is kept of a reservation: the topics that it has room in, and what was announced."""

    topics: Sequence[Topic]
    announcement: bytes


class AnnouncedIngest(FanOut):
    """Ingest, events for several topics, and their two phases; see `ports.Announcing`."""

    async def announce(self, rooms: Sequence[TopicRooms], announcement: bytes) -> str:
        """Reserve room in all topics or in none, and keep the announcement."""
        reservation = f"~{secrets.token_hex(16)}"
        by_file: dict[int, list[TopicRooms]] = {}
        for each in rooms:
            by_file.setdefault(self._files.number_of(each.topic.name), []).append(each)
        await self._reserve_all(reservation, by_file)
        topics = [each.topic for each in rooms]
        try:
            keeping = _Keep(reservation, topics, announcement)
            await self._commits.submit(self._home_of(reservation), keeping, Wants(len(announcement)))
        except BaseException:
            await self._release_all(reservation, self._topics_by_file(topics))
            raise
        return reservation

    async def announced(self, reservation: str, digest: bytes) -> bytes | FannedOut:
        """The announcement that was kept, or the answer of its commit when every file has its part of it."""
        once = _key(reservation, digest)
        home = self._home(once)

        def look(connection: sqlite3.Connection) -> KeptAnnouncement | Decision:  # a commit comes before or after it
            return decisions.recalled(connection, once) or _kept(connection, reservation)

        try:
            found = await self._files.numbered(home).read(look)
        except OnceConflict as exc:
            raise OnceConflict(f"other events were committed to reservation {reservation} before") from exc
        if isinstance(found, KeptAnnouncement):
            return found.announcement
        await self._finish(home, found)
        return found.answer

    async def commit_announced(
        self, reservation: str, copies: Sequence[TopicCopies], answer: FannedOut, digest: bytes
    ) -> FannedOut:
        """Store the copies in the room that was reserved for them; returns when all are durable."""
        once = _key(reservation, digest)
        home, found = self._home(once), self._by_file(copies)
        direct = decisions.part_of(home, found.pop(home, []))
        parts = [decisions.part_of(number, of_file) for number, of_file in found.items()]
        until_ns = now_ns() + decisions.MAY_BE_TAKEN_NS
        deciding = _DecideAnnounced(reservation, direct.topics, answer, once, decisions.packed(parts))
        outcome = await self._commits.submit(self._files.numbered(home), deciding, Wants(direct.nbytes, direct.shards))
        if isinstance(outcome, Decision):
            await self._finish(home, outcome)
            return outcome.answer
        await self._finish(home, Decision(reservation, answer, parts, until_ns))
        used = {each.topic.name for each in copies}
        unused = [each for each in outcome if each.name not in used]
        await self._release_all(reservation, self._topics_by_file(unused))
        return answer

    async def abort_announced(self, reservation: str) -> None:
        """Give all room back."""
        topics = await self._commits.submit(self._home_of(reservation), _AbortAnnounced(reservation))
        await self._release_all(reservation, self._topics_by_file(topics))

    def _home_of(self, reservation: str) -> File:
        return self._files.numbered(self._home(_key(reservation)))

    def _topics_by_file(self, topics: Sequence[Topic]) -> Mapping[int, Sequence[Topic]]:
        found: dict[int, list[Topic]] = {}
        for each in topics:
            number = self._files.number_of(each.name)
            with suppress(StoreError):  # the room expires
                if self._files.has(number):
                    found.setdefault(number, []).append(each)
        return found


def _key(reservation: str, digest: bytes = b"") -> IdempotencyKey:
    """What a commit is recognised by; no client's key has a space."""
    return IdempotencyKey(f"reservation {reservation}", digest)


def _kept(connection: sqlite3.Connection, reservation: str) -> KeptAnnouncement:
    """What is kept of a reservation. Raises ReservationUnknown, ReservationExpired, RowDamaged."""
    row = connection.execute(_FIND, {"id": reservation, "boot": boot_id(), "now": now_ns()}).fetchone()
    if row is None:
        raise ReservationUnknown(f"there is no reservation {reservation!r}")
    state, topics, announcement, checksum, age_ns = row
    if state != "open" or age_ns > RESERVATION_AGE_S * 1e9:
        raise ReservationExpired(f"reservation {reservation} was aborted, or not committed in time")
    if not isinstance(announcement, bytes) or zlib.crc32(announcement) != checksum:
        raise RowDamaged(f"what reservation {reservation} has announced has changed in the store")
    return KeptAnnouncement(_topics(connection, reservation, topics), announcement)


def _topics(connection: sqlite3.Connection, reservation: str, packed: bytes) -> Sequence[Topic]:
    return [each.topic for each in unpacked(connection, _decode_topics, packed, "announcements", reservation)]


# ------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class _Keep:
    """Keeps an announcement with the names of its topics."""

    id: str
    topics: Sequence[Topic]
    announcement: bytes

    def __call__(self, batch: WriteBatch) -> None:
        topics = [TopicPart(each.name, each.id, each.generation, ()) for each in self.topics]
        values = {"id": self.id, "topics": msgspec.msgpack.encode(topics), "announcement": self.announcement}
        batch.connection.execute(_KEEP, batch.clock | values | {"checksum": zlib.crc32(self.announcement)})
        batch.forget("announcements")


@dataclass(frozen=True, slots=True)
class _DecideAnnounced:
    """Stores the events for topics of the home file and the parts of others; the topics that had room.

    Where the reservation is committed already it is that decision instead.
    """

    id: str
    direct: Sequence[TopicPart]
    answer: FannedOut
    once: IdempotencyKey
    parts: bytes

    def __call__(self, batch: WriteBatch) -> Sequence[Topic] | Decision:
        if before := decisions.recalled(batch.connection, self.once):
            return before
        kept = _kept(batch.connection, self.id)
        decisions.take_all(batch, self.id, self.direct)
        decisions.decide(batch, self.id, self.once, self.answer, self.parts)
        batch.connection.execute(_DELETE, (self.id,))
        return kept.topics


@dataclass(frozen=True, slots=True)
class _AbortAnnounced:
    """Ends a reservation that is not committed; the topics that have room."""

    id: str

    def __call__(self, batch: WriteBatch) -> Sequence[Topic]:
        row = batch.connection.execute(_FIND, batch.clock | {"id": self.id}).fetchone()
        if row is None:
            with suppress(OnceConflict):
                if decisions.recalled(batch.connection, _key(self.id)) is None:
                    raise ReservationUnknown(f"there is no reservation {self.id!r}")
            raise OnceConflict(f"reservation {self.id} was committed before")
        batch.connection.execute(_ABORT, (self.id,))
        return _topics(batch.connection, self.id, row[1])
