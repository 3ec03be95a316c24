"""A process that is killed at each step of a request to the embedded store.

Run as a program it carries out one kind of request again and again, each time in a process and in a topic of its own
(`<kind>-1`, `<kind>-2` ...), which kills itself before the first, second ... statement of the request's transaction, or
between its end and the answer, until one comes through. Of the kind `open` it opens stores that have never been opened,
of the kind `migrate` stores of a release before the log.
It prints a line for each: the number, and whether the request was answered.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devkit.entries.entries import raw_entry
from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.ingest import IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.ledger import Tally
from remora.model.record import DeadLetter
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import directory as opened_by
from remora.storage.sqlite.files import writer
from remora.storage.sqlite.tables import recent
from remora.storage.sqlite.topics import own_topics as topics
from support.stores import QUIET_S, by_shard, own_topic, settle_all, spread, unhurried

EVENTS, SHARDS, RESHARDED, DIGEST = 30, 3, 5, b"digest"
REMOVED = 7
EARLIER = Path(__file__).parents[1] / "data" / "store-of-release-0.1.0.tar.xz"
RESERVED_AS = "reservation-of"
"""Files of this name, with the topic's, hold the id of its reservation."""


@dataclass
class Killer:
    """Counts the statements of the writing connection from when it is armed, and kills this process at one of them."""

    at: int
    seen: int = 0
    is_armed: bool = False

    def __call__(self, statement: str) -> None:
        self.seen += self.is_armed
        if self.is_armed and self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def settings(directory: Path) -> SqliteSettings:
    """One file for all topics, so that each process finds what those before it have left."""
    return SqliteSettings(directory=str(directory), files=1)


def entries(topic: Topic) -> list[RoutedEvent]:
    """As many events as `spread` gives, as entries behind which a number may stand."""
    return [event._replace(payload=raw_entry(f"k{i}", i)) for i, event in enumerate(spread(topic, EVENTS))]


def rooms(events: Sequence[RoutedEvent]) -> list[ReservedRoom]:
    """Room for these events, with some bytes to spare."""
    return [ReservedRoom(event.shard, event.key, len(event.payload) + 100) for event in events]


async def publish(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Store events under an idempotency key."""
    return lambda: store.ingest.publish(topic, spread(topic, EVENTS), IdempotencyKey("key", DIGEST))


async def number(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Store events in a topic that numbers them, behind others."""
    numbered = await store.own_topics.create(replace(own_topic(f"{topic.name}-seq", SHARDS), is_sequenced=True))
    await store.ingest.publish(numbered, entries(numbered))
    return lambda: store.ingest.publish(numbered, entries(numbered))


async def reserve(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Reserve room in all shards."""
    return lambda: store.ingest.reserve(topic, rooms(spread(topic, EVENTS)))


async def commit(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Store the events that room is reserved for."""
    reservation = await _reserved(store, topic, directory)
    return lambda: store.ingest.commit(topic, reservation, spread(topic, EVENTS), DIGEST)


async def abort(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Give the room back."""
    reservation = await _reserved(store, topic, directory)
    return lambda: store.ingest.abort(topic, reservation)


async def append(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Commit to a single queue, as a gateway does."""
    shard, payloads = topic.shard(0), by_shard(topic, spread(topic, EVENTS))[0]
    reservation = await store.two_phase.reserve(shard, len(payloads), sum(map(len, payloads)))
    return lambda: store.two_phase.commit(shard, reservation, payloads)


async def remove(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Remove the first entries of a shard."""
    token = await _held(store, topic)
    page = await store.queue.read(token, b"", REMOVED)
    return lambda: store.queue.remove(token, page.positions[-1], REMOVED, Tally(delivered=REMOVED))


async def store(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Store a dead letter."""
    token = await _held(store, topic)
    return lambda: store.letters.store(token, letter(token))


async def create(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Make another topic."""
    return lambda: store.own_topics.create(own_topic(f"{topic.name}-made", SHARDS))


async def discard(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Remove a topic with its entries, until the last of these is deleted."""
    topics._SWEPT_AT_ONCE = 6
    await store.ingest.publish(topic, spread(topic, EVENTS))
    await store._files.file_of(topic.name).write(settle_all)

    async def act() -> None:
        await store.own_topics.remove(topic, discard=True)
        await until(lambda: _is_swept(store, topic))

    return act


async def reshard(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Give a topic with entries another number of shards."""
    await store.ingest.publish(topic, spread(topic, EVENTS))
    return lambda: store.own_topics.reshard(topic, RESHARDED)


async def forget(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Remove a former layout of which all is delivered."""
    await store.ingest.publish(topic, spread(topic, EVENTS))
    changed = await store.own_topics.reshard(topic, RESHARDED)
    await store.ingest.publish(changed, spread(changed, EVENTS))
    for shard in topic.all_shards():
        token = await store.locks.acquire(shard, "victim", QUIET_S)
        assert isinstance(token, LockToken)
        page = await store.queue.read(token, b"", EVENTS)
        await store.queue.remove(token, page.positions[-1], len(page.entries), Tally(delivered=len(page.entries)))
    return lambda: store.own_topics.forget_former(changed)


async def settle(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Have all entries leave the log, some of them of a queue that has removed others."""
    token = await _held(store, topic)
    page = await store.queue.read(token, b"", REMOVED)
    await store.queue.remove(token, page.positions[-1], REMOVED, Tally(delivered=REMOVED))
    return lambda: store._files.file_of(topic.name).write(settle_all)


async def give_back(store: SqliteStore, topic: Topic, directory: Path) -> Callable[[], Awaitable[object]]:
    """Free what nothing waits for any more: one queue is empty, and others have more to come."""
    token = await _held(store, topic)
    page = await store.queue.read(token, b"", EVENTS)
    await store.queue.remove(token, page.positions[-1], len(page.entries), Tally(delivered=len(page.entries)))
    return lambda: store._files.file_of(topic.name).write(recent.free_pages)


KINDS = {
    each.__name__: each
    for each in (
        publish,
        number,
        reserve,
        commit,
        abort,
        append,
        remove,
        store,
        create,
        discard,
        reshard,
        forget,
        settle,
        give_back,
    )
}


def letter(token: LockToken) -> DeadLetter:
    """What is parked under a hold."""
    return DeadLetter(token.shard.queue, token.incarnation, "0/0", "0/1", "refused", "why", 1, 1.0, 2.0, b"raw")


async def _held(store: SqliteStore, topic: Topic) -> LockToken:
    await store.ingest.publish(topic, spread(topic, EVENTS))
    token = await store.locks.acquire(topic.shard(0), "victim", QUIET_S)
    assert isinstance(token, LockToken)
    return token


async def _is_swept(store: SqliteStore, topic: Topic) -> bool:
    look = "SELECT 1 FROM leftovers"
    return await store._files.file_of(topic.name).read(lambda found: found.execute(look).fetchone()) is None


async def _reserved(store: SqliteStore, topic: Topic, directory: Path) -> str:
    reservation = await store.ingest.reserve(topic, rooms(spread(topic, EVENTS)))
    (directory.parent / f"{RESERVED_AS}-{topic.name}").write_text(reservation)
    return reservation


async def request(kind: str, directory: Path, killer: Killer) -> None:
    """Carry out one request, and die before the statement that the killer waits for."""

    def settled(self: writer.Writer, orders: Sequence[object], times: Sequence[object]) -> None:
        killer("the answer, once the transaction is committed")
        hand_over(self, orders, times)  # type: ignore[arg-type]  # what it is handed

    hand_over = writer.Writer._settle
    writer.Writer._settle = settled  # type: ignore[method-assign]
    watch(writer, killer)
    async with SqliteStore(settings(directory)) as store:
        topic = await store.own_topics.create(own_topic(f"{kind}-{killer.at}", SHARDS))
        act = await KINDS[kind](store, topic, directory)
        killer.is_armed = True
        answer = await act()
        assert not (isinstance(answer, PublishResult) and answer.repeated)
        killer.is_armed = False


async def opening(kind: str, directory: Path, killer: Killer) -> None:
    """Open a store in a directory of its own: one that was never opened, or of the kind `migrate` one of 0.1.0."""
    own = directory / f"{kind}-{killer.at}"
    if kind == "migrate":
        shutil.unpack_archive(EARLIER, own)
        own.chmod(0o700)
    watch(opened_by, killer)
    killer.is_armed = True
    async with SqliteStore(settings(own)):
        killer.is_armed = False


def watch(module: Any, look: Callable[[str], None]) -> None:
    """Have the statements of connections that this module opens looked at before they run."""
    connect = module.connect

    def watched(path: Path, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(path, **options)
        connection.set_trace_callback(look)
        return connection

    module.connect = watched


def tell(step: int, outcome: str) -> None:
    """Print what became of a request."""
    sys.stdout.write(f"{step} {outcome}\n")
    sys.stdout.flush()


def die_at_each_step(run: Callable[[str, Path, Killer], Coroutine[Any, Any, None]], most: int) -> None:
    """Carry out what the command line names, in one process after the other of which each dies at a later step."""
    unhurried()
    kind, directory = sys.argv[1], Path(sys.argv[2])
    for step in range(1, most):
        child = os.fork()
        if not child:
            asyncio.run(run(kind, directory, Killer(step)))
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            tell(step, "killed")
        elif status == 0:
            tell(step, "answered")
            return
        else:
            sys.exit(f"step {step} ended with {status}")
    sys.exit("it never came through")


async def _carry_out(kind: str, directory: Path, killer: Killer) -> None:
    await (request if kind in KINDS else opening)(kind, directory, killer)


if __name__ == "__main__":
    die_at_each_step(_carry_out, 200)
