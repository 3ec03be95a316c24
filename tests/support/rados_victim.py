"""A process that is killed after each step of a request to the store on RADOS.

Run as a program it carries out one kind of request again and again, each time in a process and with a topic of its
own (`<kind>-1`, `<kind>-2` ...), which kills itself when the first, second ... write of the request was answered,
until one comes through. It prints a line for each: its number, the wait status, and the reservation it had, if any.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any, NamedTuple

from devkit.clusters.ceph import reached
from devkit.processes.programs import ENVIRONMENT
from remora.config import RadosSettings
from remora.model.fan_out import FannedOut
from remora.model.ingest import IdempotencyKey, ReservedRoom, RoutedEvent
from remora.model.topic import Topic
from remora.storage.librados import WriteOp
from remora.storage.rados import RadosStore
from remora.storage.rados.ingest import finisher
from support.stores import copies_for, own_topic, rooms_for, spread

MORE_SHARDS = 5

EVENTS, SHARDS, DIGEST, ONCE = 30, 3, b"digest", IdempotencyKey("key", b"digest")

ANSWER = FannedOut(EVENTS, 1, {"a": EVENTS, "b": EVENTS})

Act = Callable[[], Awaitable[object]]

_armed: ContextVar[bool] = ContextVar("armed", default=False)
"""Set around the request alone, so that what the store does by itself is not counted."""


class Victim(NamedTuple):
    """What was left of one process."""

    topic: str
    survived: bool
    reservation: str


def after_write(store: RadosStore, number: int, act: Callable[[], object]) -> None:
    """Have something happen when this many writes of what runs `armed` have been answered."""
    connection: Any = store._connection
    run, seen = connection.run, 0

    async def counting(operation: object, *arguments: Any, **named: Any) -> int:
        nonlocal seen
        version: int = await run(operation, *arguments, **named)
        if isinstance(operation, WriteOp) and _armed.get():
            seen += 1
            if seen == number:
                act()
        return version

    connection.run = counting


class Frozen(NamedTuple):
    """A process that stands still before a write. `is_there` is set when it has come so far, or has ended before."""

    is_there: asyncio.Event
    thaw: asyncio.Event


def freeze_before(store: RadosStore, number: int) -> Frozen:
    """Have what runs `armed` stand still before its write of this number, until it is thawed."""
    connection: Any = store._connection
    run, seen, frozen = connection.run, 0, Frozen(asyncio.Event(), asyncio.Event())

    async def counting(operation: object, *arguments: Any, **named: Any) -> int:
        nonlocal seen
        if isinstance(operation, WriteOp) and _armed.get():
            seen += 1
            if seen >= number:
                frozen.is_there.set()
                await frozen.thaw.wait()
        version: int = await run(operation, *arguments, **named)
        return version

    connection.run = counting
    return frozen


async def armed(act: Awaitable[object]) -> object:
    """Carry something out, counted."""
    _armed.set(True)
    try:
        return await act
    finally:
        _armed.set(False)


def rooms(events: Sequence[RoutedEvent]) -> list[ReservedRoom]:
    """Room for these events, with some bytes to spare."""
    return [ReservedRoom(event.shard, event.key, len(event.payload) + 100) for event in events]


async def victims(settings: RadosSettings, kind: str) -> list[Victim]:
    """Run the program, and answer what became of each of its processes; only the last one survived."""
    command = [sys.executable, "-W", "error", "-m", "support.rados_victim", json.dumps(asdict(settings)), kind]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT)
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    found = []
    for line in out.decode().splitlines():
        number, status, reservation = line.split(",")
        found.append(Victim(f"{kind}-{number}", status == "0", reservation))
    assert [each.survived for each in found] == [False] * (len(found) - 1) + [True]
    return found


async def _prepare(store: RadosStore, kind: str, name: str) -> tuple[Act, str]:
    """What is to be cut short, and the reservation that it is about."""
    asked = own_topic(name, SHARDS)
    if kind == "create":
        return lambda: store.own_topics.create(asked), ""
    topic, events = await store.own_topics.create(asked), spread(asked, EVENTS)
    if kind == "publish":
        return lambda: store.ingest.publish(topic, events, ONCE), ""
    if kind in ("fan-out", "announce", "announced", "announced-abort"):
        return await _prepare_copies(store, kind, topic)
    if kind == "reserve":
        return lambda: store.ingest.reserve(topic, rooms(events)), ""
    if kind == "reshard":
        await store.ingest.publish(topic, events)
        return lambda: store.own_topics.reshard(topic, MORE_SHARDS), ""
    if kind == "remove":
        await store.ingest.publish(topic, events)
        return lambda: store.own_topics.remove(topic, discard=True), ""
    reservation = await store.ingest.reserve(topic, rooms(events))
    if kind == "commit":
        return lambda: store.ingest.commit(topic, reservation, events, DIGEST), reservation
    return lambda: store.ingest.abort(topic, reservation), reservation


async def _prepare_copies(store: RadosStore, kind: str, topic: Topic) -> tuple[Act, str]:
    """The same of requests of several topics; of one in two phases the third topic gets nothing."""
    topics = [topic, *[await store.own_topics.create(own_topic(f"{topic.name}-{end}", SHARDS)) for end in "bc"]]
    copies = copies_for(topics[:2])
    if kind == "fan-out":
        return lambda: store.ingest.fan_out(copies, ANSWER, IdempotencyKey(topic.name, DIGEST)), ""
    rooms = rooms_for(copies_for(topics))
    if kind == "announce":
        return lambda: store.ingest.announce(rooms, b"announced"), ""
    reservation = await store.ingest.announce(rooms, b"announced")
    if kind == "announced":
        return lambda: store.ingest.commit_announced(reservation, copies, ANSWER, DIGEST), reservation
    return lambda: store.ingest.abort_announced(reservation), reservation


async def _cut_short(settings: RadosSettings, kind: str, number: int, out: int) -> None:
    async with reached(settings) as store:
        act, reservation = await _prepare(store, kind, f"{kind}-{number}")
        os.write(out, reservation.encode())
        after_write(store, number, lambda: os.kill(os.getpid(), signal.SIGKILL))
        await armed(act())


def main() -> None:
    """Fork a process for each step; none completes what is not the request's own work, however slow it is."""
    finisher._GRACE_S = 3600.0
    settings, kind = RadosSettings(**json.loads(sys.argv[1])), sys.argv[2]
    status, number = -1, 0
    while status != 0:
        number += 1
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            asyncio.run(_cut_short(settings, kind, number, writer))
            os._exit(0)
        os.close(writer)
        reservation = os.read(reader, 1000).decode()
        os.close(reader)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{number},{status},{reservation}\n")
        if status not in (0, signal.SIGKILL):
            sys.exit(f"process {number} ended with status {status}")


if __name__ == "__main__":
    main()
