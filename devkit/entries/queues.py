"""Queues that tests fill as a radosgw does, and the metadata that tells what their topics are."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from devkit.clusters.ceph import Gateway, reached
from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.entries import raw_entry
from devkit.processes.daemon import PATIENT, Daemon, Options, merged, rados_section
from devkit.readers.consumer import Verdict, check, read_until
from remora.codec.ceph import FieldWriter
from remora.codec.queue_ops import HEAD_SIZE, decode_head
from remora.config import RadosSettings
from remora.model.shard import Shard
from remora.model.topic import UNSET
from remora.storage.rados import RadosStore

_TOPICS = "pubsub."
"""The object of the empty tenant, as radosgw writes it up to Reef."""

PER_COMMIT = 50

LEASE_S = 5.0
"""What `quick` configures: long enough for a machine that is busy, short enough to wait for."""


@dataclass(frozen=True)
class Described:
    """A persistent topic in the zone's metadata; it delivers to the Kafka topic of its own name."""

    name: str
    uri: str
    args: str = ""


def metadata(topics: Sequence[Described]) -> bytes:
    """The object that describes these topics, of the version that Reef writes."""

    def topic(each: Described) -> bytes:
        def destination(w: FieldWriter) -> None:
            w.text("").text("").text(each.uri).text(each.args).text(each.name).u8(0).u8(1)

        def body(w: FieldWriter) -> None:
            w.struct(2, 1, lambda owner: owner.text("").text("").text("")).text(each.name)
            w.struct(5, 1, destination).text(f"arn:aws:sns:default::{each.name}").text("")

        return FieldWriter().struct(3, 1, body).encoded()

    def everything(w: FieldWriter) -> None:
        w.u32(len(topics))
        for each in topics:
            w.text(each.name).raw(topic(each))

    return FieldWriter().struct(2, 2, everything).encoded()


def metadata_object(queue: str, uri: str, topic: str) -> bytes:
    """The object of one topic as Squid writes it; here it may deliver to a Kafka topic of another name."""

    def destination(w: FieldWriter) -> None:
        w.text("").text("").text(uri).text("").text(topic).u8(0).u8(1).u32(UNSET).u32(UNSET).u32(UNSET).text(queue)

    def body(w: FieldWriter) -> None:
        w.struct(2, 1, lambda owner: owner.text("").text("").text("")).text(queue)
        w.struct(7, 1, destination).text(f"arn:aws:sns:default::{queue}").text("").text("")

    return FieldWriter().struct(4, 1, body).encoded()


class Queues:
    """The queues of one test, in a namespace of its own, beside the topics that they belong to."""

    def __init__(self, settings: RadosSettings, gateway: Gateway, store: RadosStore) -> None:
        self.settings = settings
        self.gateway = gateway
        self.store = store
        self._topics: dict[str, Described] = {}

    # ------------------------------------------------------------------------------------ topics, queues

    def make(self, uri: str, args: str = "", *, name: str = "", ring_bytes: int = 32 << 20) -> str:
        """A topic with an empty queue; returns the name of both, which the Kafka topic is to have too."""
        name = name or f"t-{uuid.uuid4().hex[:10]}"
        self.gateway.make_queue(name, ring_bytes)
        self.describe(Described(name, uri, args))
        return name

    def describe(self, *topics: Described) -> None:
        """Write these topics' metadata, or change it."""
        self._topics |= {each.name: each for each in topics}
        self.gateway.ioctx.write_full(_TOPICS, metadata(list(self._topics.values())))

    def delete_object(self, queue: str) -> None:
        """Delete the queue's object alone; its registry key and metadata stay."""
        self.gateway.ioctx.remove_object(queue)

    # ---------------------------------------------------------------------------------------- entries

    async def commit(self, queue: str, *entries: bytes) -> None:
        """Reserve and commit entries, some dozens at a time."""
        shard = Shard(queue)
        for i in range(0, len(entries), PER_COMMIT):
            part = entries[i : i + PER_COMMIT]
            reservation = await self.store.two_phase.reserve(shard, len(part), sum(map(len, part)))
            await self.store.two_phase.commit(shard, reservation, part)

    async def fill(self, queue: str, count: int, *, start: int = 0, keys: int = 20, padding: int = 0) -> None:
        """Commit `count` events over some keys, numbered from `start` on; each is the newest of its key."""
        await self.commit(queue, *(self.event(queue, i, keys, padding) for i in range(start, start + count)))

    def event(self, queue: str, number: int, keys: int = 20, padding: int = 0) -> bytes:
        """The entry number `number`, committed now."""
        of = self._topics[queue]
        return raw_entry(
            f"k{number % keys}", number, uri=of.uri, args=of.args, topic=queue, created=time.time(), padding=padding
        )

    @contextlib.asynccontextmanager
    async def under_load(self, queue: str, *, start: int = 0, pause_s: float = 0.02) -> AsyncIterator[Load]:
        """Commit events for as long as the block runs; what it committed is known afterwards."""
        load = Load(start)
        load.task = asyncio.create_task(self._load(queue, load, pause_s), name=f"load {queue}")
        try:
            yield load
        finally:
            await load.finish()

    async def _load(self, queue: str, load: Load, pause_s: float) -> None:
        while not load.over.is_set():
            await self.fill(queue, 10, start=load.end)
            load.end += 10
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(load.over.wait(), pause_s)

    # ------------------------------------------------------------------------------------------ looks

    def front(self, queue: str) -> str:
        """Where the queue's oldest entry begins, as its head says."""
        return str(decode_head(self.gateway.ioctx.read(queue, HEAD_SIZE)).front)

    async def contents(self, queue: str) -> list[bytes]:
        """All entries that wait."""
        return [entry async for _, entry in self.store.inspection.dump(Shard(queue))]

    async def drained(self, queue: str, within_s: float = 180.0) -> None:
        """Return when nothing waits any more."""
        deadline = time.monotonic() + within_s
        while (await self.store.inspection.stats(Shard(queue))).entries:
            assert time.monotonic() < deadline, f"{queue} was not empty within {within_s} s"
            await asyncio.sleep(0.05)


@dataclass
class Load:
    """How far a load has come: the events from its start up to `end` are committed."""

    end: int
    over: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def finish(self) -> None:
        """Commit nothing more; `end` stands when this returns."""
        self.over.set()
        if self.task is not None:
            await self.task


@pytest.fixture
async def queues(settings: RadosSettings, gateway: Gateway, namespace: str) -> AsyncIterator[Queues]:
    """Queues to fill, in a zone whose queues and topics lie in a namespace of this test alone."""
    beside = f"default.rgw.log:{namespace}"
    own = replace(settings, log_pool=beside, topics_pool=beside)
    async with reached(own) as store:
        yield Queues(own, gateway, store)


def quick(queues: Queues, **sections: Mapping[str, object]) -> Options:
    """A daemon's configuration for these queues, with short times; `sections` say what is to be otherwise."""
    found: Options = {
        "supervisor": {"watchdog": "4s"},
        "store": {"kind": "rados"},
        "ingest": {"listen": ""},
        "rados": rados_section(queues.settings) | {"op_timeout": "1500ms"},
        "ownership": {
            "lease": f"{LEASE_S:g}s",
            "renew_interval": "1500ms",
            "trust_margin": "500ms",
            "discovery_interval": "500ms",
        },
        "delivery": {"retry_cap": "1s", "configuration_recheck": "1s"},
        "kafka": {"delivery_timeout": "5s", "connect_timeout": "3s", "ca_directories": "/"},
    }
    return merged(found, sections)


def calm(queues: Queues, **sections: Mapping[str, object]) -> Options:
    """As `quick`, for tests in which nothing is away: nothing is lost, tried again or sent twice for being slow."""
    times = {
        "rados": {"op_timeout": "60s", "mount_timeout": "60s"},
        "ownership": {"lease": "10m", "renew_interval": "2m", "trust_margin": "5s"},
        "kafka": {"connect_timeout": "60s"},
    }
    return quick(queues, **merged(merged(PATIENT, times), sections))


def one_voice(**log: object) -> Options:
    """Options of one worker that says each thing once: two may each say it of a queue that they pass on."""
    return {"supervisor": {"workers": 1}, "log": {"repeat_interval": "1h", **log}}


async def a_topic(queues: Queues, kafka: Kafka) -> str:
    """A topic of Kafka with a queue for it."""
    return queues.make(f"kafka://{kafka.address}", name=await create_topic(kafka.address))


async def delivers(daemon: Daemon, topic: str, at_least: int, timeout_s: float = 120.0) -> None:
    """Return when a daemon has had this many acknowledgements for a topic since its start."""

    async def enough() -> bool:
        return await daemon.metric("remora_delivered_entries_total", topic=topic) >= at_least

    await daemon.until(enough, f"{at_least} deliveries", timeout_s)


async def numbered(address: str, topic: str, end: int, within_s: float = 180.0, *, committed: bool = False) -> Verdict:
    """The verdict on a topic as soon as all events below `end` are there, whose ids are their numbers."""
    records = await read_until(
        address, topic, lambda found: len({each.event_id for each in found}) >= end, within_s, committed=committed
    )
    return check(records, [f"id-{i}" for i in range(end)], lambda each: each.event_id)


def assert_whole(verdict: Verdict) -> None:
    """Everything is there, in order, without a gap; some of it may be there twice."""
    assert_clean(replace(verdict, duplicated=[]))


def assert_clean(verdict: Verdict) -> None:
    """Everything is there, in order, without a gap, and once."""
    assert verdict.is_clean, verdict
