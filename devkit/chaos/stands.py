"""The two kinds of store that a run can have: their topics, and what a host's configuration says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from devkit.bench.embedded import own_topic
from remora.config import SqliteSettings
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.store import ShardStore
from remora.storage.sqlite import SqliteStore

QUEUE_BYTES = 32_000_000
EXACTLY_ONCE = "remora-delivery=exactly-once"
OWN_SHARDS = 5


@dataclass(frozen=True)
class Fed:
    """One topic of a run: how it is delivered, its first shards, and how it gets its events."""

    name: str
    is_exact: bool
    shards: Sequence[Shard]
    takes_ingest: bool
    uri: str = ""
    args: str = ""
    by_gateways: Sequence[Shard] = ()
    """Those shards that are also filled in two phases."""

    @property
    def is_in_kafka(self) -> bool:
        return self.uri.startswith("kafka:")


@dataclass(frozen=True)
class Stand:
    """A store that is open, with its topics."""

    store: ShardStore
    sections: Mapping[str, Mapping[str, object]]
    topics: Sequence[Fed]
    ballast: Path | None = None
    """A file that can fill the disk under the store, where that is a disk of its own."""


@dataclass(frozen=True)
class Mode:
    """How topics are delivered: the endpoint, its arguments, and whether exactly once."""

    uri: str
    args: str = ""

    @property
    def is_exact(self) -> bool:
        return EXACTLY_ONCE in self.args


@dataclass(frozen=True)
class Wanted:
    """The topics to make, by a mode's name."""

    run: str
    modes: Mapping[str, Mode]
    spills: bool = False
    """Whether gateways' queues are small, and some of them spill, where the store can."""
    reshards: bool = False
    """Whether topics of remora's own get other numbers of shards: gateways then fill none of these queues, as they know
    no layout."""


@asynccontextmanager
async def sqlite(folder: Path, wanted: Wanted) -> AsyncIterator[Stand]:
    """The embedded store: topics of remora's own that number their events; some are filled in two phases, too."""
    settings = SqliteSettings(directory=str(folder / "store"), files=4, queue_bytes=QUEUE_BYTES)
    sections = {"store": {"kind": "sqlite"}, "sqlite": {"directory": settings.directory}}
    gateways = 0 if wanted.reshards else 2
    async with SqliteStore(settings) as store:
        topics = [await own(store, wanted, name, by_gateways=gateways, is_sequenced=True) for name in wanted.modes]
        ballast = folder / "store" / "ballast" if (folder / "store").is_mount() else None
        yield Stand(store, sections, topics, ballast)


async def own(store: ShardStore, wanted: Wanted, name: str, by_gateways: int = 0, *, is_sequenced: bool = False) -> Fed:
    """A topic of remora's own; one that `is_sequenced` numbers its events."""
    full_name, mode = f"{wanted.run}-{name}", wanted.modes[name]
    fed = Fed(full_name, mode.is_exact, (), takes_ingest=True, uri=mode.uri, args=mode.args)
    topic = own_topic(full_name, mode.uri, OWN_SHARDS)
    target = Target(mode.uri, fed.args, full_name)
    made = await store.own_topics.create(dataclasses.replace(topic, target=target, is_sequenced=is_sequenced))
    shards = made.all_shards()
    return dataclasses.replace(fed, shards=shards, by_gateways=shards[:by_gateways])
