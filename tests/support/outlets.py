"""One kind of endpoint each, with the real server behind it, which a contract test asks for in the same words."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TextIO, TypeVar
from urllib.parse import quote, unquote

from devkit.clusters.kafka import Kafka, create_topic, limit_topic, read_topic
from devkit.clusters.nats import PASSWORD as NATS_PASSWORD
from devkit.clusters.nats import Nats, NatsHearer
from devkit.clusters.rabbitmq import MAX_MESSAGE_BYTES, PASSWORD, Hearer, RabbitMQ
from devkit.receivers.receiver import OK, Arrival, Receiver, Reply, status
from devkit.receivers.streams import serving_streams
from remora.config import AmqpSettings, DestinationsSettings, HttpSettings, NatsSettings, Settings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.http import HttpEndpoint
from remora.endpoints.kafka import KafkaEndpoint
from remora.endpoints.nats import NatsEndpoint
from remora.endpoints.tls import TlsFiles
from remora.model.record import Record
from remora.model.topic import Target
from remora.ports.endpoint import Endpoint
from support.file_sink import FileEndpoint
from support.kafka_sender import PATIENT, Watcher

OVERHEAD_BYTES = 1000
"""Of a batch in Kafka with one record: its head, key and headers."""

HEADERS_BYTES = 1000
"""Of a message of NATS, which its stream counts with the body."""

WRONG_PASSWORD = "wr0ng-pa55word"


class Arrived(NamedTuple):
    """One record as it lies at the other end; of a key they come in the order of their arrival."""

    shard: str
    position: str
    next_position: str
    event_id: bytes
    body: bytes
    after: str = ""


class Outlet(Protocol):
    """A server, and endpoints that deliver to it.

    `load` is how many records of a shard a test sends under faults, and `at_once` the most of a shard that may be
    under way, if they have twenty keys. `opened` counts connections of all endpoints so far; for topics in turns.
    """

    load: int
    at_once: int
    largest_bytes: int
    has_addresses: bool
    """Whether what it delivers to is reached at an address of a network."""
    hears_late: bool
    """Whether a connection outlives a push that was given up; Kafka's ends with its request."""

    def running(self, *, is_quick: bool = False, idle_timeout_s: float = 60.0) -> AbstractAsyncContextManager[Endpoint]:
        """An endpoint; one that `is_quick` gives up soon."""
        ...

    async def topic(self, *, most_bytes: int = 0) -> Target:
        """Somewhere new; with `most_bytes` larger bodies are refused there."""
        ...

    def missing(self) -> Target:
        """A topic of this server that cannot be delivered to, by configuration."""
        ...

    def elsewhere(self, address: str) -> Target:
        """The same kind of topic at another address."""
        ...

    def stranger(self, target: Target) -> Target:
        """The same topic for somebody else, who may be let in, and shares no connection."""
        ...

    def intruder(self) -> Target:
        """A topic with the wrong password."""
        ...

    async def arrivals(self, target: Target) -> Sequence[Arrived]:
        """Everything that has arrived there."""
        ...

    @property
    def opened(self) -> int: ...

    @property
    def closed(self) -> int: ...

    async def stop(self) -> None:
        """Nobody listens any more, and connections are cut."""
        ...

    async def start(self) -> None:
        """It listens at the same address again, and has what it had."""
        ...

    async def freeze(self) -> None:
        """It answers nothing any more."""
        ...

    def thaw(self) -> None:
        """It goes on with what has come."""
        ...


class Verdict(NamedTuple):
    """Records that are not there, copies too many, and keys whose first copies are out of order."""

    lost: set[tuple[str, bytes]]
    copies: int
    moved: list[tuple[str, bytes]]


def judge(arrived: Sequence[Arrived], sent: Mapping[str, Sequence[Record]]) -> Verdict:
    """What became of the records of each shard."""
    keys = {(shard, each.event_id): each.key for shard, records in sent.items() for each in records}
    firsts = {(each.shard, each.event_id): each for each in reversed(arrived)}
    last: defaultdict[tuple[str, bytes], int] = defaultdict(lambda: -1)
    moved = []
    for place in dict.fromkeys((each.shard, each.event_id) for each in arrived):
        key, number = (place[0], keys[place]), int(firsts[place].body.partition(b",")[0])
        if number <= last[key]:
            moved.append(key)
        last[key] = number
    return Verdict(set(keys) - set(firsts), len(arrived) - len(firsts), moved)


def _arrived(headers: Mapping[str, str], body: bytes) -> Arrived:
    shard, place, next_place, event_id = [headers[f"remora-{each}"] for each in ("shard", "pos", "next", "event-id")]
    return Arrived(shard, place, next_place, event_id.encode(), body, headers.get("remora-after", ""))


# ---------------------------------------------------------------------------------------------- Kafka


class KafkaOutlet:
    """Kafka, with a topic of four partitions for each target."""

    load, at_once, largest_bytes, has_addresses, hears_late = 4000, 4 * 200, 900_000, True, False

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._watcher = Watcher()

    @contextlib.asynccontextmanager
    async def running(self, *, is_quick: bool = False, idle_timeout_s: float = 60.0) -> AsyncIterator[Endpoint]:
        settings = replace(PATIENT, ca_directories="/", idle_timeout_s=idle_timeout_s)
        if is_quick:
            settings = replace(settings, connect_timeout_s=1.0, delivery_timeout_s=2.0)
        async with KafkaEndpoint(settings, self._watcher) as endpoint:
            yield endpoint
        assert self._watcher.defects == []

    async def topic(self, *, most_bytes: int = 0) -> Target:
        topic = await create_topic(self._kafka.address, partitions=4)
        if most_bytes:
            await limit_topic(self._kafka.address, topic, most_bytes + OVERHEAD_BYTES)
        return self._target(topic)

    def missing(self) -> Target:
        return self._target("nowhere")

    def elsewhere(self, address: str) -> Target:
        return Target(f"kafka://{address}", "", "t")

    def stranger(self, target: Target) -> Target:
        return Target(f"kafka://{self._kafka.env['ssl_bootstrap']}", "use-ssl=true&verify-ssl=false", target.topic)

    def intruder(self) -> Target:
        args = f"user-name={self._kafka.env['user']}&password={WRONG_PASSWORD}"
        return Target(f"kafka://{self._kafka.env['sasl_plaintext_bootstrap']}", args, "t")

    async def arrivals(self, target: Target) -> Sequence[Arrived]:
        found = []
        for record in await read_topic(self._kafka.address, target.topic):
            headers = {name: text.decode() for name, text in record.headers}
            found.append(_arrived(headers, record.value))
        return found

    @property
    def opened(self) -> int:
        return self._watcher.opened

    @property
    def closed(self) -> int:
        return self._watcher.closed

    async def stop(self) -> None:
        self._kafka.stop()

    async def start(self) -> None:
        await self._kafka.start()

    async def freeze(self) -> None:
        self._kafka.stop(how=signal.SIGSTOP)

    def thaw(self) -> None:
        self._kafka.stop(how=signal.SIGCONT)

    def _target(self, topic: str) -> Target:
        return Target(f"kafka://{self._kafka.address}", "", topic)


# ----------------------------------------------------------------------------------------------- HTTP


class HttpOutlet:
    """A receiver in this process, with a path for each target."""

    load, at_once, largest_bytes, has_addresses, hears_late = 800, 20, 10_000_000, True, True

    def __init__(self) -> None:
        self._receiver = Receiver(self._answer)
        self._names = itertools.count()
        self._limits: dict[str, int] = {}
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._life = AsyncExitStack()
        self._opened = self._closed = 0
        self.defects: list[str] = []

    @contextlib.asynccontextmanager
    async def running(self, *, is_quick: bool = False, idle_timeout_s: float = 60.0) -> AsyncIterator[Endpoint]:
        http = HttpSettings(idle_timeout_s=idle_timeout_s, connect_timeout_s=30.0, request_timeout_s=20.0)
        if is_quick:
            http = replace(http, connect_timeout_s=1.0, request_timeout_s=1.0)
        settings = Settings(http=http, destinations=DestinationsSettings(deny=()))
        async with HttpEndpoint(settings, self) as endpoint:
            yield endpoint
        assert self.defects == []

    async def topic(self, *, most_bytes: int = 0) -> Target:
        path = f"/t{next(self._names)}"
        if most_bytes:
            self._limits[path] = most_bytes
        return Target(self._receiver.url + path, "", path[1:])

    def missing(self) -> Target:
        return Target(f"{self._receiver.url}/missing", "", "t")

    def elsewhere(self, address: str) -> Target:
        return Target(f"http://{address}/t", "", "t")

    def stranger(self, target: Target) -> Target:
        return Target(target.uri.replace("http://", "http://other:pa55@"), target.args, target.topic)

    def intruder(self) -> Target:
        return Target(f"http://alice:{WRONG_PASSWORD}@127.0.0.1:{self._receiver.port}/locked", "", "t")

    async def arrivals(self, target: Target) -> Sequence[Arrived]:
        mine = [each for each in self._receiver.taken if _path(each) == f"/{target.topic}"]
        return [_arrived({name: unquote(text) for name, text in each.headers.items()}, each.body) for each in mine]

    @property
    def opened(self) -> int:
        return self._opened

    @property
    def closed(self) -> int:
        return self._closed

    async def stop(self) -> None:
        await self._life.aclose()

    async def start(self) -> None:
        serving = serving_streams(self._receiver.serve, self._receiver.port, limit=1 << 26)
        self._receiver.port = await self._life.enter_async_context(serving)

    async def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    def _answer(self, arrival: Arrival) -> Reply:
        path = _path(arrival)
        if path == "/missing":
            return status(404)
        if path == "/locked":
            return status(401)
        if len(arrival.body) > self._limits.get(path, len(arrival.body)):
            return status(413)
        return OK if self._thawed.is_set() else Reply(until=self._thawed)

    def http_opened(self) -> None:
        self._opened += 1

    def http_closed(self) -> None:
        self._closed += 1

    def http_answered(self, kind: str, requests: int) -> None:
        """Other tests count answers."""

    def http_retried(self) -> None:
        """Other tests count these."""

    def crashed(self, what: str) -> None:
        self.defects.append(what)


def _path(arrival: Arrival) -> str:
    return arrival.line.split()[1]


# ----------------------------------------------------------------------------------- servers of one process


H = TypeVar("H", Hearer, NatsHearer)


class OneServer(Generic[H]):
    """A server of one's own, and what the endpoint told of its connections to it."""

    def __init__(self, server: RabbitMQ | Nats, hearer: H) -> None:
        self._hearer: H = hearer
        self._one = server

    @property
    def opened(self) -> int:
        return self._hearer.connected

    @property
    def closed(self) -> int:
        return len(self._hearer.disconnected)

    async def stop(self) -> None:
        self._one.kill()

    async def start(self) -> None:
        await asyncio.to_thread(self._one.start)

    async def freeze(self) -> None:
        await self._one.freeze()

    def thaw(self) -> None:
        self._one.signal(signal.SIGCONT)


# ----------------------------------------------------------------------------------------------- AMQP


class AmqpOutlet(OneServer[Hearer]):
    """RabbitMQ, with an exchange and a durable queue for each target."""

    load, at_once, largest_bytes, has_addresses, hears_late = 2000, 20, MAX_MESSAGE_BYTES, True, True

    def __init__(self, rabbitmq: RabbitMQ) -> None:
        super().__init__(rabbitmq, Hearer())
        self._rabbitmq = rabbitmq
        self._queues: dict[str, str] = {}
        self._read: defaultdict[str, list[Arrived]] = defaultdict(list)

    @contextlib.asynccontextmanager
    async def running(self, *, is_quick: bool = False, idle_timeout_s: float = 60.0) -> AsyncIterator[Endpoint]:
        settings = AmqpSettings(idle_timeout_s=idle_timeout_s, connect_timeout_s=30.0, delivery_timeout_s=60.0)
        if is_quick:
            settings = replace(settings, connect_timeout_s=1.0, delivery_timeout_s=1.0, heartbeat_s=1.0)
        async with AmqpEndpoint(settings, self._hearer, TlsFiles(("/",), ("/",))) as endpoint:
            yield endpoint
        assert self._hearer.defects == []

    async def topic(self, *, most_bytes: int = 0) -> Target:
        assert most_bytes in (0, MAX_MESSAGE_BYTES), "a broker has one limit"
        exchange, queue = await self._rabbitmq.bound()
        self._queues[exchange] = queue
        return self._target(exchange)

    def missing(self) -> Target:
        return self._target("nowhere")

    def elsewhere(self, address: str) -> Target:
        return Target(f"amqp://{address}", "amqp-exchange=x", "t")

    def stranger(self, target: Target) -> Target:
        return Target(f"amqp://alice:{quote(PASSWORD, safe='')}@{self._rabbitmq.address}", target.args, target.topic)

    def intruder(self) -> Target:
        return Target(f"amqp://alice:{WRONG_PASSWORD}@{self._rabbitmq.address}", "amqp-exchange=amq.topic", "t")

    async def arrivals(self, target: Target) -> Sequence[Arrived]:
        exchange = target.args.partition("=")[2]
        found = self._read[exchange]
        for message in await self._rabbitmq.read(self._queues[exchange]):
            found.append(_arrived(message.properties.headers, message.body))
        return found

    def _target(self, exchange: str) -> Target:
        return Target(f"amqp://{self._rabbitmq.address}", f"amqp-exchange={exchange}", "events")


# ----------------------------------------------------------------------------------------------- NATS


class NatsOutlet(OneServer[NatsHearer]):
    """A NATS server, with a stream for each target."""

    load, at_once, largest_bytes, has_addresses, hears_late = 2000, 0, 900_000, True, True

    def __init__(self, server: Nats) -> None:
        super().__init__(server, NatsHearer())
        self._server = server

    @contextlib.asynccontextmanager
    async def running(self, *, is_quick: bool = False, idle_timeout_s: float = 60.0) -> AsyncIterator[Endpoint]:
        settings = NatsSettings(idle_timeout_s=idle_timeout_s, connect_timeout_s=30.0, delivery_timeout_s=60.0)
        if is_quick:
            settings = replace(settings, connect_timeout_s=1.0, delivery_timeout_s=1.0, heartbeat_s=1.0)
        async with NatsEndpoint(settings, self._hearer, TlsFiles(("/",), ("/",))) as endpoint:
            yield endpoint
        assert self._hearer.defects == []

    async def topic(self, *, most_bytes: int = 0) -> Target:
        most = most_bytes + HEADERS_BYTES if most_bytes else None
        return self._target(await self._server.stream(max_msg_size=most))

    def missing(self) -> Target:
        return self._target("nowhere")

    def elsewhere(self, address: str) -> Target:
        return Target(f"nats://{address}", "nats-stream=x", "t")

    def stranger(self, target: Target) -> Target:
        return Target(f"nats://alice:{quote(NATS_PASSWORD, safe='')}@{self._server.address}", target.args, target.topic)

    def intruder(self) -> Target:
        return Target(f"nats://alice:{WRONG_PASSWORD}@{self._server.address}", "nats-stream=x", "t")

    async def arrivals(self, target: Target) -> Sequence[Arrived]:
        messages = await self._server.read(target.topic)
        return [_arrived({name: unquote(text) for name, text in e.headers.items()}, e.body) for e in messages]

    def _target(self, stream: str) -> Target:
        return Target(f"nats://{self._server.address}", f"nats-stream={stream}", stream)


# --------------------------------------------------------------------------------------------- a file


class FileOutlet:
    """A file, with a topic's name in each line for each target. Who holds its lock freezes it."""

    # So much that a file, which takes it in no time, is stopped and frozen while some of it is still to come.
    load, at_once, largest_bytes, has_addresses, hears_late = 20_000, 200, 1_000_000, False, False

    def __init__(self, folder: Path, kind: type[FileEndpoint] = FileEndpoint) -> None:
        self._kind = kind
        self._folder = folder / "files"
        self._folder.mkdir()
        self._names = itertools.count()
        self._endpoints: list[FileEndpoint] = []
        self._locks: list[TextIO] = []

    @contextlib.asynccontextmanager
    async def running(self, *, is_quick: bool = False, idle_timeout_s: float = 60.0) -> AsyncIterator[Endpoint]:
        endpoint = self._kind(Settings(), None, idle_s=idle_timeout_s, patience_s=1.0 if is_quick else 20.0)
        self._endpoints.append(endpoint)
        async with endpoint:
            yield endpoint

    async def topic(self, *, most_bytes: int = 0) -> Target:
        args = f"file-most-bytes={most_bytes}" if most_bytes else ""
        return Target(f"file://{self._file}", args, f"t{next(self._names)}")

    def missing(self) -> Target:
        return Target(f"file://{self._folder}", "", "t")

    def elsewhere(self, address: str) -> Target:
        return Target(f"file://{address}/t", "", "t")

    def stranger(self, target: Target) -> Target:
        return Target(target.uri, "file-sync=false", target.topic)

    def intruder(self) -> Target:
        return Target(f"file://alice:{WRONG_PASSWORD}@{self._file}", "", "t")

    async def arrivals(self, target: Target) -> Sequence[Arrived]:
        lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        return [
            Arrived(
                each["shard"],
                f"{each['incarnation']}:{each['position']}",
                f"{each['incarnation']}:{each['next']}",
                each["id"].encode(errors="surrogateescape"),
                each["body"].encode(errors="surrogateescape"),
            )
            for each in lines
            if each["topic"] == target.topic
        ]

    @property
    def opened(self) -> int:
        return sum(each.opened for each in self._endpoints)

    @property
    def closed(self) -> int:
        return sum(each.closed for each in self._endpoints)

    async def stop(self) -> None:
        self._folder.rename(self._away)

    async def start(self) -> None:
        self._away.rename(self._folder)

    async def freeze(self) -> None:
        lock = self._file.open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._locks.append(lock)

    def thaw(self) -> None:
        while self._locks:
            self._locks.pop().close()

    @property
    def _file(self) -> Path:
        return self._folder / "events"

    @property
    def _away(self) -> Path:
        return self._folder.with_name("away")
