"""Dead letters that leave the store: re-driven into a queue, or dropped. Each time one transaction, which is synced."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence

from remora.codec.sequence import with_number, without_number
from remora.model.errors import ShardGone, StoreDamaged, TopicUnknown
from remora.model.position import Position
from remora.model.record import DeadLetter, LetterTotals, Redrive
from remora.model.shard import Shard
from remora.model.topic import Topic, own_topic_name
from remora.storage.sqlite.dead_letters import SqliteDeadLetters
from remora.storage.sqlite.file import File
from remora.storage.sqlite.ingest import check_open
from remora.storage.sqlite.write_batch import RoomNeed, WriteBatch

_FORGET = "DELETE FROM letters WHERE queue = ? AND incarnation = ? AND gen = ? AND position = ?"
_COUNT = """
INSERT INTO letter_totals (queue, redriven, dropped) VALUES (?, ?, ?)
ON CONFLICT (queue) DO UPDATE SET redriven = redriven + excluded.redriven, dropped = dropped + excluded.dropped
"""
_STANDS = "SELECT 1 FROM queues WHERE name = ? AND incarnation = ? AND head <= ?"
_TOTALS = "SELECT queue, redriven, dropped FROM letter_totals"


class SqliteLetters(SqliteDeadLetters):
    """The stored letters; re-drives and drops them, too."""

    async def still_standing(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Those whose entries stand in their queue yet."""
        by_file: defaultdict[File, list[DeadLetter]] = defaultdict(list)
        for each in letters:
            by_file[self._files.file_of(own_topic_name(each.queue))].append(each)
        return [letter for file, of_file in by_file.items() for letter in await _standing(file, of_file)]

    async def drop(self, letters: Sequence[DeadLetter]) -> int:
        """Forget letters of one queue for good."""

        def drop(connection: sqlite3.Connection) -> int:
            count = len([each for each in letters if _forget(connection, each)])
            if count:
                connection.execute(_COUNT, (letters[0].queue, 0, count))
            return count

        return await self._files.file_of(own_topic_name(letters[0].queue)).write(drop, upkeep=True) if letters else 0

    async def redrive(self, shard: Shard, topic: Topic | None, again: Sequence[Redrive]) -> int:
        """Commit entries to a queue and forget their letters. All queues of a topic lie in one file."""
        if topic is None:
            raise TopicUnknown(f"there is no topic of queue {shard}")
        if shard not in topic.open_shards():
            raise ShardGone(f"topic {topic.name} has no queue {shard} that takes events")
        number = topic.open_shards().index(shard)

        def redrive(connection: sqlite3.Connection) -> int:
            batch = WriteBatch(connection)
            row = batch.open_topic(topic)
            check_open(row, topic)
            # A new commit: the old number goes.
            payloads = [
                without_number(each.payload) if each.letter.sequence else each.payload
                for each in again
                if _forget(connection, each.letter)
            ]
            if payloads:
                need = RoomNeed(len(payloads), sum(map(len, payloads)))
                queue = batch.with_room(topic, {number: need})[number]
                if row.sequence is not None:
                    payloads = list(map(with_number, payloads, batch.take_numbers(row, len(payloads))))
                queue.append(payloads, row.room(need))
                batch.flush()
                connection.execute(_COUNT, (again[0].letter.queue, len(payloads), 0))
            return len(payloads)

        return await self._file(shard).write(redrive, arrived=[shard]) if again else 0

    async def totals(self) -> Mapping[str, LetterTotals]:
        """What commands have done with the letters of each queue, save those of damaged files."""
        totals: dict[str, LetterTotals] = {}
        for file in self._files.all:
            try:
                rows = await file.read(lambda connection: connection.execute(_TOTALS).fetchall())
            except StoreDamaged:
                continue
            totals |= {queue: LetterTotals(redriven, dropped) for queue, redriven, dropped in rows}
        return totals


async def _standing(file: File, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    return await file.read(lambda connection: [each for each in letters if _stands(connection, each)])


def _stands(connection: sqlite3.Connection, letter: DeadLetter) -> bool:
    """Whether a letter's entry has not left its queue."""
    position = Position.parse(letter.position).offset
    return connection.execute(_STANDS, (letter.queue, letter.incarnation, position)).fetchone() is not None


def _forget(connection: sqlite3.Connection, letter: DeadLetter) -> bool:
    """Delete a letter, unless its entry stands in its queue; whether that was done."""
    if _stands(connection, letter):
        return False
    gen, position = Position.parse(letter.position)
    return connection.execute(_FORGET, (letter.queue, letter.incarnation, gen, position)).rowcount > 0
