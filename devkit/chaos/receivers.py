"""Where HTTP, AMQP and NATS topics of a run go, and what has arrived there. Shares no code with what delivers."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol
from urllib.parse import unquote

import nats.errors

from devkit.chaos.clusters import ChaosError
from devkit.clusters.nats import Nats, running_nats
from devkit.clusters.rabbitmq import RabbitMQ, running_rabbitmq
from devkit.receivers.receiver import DROPPED, OK, Arrival, Reply, receiving, status
from devkit.verdicts.verdict import Copy, Place
from devkit.waits import until

REFUSED_SHARE, DROPPED_SHARE = 0.01, 0.002
"""Of an HTTP receiver's requests: answered with 503, and not at all."""

REFUSALS = (400, 413, 422)
"""What it answers to each post of a record that it refuses for good."""

BAD_SHARE, LATE_SHARE = 0.05, 0.2
"""Of its requests: refused for good, and answered late, while it does that."""

HTTP_TIMEOUT_S = 4.0
"""The daemons of a run wait so long for an answer, and as long again for a late one."""

ROOM_LEFT = 200
"""Messages that a stream takes before it is full: more than come between a look and the limit."""

NATS_WINDOW_S = 5.0
"""For so long the stream of a run drops copies: pauses between attempts are longer."""


class Arrivals(Protocol):
    """One topic's other end."""

    uri: str
    args: str

    async def read(self) -> Sequence[Copy]:
        """All records so far, in the order of their arrival."""
        ...


class OverHttp:
    """A receiver that fails some requests and cuts some connections, as often as chance will have it.

    `refused` are the records that it has refused for good: it takes none of them ever, and it had taken none before.
    """

    args = ""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._seen: list[Copy] = []
        self._taken: set[str] = set()
        self._most_refused = 0
        self.refused: dict[str, int] = {}
        self.uri, self.is_away, self.is_late = "", False, False

    def plan(self, arrival: Arrival) -> Reply:
        """What a request is answered with; it has arrived if that is a success."""
        drawn = self._chance.random()
        if drawn < REFUSED_SHARE or self.is_away:
            return status(503)
        if drawn < REFUSED_SHARE + DROPPED_SHARE:
            return DROPPED
        headers = arrival.headers
        copy = _copy(arrival.body, headers, unquote(headers["remora-shard"]), len(self._seen))
        if self._is_refused(copy.event_id):
            return status(self.refused[copy.event_id])
        self._seen.append(copy)
        self._taken.add(copy.event_id)
        return self._late() if self.is_late and self._chance.random() < LATE_SHARE else OK

    def refuse(self, count: int) -> None:
        """Refuse so many further records for good; none but the former ones where it is 0."""
        self._most_refused = len(self.refused) + count

    @property
    def has_refused(self) -> bool:
        """Whether it has refused as many as it was told to."""
        return len(self.refused) >= self._most_refused

    def _is_refused(self, event_id: str) -> bool:
        if event_id not in self.refused:
            if self.has_refused or event_id in self._taken or self._chance.random() >= BAD_SHARE:
                return False
            self.refused[event_id] = self._chance.choice(REFUSALS)
        return True

    def _late(self) -> Reply:
        """Most late answers come while the daemon still waits for them, the others when nobody does."""
        answers = asyncio.Event()
        asyncio.get_running_loop().call_later(HTTP_TIMEOUT_S * self._chance.uniform(1, 2.2), answers.set)
        return replace(OK, until=answers)

    async def read(self) -> Sequence[Copy]:
        return list(self._seen)


class OverAmqp:
    """An exchange with a durable queue, which is emptied at each look."""

    def __init__(self, broker: RabbitMQ, exchange: str, queue: str) -> None:
        self.broker, self._queue = broker, queue
        self._seen: list[Copy] = []
        self.uri, self.args = f"amqp://{broker.address}", f"amqp-exchange={exchange}"

    async def read(self) -> Sequence[Copy]:
        for message in await self.broker.read(self._queue):
            headers = message.properties.headers
            self._seen.append(_copy(message.body, headers, headers["remora-shard"], len(self._seen)))
        return list(self._seen)


class OverNats:
    """A stream on a disk that knows ids for NATS_WINDOW_S. One that is `strict` must not have any copy."""

    def __init__(self, server: Nats, stream: str, *, strict: bool) -> None:
        self.server, self._stream, self._strict = server, stream, strict
        self._seen: list[Copy] = []
        self.uri = f"nats://{server.address}"
        self.args = f"nats-stream={stream}&nats-subject=chaos.%7Bbucket%7D.%7Bkey%7D"

    async def read(self) -> Sequence[Copy]:
        messages = await self.server.read(self._stream)
        for message in messages[len(self._seen) :]:
            self._seen.append(_copy(message.body, message.headers, message.headers["remora-shard"], len(self._seen)))
        ids = {each.headers["Nats-Msg-Id"] for each in messages}
        if self._strict and len(ids) < len(messages):
            raise ChaosError(f"{len(messages) - len(ids)} messages in the NATS stream are copies")
        return list(self._seen)

    async def fill(self) -> None:
        """It soon takes no further message. A limit below what it has would delete messages."""

        async def filled() -> None:
            await self.server.update(self._stream, max_msgs=await self.server.count(self._stream) + ROOM_LEFT)

        await self._once_it_answers(filled)

    async def empty(self) -> None:
        """It takes messages again."""
        await self._once_it_answers(lambda: self.server.update(self._stream, max_msgs=-1))

    async def _once_it_answers(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make a change, however often the server is killed or frozen meanwhile."""

        async def made() -> bool:
            try:
                await change()
            except (OSError, nats.errors.Error):  # also its TimeoutError
                return False
            return True

        await until(made)


def _copy(body: bytes, headers: Mapping[str, str], shard: str, offset: int) -> Copy:
    """A record that arrived now; one queue of messages is one partition."""
    event = json.loads(body)["Records"][0]
    key = f"{event['s3']['bucket']['name']}/{event['s3']['object']['key']}".encode()
    return Copy(
        event_id=event["eventId"],
        key=key,
        place=Place.read(shard, headers["remora-pos"]),
        end=Place.read(shard, headers["remora-next"]),
        partition=0,
        offset=offset,
        at=time.time(),
        nbytes=len(body),
        number=headers.get("remora-seq", ""),
        after=headers.get("remora-after", ""),
    )


@asynccontextmanager
async def over_http(chance: random.Random) -> AsyncIterator[OverHttp]:
    """A receiver that runs."""
    made = OverHttp(chance)
    async with receiving(made.plan) as receiver:
        made.uri = f"{receiver.url}/events"
        yield made


@asynccontextmanager
async def over_amqp() -> AsyncIterator[OverAmqp]:
    """A broker of its own, and a queue in it."""
    running = running_rabbitmq()
    broker = await asyncio.to_thread(running.__enter__)
    try:
        yield OverAmqp(broker, *await broker.bound())
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


@asynccontextmanager
async def over_nats(*, strict: bool) -> AsyncIterator[OverNats]:
    """A server of its own, and a stream in it."""
    running = running_nats()
    server = await asyncio.to_thread(running.__enter__)
    try:
        stream = await server.stream(subjects=["chaos.>"], duplicate_window=NATS_WINDOW_S, discard="new")
        yield OverNats(server, stream, strict=strict)
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
