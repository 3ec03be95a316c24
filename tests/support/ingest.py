"""An ingest server for tests, a store that answers as scripted, and requests to it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from multidict import CIMultiDict

from devkit.readers.samples import sample_value
from devkit.waits import PATIENT_S
from remora.config import IngestSettings, Settings
from remora.metrics import Telemetry
from remora.model.errors import RemoraError, TopicMoved, TopicNotSequenced, TopicUnknown
from remora.model.fan_out import FannedOut, TopicCopies, TopicRooms
from remora.model.ingest import IdempotencyKey, PublishResult, Removed, ReservedRoom, RoutedEvent
from remora.model.ledger import FormerQueue
from remora.model.notification import Definitions, Notification
from remora.model.shard import Origin, Shard
from remora.model.topic import SequenceState, Target, Topic
from remora.ports.credit import Bank, NoBank
from remora.ports.producer import IngestStore
from remora.process.host_load import HostLoad
from remora.process.sockets import ingest_sockets
from remora.servers.ingest import IngestServer, serve_ingest
from remora.servers.server import OfHost
from remora.servers.tokens import Tokens


def own_topic(name: str, **changes: Any) -> Topic:
    """A topic of remora's own, with a password in its endpoint."""
    given: dict[str, Any] = {"shards": 3, "id": f"{name}-1", "origin": Origin.REMORA}
    return Topic(name, "", name, Target("kafka://u:secret@broker:9092", "", f"{name}-events"), **given | changes)


class NoDefinitions:
    """Has no notifications."""

    async def definitions(self) -> Definitions:
        return Definitions()

    async def change(self, before: Notification | None, after: Notification | None) -> None:
        raise NotImplementedError


class NoMatching:
    """The ways in of events without a topic, which no test of a scripted store uses."""

    async def fan_out(
        self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None = None
    ) -> FannedOut:
        raise NotImplementedError

    def fan_out_soon(
        self, copies: Sequence[TopicCopies], answer: FannedOut, done: Callable[[FannedOut | Exception], None]
    ) -> bool:
        raise NotImplementedError

    async def fanned_out(self, once: IdempotencyKey) -> FannedOut | None:
        raise NotImplementedError

    async def announce(self, rooms: Sequence[TopicRooms], announcement: bytes) -> str:
        raise NotImplementedError

    async def announced(self, reservation: str, digest: bytes) -> bytes | FannedOut:
        raise NotImplementedError

    async def commit_announced(
        self, reservation: str, copies: Sequence[TopicCopies], answer: FannedOut, digest: bytes
    ) -> FannedOut:
        raise NotImplementedError

    async def abort_announced(self, reservation: str) -> None:
        raise NotImplementedError


class ScriptedStore(NoMatching):
    """Takes everything and keeps it in lists, or raises `error`; while `gate` is closed nothing is answered."""

    def __init__(self, *topics: Topic) -> None:
        self.catalog = self.own_topics = self.ingest = self
        self.notifications = NoDefinitions()
        self.own = {each.name: each for each in topics}
        self.published: list[tuple[Topic, list[RoutedEvent], IdempotencyKey | None]] = []
        self.reserved: list[list[ReservedRoom]] = []
        self.committed: list[tuple[str, list[RoutedEvent], bytes]] = []
        self.aborted: list[str] = []
        self.reached = SequenceState(tail=0, delivered=0)
        self.error: RemoraError | None = None
        self.moving = 0
        """How many requests more are told that their topic moved."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    @property
    def is_untouched(self) -> bool:
        """Whether no request got as far as to change anything."""
        return not (self.published or self.reserved or self.committed or self.aborted)

    async def _pass(self, topic: Topic) -> None:
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if (now := self.own.get(topic.name)) is None or now.id != topic.id:
            raise TopicUnknown(f"topic {topic.name} is another one by now")
        if now.generation != topic.generation or self.moving:
            self.moving = max(0, self.moving - 1)
            raise TopicMoved(f"topic {topic.name} has {now.shards} shards by now")

    async def publish(
        self, topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None = None
    ) -> PublishResult:
        await self._pass(topic)
        repeated = once is not None and any(once == earlier for _, _, earlier in self.published)
        if not repeated:
            self.published.append((topic, list(events), once))
        return PublishResult(len(events), repeated)

    async def reserve(self, topic: Topic, rooms: Sequence[ReservedRoom]) -> str:
        await self._pass(topic)
        self.reserved.append(list(rooms))
        return f"{topic.name}.{len(self.reserved)}"

    async def commit(
        self, topic: Topic, reservation: str, events: Sequence[RoutedEvent], digest: bytes
    ) -> PublishResult:
        await self._pass(topic)
        self.committed.append((reservation, list(events), digest))
        return PublishResult(len(events))

    async def abort(self, topic: Topic, reservation: str) -> None:
        await self._pass(topic)
        self.aborted.append(reservation)

    async def find(self, name: str) -> Topic | None:
        return self.own.get(name)

    async def create(self, topic: Topic) -> Topic:
        self.own[topic.name] = topic
        return topic

    async def change(self, topic: Topic) -> None:
        self.own[topic.name] = topic

    async def reshard(self, topic: Topic, shards: int) -> Topic:
        self.own[topic.name] = moved = replace(topic, shards=shards, generation=topic.generation + 1)
        return moved

    async def forget_former(self, topic: Topic) -> bool:
        return False

    async def former_queues(self, topic: Topic) -> Sequence[FormerQueue]:
        return ()

    async def remove(self, topic: Topic, *, discard: bool) -> Removed:
        del self.own[topic.name]
        return Removed(topic.shards, 0)

    async def sequence(self, topic: Topic) -> SequenceState:
        await self._pass(topic)
        if not topic.is_sequenced:
            raise TopicNotSequenced(f"topic {topic.name} numbers no events")
        return self.reached

    async def shards(self) -> Sequence[Shard]:
        return [shard for each in self.own.values() for shard in each.all_shards()]

    async def topics(self) -> Mapping[Shard, Topic]:
        return {each.first_shard: each for each in self.own.values()}

    async def changed(self) -> None:
        await asyncio.Event().wait()

    async def peek(self, shard: Shard) -> bytes | None:
        return None


class PromptStore(ScriptedStore):
    """The same, and requests to publish go the straight way to it: without a coroutine for each."""

    def publish_soon(
        self,
        topic: Topic,
        events: Sequence[RoutedEvent],
        once: IdempotencyKey | None,
        done: Callable[[PublishResult | Exception], None],
    ) -> None:
        def tell(task: asyncio.Future[PublishResult]) -> None:
            if not task.cancelled():
                error = task.exception()
                done(error if isinstance(error, Exception) else task.result())

        asyncio.ensure_future(self.publish(topic, events, once)).add_done_callback(tell)


@dataclass(frozen=True)
class Answer:
    """What a request got."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the problem that it is."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["code"])


@dataclass
class Site:
    """A running server, and how to ask it."""

    server: IngestServer
    telemetry: Telemetry
    session: aiohttp.ClientSession = field(repr=False)
    settings: Settings
    base: str = "http://remora"

    async def ask(
        self, method: str, path: str, body: bytes | Any = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request; what is neither bytes nor an iterator of such is sent as JSON."""
        data = body if isinstance(body, bytes) or hasattr(body, "__aiter__") else json.dumps(body).encode()
        if isinstance(data, bytes) and len(data) > 1 << 20:
            data = io.BytesIO(data)  # aiohttp warns of large ones
        given = CIMultiDict(headers or {})
        given.setdefault("Content-Type", "application/json")
        async with self.session.request(method, self.base + path, data=data, headers=given) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value; 0 where there is none."""
        return sample_value(self.telemetry.registry, name, labels) or 0.0


@asynccontextmanager
async def listening_ingest(
    settings: IngestSettings,
    store: IngestStore,
    telemetry: Telemetry,
    bank: Bank | None = None,
    load: HostLoad | None = None,
    on_tokens: Callable[[Tokens | None], None] = lambda _: None,
) -> AsyncIterator[IngestServer]:
    """A server with sockets of its own, as one worker under a supervisor has them."""
    with ingest_sockets(settings) as sockets:
        host = OfHost(load or HostLoad.alone(), bank or NoBank(), on_tokens=on_tokens)
        async with serve_ingest(settings, sockets, store, telemetry, host=host) as server:
            yield server


@asynccontextmanager
async def ingest_site(store: IngestStore, folder: Path, **settings: Any) -> AsyncIterator[Site]:
    """A server on a socket in the folder that gives its clients an hour, unless the settings say otherwise.

    Its limits are those of a `bank`, its place among the workers of a host is that of a `load`, and `on_tokens` is told
    its tokens.
    """
    bank, load = settings.pop("bank", None), settings.pop("load", None)
    on_tokens = settings.pop("on_tokens", lambda _: None)
    path = folder / "ingest.sock"
    usual: dict[str, Any] = {"listen": f"unix:{path}", "request_timeout_s": 3600.0, "idle_timeout_s": 3600.0}
    given = IngestSettings(**usual | settings)
    telemetry = Telemetry()
    async with listening_ingest(given, store, telemetry, bank, load, on_tokens) as server:
        on_socket = server.address.startswith("unix:")
        connector = aiohttp.UnixConnector(str(path)) if on_socket else aiohttp.TCPConnector(ssl=False)
        base = "http://remora" if on_socket else server.address
        timeout = aiohttp.ClientTimeout(total=PATIENT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            yield Site(server, telemetry, session, Settings(ingest=given), base)


def record(key: str = "k", **changes: Any) -> dict[str, Any]:
    """An event's record, as radosgw writes it."""
    return {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "eventTime": "2026-11-21T17:00:00.000000Z",
        "eventName": "ObjectCreated:Put",
        "eventId": f"id-{key}",
        "s3": {"bucket": {"name": "b"}, "object": {"key": key, "size": 1}},
    } | changes


def records(*keys: str) -> dict[str, Any]:
    """A document with a record for each key."""
    return {"Records": [record(key) for key in keys]}


def ndjson(*values: Any) -> bytes:
    """A line for each value."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
