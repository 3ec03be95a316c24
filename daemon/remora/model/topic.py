"""A topic's attributes, as its metadata or an entry's own copy has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from remora.model.shard import Origin, Shard

UNSET = 0xFFFF_FFFF
"""The value with which radosgw says 'use the gateway's global option' in the three limits."""

MOST_SHARDS = 1024
"""The most shards that a topic of remora's own has."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
"""Names of topics of remora's own. Without a dot, so that `a.1` can only be the second queue of topic `a`, and without
an `@`, so that `a@1` can only be a queue of its generation 1."""

GENERATION_MARK = "@"
"""Stands in a queue's name before its generation, where that is not 0."""


class LayoutState(StrEnum):
    """What a layout does.

    `preparing`: its queues are made, and it takes nothing yet. `open`: it takes events. `sealed`: it takes what room
    was reserved for before, and is delivered. `shut`: nothing lands in it any longer, and it is delivered.
    """

    PREPARING = "preparing"
    OPEN = "open"
    SEALED = "sealed"
    SHUT = "shut"


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """One division of a topic into shards. A change of their number makes another one, of the next generation."""

    generation: int
    shards: int
    state: LayoutState


@dataclass(frozen=True, slots=True)
class TopicHold:
    """Since when a topic is held, until when, and why; times in Unix seconds.

    Without `until` it lasts until the topic is resumed. `topic_id` is that of a topic of remora's own, so that one
    which is made anew under the same name is not held; a topic of radosgw's has none.
    """

    since: float
    until: float | None = None
    reason: str = ""
    topic_id: str = ""

    def lasts(self, now: float) -> bool:
        """Whether its end has yet to come."""
        return self.until is None or now < self.until


class Source(StrEnum):
    """Where a topic's attributes were read."""

    METADATA = "metadata"
    ENTRY = "entry"


class Delivery(StrEnum):
    """How often a reader sees each event of a topic.

    `at-least-once`: some may come again after a failure. `exactly-once`: a reader of committed records
    (`isolation.level=read_committed`) sees each once.
    """

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that decides where and how a record is sent; equal targets may share connections.

    `uri` and `args` may hold credentials: never log or export this value, use `redacted`.
    """

    uri: str
    args: str
    topic: str

    @property
    def scheme(self) -> str:
        """The URI's scheme in lower case, empty where there is none."""
        return self.uri.partition("://")[0].lower() if "://" in self.uri else ""

    @property
    def redacted(self) -> str:
        """The URI without user, password and query, fit for logs, status and metrics."""
        return _redacted(self.uri)

    def __repr__(self) -> str:
        return f"Target({self.redacted!r}, topic={self.topic!r})"


@dataclass(frozen=True, slots=True)
class Topic:
    """A persistent topic: its queues' base name, where it delivers, and its entries' lifetime.

    `time_to_live_s`, `max_retries` and `retry_sleep_s` are None where the topic leaves them to the global default; an
    explicit 0 means for ever, without limit, without pause. `opaque_data` is None where each entry keeps its own
    (attributes that were read from an entry). `capacity_bytes` is the most that each queue may hold, None for the
    store's own default.

    A topic of remora's own has an `id`, a new one each time it is made, and refuses new events while it is `closed` to
    be drained. One that `is_sequenced`, for its life, numbers its events over all shards in the order of commits.

    `shards` are those of the layout that takes events, which is of this `generation`: 0 until the topic is re-sharded.
    `former` are the layouts before it whose entries are not all delivered, oldest first. `coming` is the one that takes
    events when a change that has begun is finished.
    """

    name: str
    tenant: str
    queue: str
    target: Target
    persistent: bool = True
    opaque_data: bytes | None = None
    time_to_live_s: int | None = None
    max_retries: int | None = None
    retry_sleep_s: int | None = None
    source: Source = Source.METADATA
    shards: int = 1
    origin: Origin = Origin.RADOSGW
    id: str = ""
    closed: bool = False
    is_sequenced: bool = False
    generation: int = 0
    former: tuple[TopicLayout, ...] = ()
    capacity_bytes: int | None = None
    coming: TopicLayout | None = None
    owner: str = ""
    """Whose topic of radosgw's it is: `tenant$user`, `user` or an account; empty where only its entries are known."""

    def __hash__(self) -> int:
        """What nearly always differs where topics do: each request looks up what is known of its topic."""
        return hash((self.name, self.tenant, self.id))

    @property
    def first_shard(self) -> Shard:
        """The shard that names the topic."""
        return Shard(self.queue, self.origin)

    def shard(self, number: int) -> Shard:
        """The shard of this number of the layout that takes events: `t`, `t.1` ..., or `t@1`, `t@1.1` ..."""
        return shard_of(self.queue, number, self.origin, self.generation)

    @property
    def layouts(self) -> tuple[TopicLayout, ...]:
        """All layouts that events are in or go to, oldest first: the last one takes them."""
        return (*self.former, TopicLayout(self.generation, self.shards, LayoutState.OPEN))

    def shards_of(self, layout: TopicLayout) -> tuple[Shard, ...]:
        """The shards of one of its layouts, ordered by number."""
        numbers = range(layout.shards)
        return tuple(shard_of(self.queue, number, self.origin, layout.generation) for number in numbers)

    def open_shards(self) -> tuple[Shard, ...]:
        """The shards that take events, ordered by number."""
        return tuple(map(self.shard, range(self.shards)))

    def all_shards(self) -> tuple[Shard, ...]:
        """Every shard that has a queue, by layout and number."""
        return (*self.former_shards(), *self.open_shards()) if self.former else self.open_shards()

    def former_shards(self) -> tuple[Shard, ...]:
        """The shards that take no events and are still delivered, by layout and number."""
        return tuple(shard for each in self.former for shard in self.shards_of(each))

    @property
    def label(self) -> str:
        """The one name of this topic in logs, metrics and commands: `tenant:name`, or `name` alone."""
        return f"{self.tenant}:{self.name}" if self.tenant else self.name


@dataclass(frozen=True, slots=True)
class SequenceState:
    """How far a topic's sequence has come.

    `tail` is the last number given to an event, 0 before the first. Each event up to `delivered` has left its queue: it
    is at the endpoint, or a dead letter, or was given up.
    """

    tail: int
    delivered: int


def shard_of(queue: str, number: int, origin: Origin, generation: int = 0) -> Shard:
    """The shard of this number and generation of the topic whose first queue is `queue`."""
    first = f"{queue}{GENERATION_MARK}{generation}" if generation else queue
    return Shard(f"{first}.{number}" if number else first, origin)


def own_topic_name(queue: str) -> str:
    """The topic of remora's own that a queue of this name belongs to, as its name alone says."""
    return queue.partition(".")[0].partition(GENERATION_MARK)[0]


def generation_of(queue: str) -> int:
    """The generation of a queue of remora's own, as its name alone says."""
    number = queue.partition(".")[0].partition(GENERATION_MARK)[2]
    return int(number) if number.isdecimal() else 0


def number_of(queue: str) -> int:
    """The number of a queue of remora's own in its layout, as its name alone says."""
    number = queue.partition(".")[2]
    return int(number) if number.isdecimal() else 0


@lru_cache(maxsize=4096)
def _redacted(uri: str) -> str:
    """An URI without its secrets, once worked out: each push and each look at thousands of shards asks for it."""
    scheme, sep, rest = uri.partition("://")
    if not sep:
        return ""
    authority = rest.replace("?", "/").replace("#", "/").split("/")[0]
    # A '/' inside a badly quoted password would otherwise leave part of it in the authority.
    hosts = rest.rpartition("@")[2].split("/")[0].split("?")[0] if "@" in rest else authority
    return f"{scheme}://{','.join(map(_without_secret, hosts.split(',')))}"


def _without_secret(host: str) -> str:
    """A host with its port; a port that is no number is part of a password behind a forgotten '@', and is replaced."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]") or port.isdecimal():
        return host
    return f"{name.split(':')[0]}:***"
