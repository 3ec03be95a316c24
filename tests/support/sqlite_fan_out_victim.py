"""A process that is killed at each statement of a request for several topics of the embedded store.

Run as a program it carries out one request again and again, each time in a process and with topics of its own, which
kills itself before the first, second ... statement that any file's writer runs for the request, or before an answer,
until one comes through. It prints a line for each: the number, and whether the request was answered.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devkit.entries.entries import raw_entry
from remora.config import SqliteSettings
from remora.model.fan_out import FannedOut, TopicCopies
from remora.model.ingest import IdempotencyKey, RoutedEvent
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import writer
from remora.storage.sqlite.ingest.fan_out import rooms_of
from support.sqlite_victim import Killer, die_at_each_step, watch
from support.stores import expire, held, own_topic

FILES = 4
EVENTS = 6
DIGEST = b"digest"
ANSWER = FannedOut(EVENTS, 1, {"a": EVENTS})


def settings(directory: Path) -> SqliteSettings:
    """The store that the processes share."""
    return SqliteSettings(directory=str(directory), files=FILES)


def file_of(name: str) -> int:
    """The number of a topic's file."""
    return zlib.crc32(name.encode()) % FILES


def in_files(beginning: str, numbers: Sequence[int]) -> list[str]:
    """A name for each of these files, in the order of the names."""
    found = [
        next(name for i in itertools.count() if file_of(name := f"{beginning}-{place}-{i}") == number)
        for place, number in enumerate(numbers)
    ]
    return sorted(found)


def names(count: int) -> list[str]:
    """Names of topics in files of their own."""
    return in_files("t", range(count))


def beside(name: str) -> str:
    """The name of another topic in the same file."""
    return in_files("u", [file_of(name)])[0]


def topics_of(step: int) -> list[str]:
    """The names of the topics that one process sends to."""
    return in_files(f"step{step}", range(3))


def unused_of(step: int) -> str:
    """The name of a further topic, which an announcing one keeps room in and sends nothing to."""
    return in_files(f"unused{step}", [0])[0]


def reservation_file(directory: Path, step: int) -> Path:
    """Where an announcing one notes its reservation."""
    return directory.with_name(f"{directory.name}-reservation-{step}")


def once_of(step: int) -> IdempotencyKey:
    """The key that it sends under."""
    return IdempotencyKey(f"key of {step}", b"digest")


def entry(place: int) -> bytes:
    """An entry behind which a number may stand."""
    return raw_entry(f"k{place}", place)


def copies(topics: Sequence[Topic]) -> list[TopicCopies]:
    """Events for each topic, spread over its two shards."""
    return [
        TopicCopies(each, [RoutedEvent(i % 2, b"bkt:key", f"{each.name} a{i}".encode()) for i in range(EVENTS)])
        for each in topics
    ]


async def expire_all(store: SqliteStore, topics: Sequence[Topic]) -> None:
    """End the reservations of topics, as happens after two minutes."""
    for each in topics:
        for shard in each.all_shards():
            token = await held(store, shard)
            await expire(store, token, 0.0)
            await store.locks.release(token)


async def request(kind: str, directory: Path, killer: Killer) -> None:
    """Carry out one request, and die before the statement that the killer waits for."""

    def settled(self: writer.Writer, *of_transaction: Any) -> None:
        killer("the answer, once a transaction is committed")
        hand_over(self, *of_transaction)

    hand_over = writer.Writer._settle
    writer.Writer._settle = settled  # type: ignore[method-assign, assignment]
    watch(writer, killer)
    async with SqliteStore(settings(directory)) as store:
        topics = [await store.own_topics.create(own_topic(name, 2)) for name in topics_of(killer.at)]
        beside = await store.own_topics.create(own_topic(unused_of(killer.at), 2)) if kind == "announced" else None
        killer.is_armed = True
        if beside is None:
            await store.ingest.fan_out(copies(topics), ANSWER, once_of(killer.at) if kind == "once" else None)
        else:
            rooms = [rooms_of(each) for each in copies([*topics, beside])]
            reservation = await store.ingest.announce(rooms, b"announced")
            reservation_file(directory, killer.at).write_text(reservation)
            await store.ingest.commit_announced(reservation, copies(topics), ANSWER, DIGEST)
        killer.is_armed = False


if __name__ == "__main__":
    die_at_each_step(request, 400)
