"""What a supervisor and a worker tell each other: one JSON document a line, over a pair of connected sockets."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from typing import Literal, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry, samples

from remora.config.settings import Settings
from remora.config.traffic import ShapingSettings
from remora.model.caller import NOBODY, Caller
from remora.model.traffic import Priority

MOST_LINE = 256 << 20
"""A line longer than this is a defect: the metrics of 500 topics take about 4 MB."""


MOST_BEHIND = 64 << 10
"""With more bytes that the other end has not read, it is behind."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; a line's `type` is the name of its class."""


# ---------------------------------------------------------------------------------------- to the worker


class Start(Message, frozen=True, kw_only=True):
    """The first message: everything that a worker needs to begin."""

    number: int
    cookie: str
    settings: Settings
    listeners: dict[str, tuple[int, ...]]
    """Descriptors of the sockets that each server listens on, by the server's name."""
    load: int
    """The descriptor of the memory in which workers write how much of the ingest server's bounds they use."""
    workers: int
    """How many have a place there; this one's comes from its number, which counts from 1."""
    credit: int = -1
    """The descriptor of the memory in which credit to send is dealt out; -1: everything passes."""
    groups: dict[str, int] = {}
    """The slots of the groups there, by name."""
    dead: tuple[str, ...]
    """Cookies of workers that have ended without giving their locks back."""
    sweeps: bool
    """Whether this worker looks for locks that the host's earlier workers left."""
    drains: bool
    group_size: int = 1
    """How many workers start together, this one included."""
    replaces: bool = False
    """Whether it starts in the place of another: then the store has been in use."""


class Finish(Message, frozen=True, kw_only=True):
    """Take nothing more, finish what is in flight, give the locks back, and end."""


class StopNow(Message, frozen=True, kw_only=True):
    """The time for finishing is over: give the locks back, and end."""


class Reload(Message, frozen=True, kw_only=True):
    """Use what can change of these settings, and read tokens and certificates again."""

    settings: Settings
    groups: dict[str, int] = {}
    """The slots of the groups that credit is dealt out to, by name."""


class Groups(Message, frozen=True, kw_only=True):
    """The groups that credit is dealt out to, with their slots, and how traffic is shaped from now on."""

    groups: dict[str, int]
    shaping: ShapingSettings


class Drain(Message, frozen=True, kw_only=True):
    """Hold nothing and take nothing from now on, or take part again."""

    on: bool


class Release(Message, frozen=True, kw_only=True):
    """Use a destination that is in quarantine again, or all of them where none is named."""

    destination: str | None
    caller: Caller = NOBODY
    """Who asked for it."""


class Dead(Message, frozen=True, kw_only=True):
    """Workers that have ended without giving their locks back."""

    cookies: tuple[str, ...]


class UseStore(Message, frozen=True, kw_only=True):
    """A command on this host has used the store: that much is charged to this worker."""

    priority: Priority
    nbytes: int


AskedFor: TypeAlias = Literal["use", "status", "metrics", "flows", "addresses"]


class Ask(Message, frozen=True, kw_only=True):
    """A question, which a `Reply` of the same number answers: with a `Use`, a status, a list of `Family` or of
    `CreditFlow`, or addresses by the names of hosts."""

    number: int
    what: AskedFor


ToWorker: TypeAlias = Start | Finish | StopNow | Reload | Groups | Drain | Release | Dead | UseStore | Ask


# ------------------------------------------------------------------------------------ to the supervisor


class Ready(Message, frozen=True, kw_only=True):
    """The store is open, and the worker begins to work."""


class Failed(Message, frozen=True, kw_only=True):
    """The worker cannot work, and ends with this exit code."""

    code: int
    reason: str


class Heartbeat(Message, frozen=True, kw_only=True):
    """The worker's event loop goes round; `is_alive` is whether the worker's own loops do anything at all."""

    is_alive: bool
    store: str
    """What is wrong with the store; empty while it answers."""
    held_shards: int
    failing_shards: int


class WantGroup(Message, frozen=True, kw_only=True):
    """Listings are to be metered in a group that the worker has not heard of."""

    group: str


class Shares(Message, frozen=True, kw_only=True):
    """What the worker may have of the limits that all workers of the store share."""

    shares: dict[str, int]
    """Bytes per second, by group."""


class Reply(Message, frozen=True, kw_only=True):
    """The answer to a question, as JSON."""

    number: int
    body: msgspec.Raw


ToSupervisor: TypeAlias = Ready | Failed | Heartbeat | WantGroup | Shares | Reply


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """An exemplar: one of the events behind a value, by its labels, and when it was, in seconds since the epoch."""

    labels: dict[str, str]
    value: float
    at: float


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric."""

    name: str
    labels: dict[str, str]
    value: float
    exemplar: Shown | None = None


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric with all its values."""

    name: str
    kind: str
    text: str
    samples: list[Sample]


# --------------------------------------------------------------------------------------------- the ends


class Pipe:
    """One end. What cannot be sent because the other end is gone is dropped: its reader says so."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def opened(cls, sock: socket.socket) -> Pipe:
        """The end that a connected socket is."""
        return cls(*await asyncio.open_connection(sock=sock, limit=MOST_LINE))

    def send(self, message: Message) -> None:
        """Send at once, or as soon as the other end reads."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    @property
    def is_behind(self) -> bool:
        """Whether the other end reads more slowly than is sent; what is sent all the same is kept until it does."""
        return self._writer.transport.get_write_buffer_size() > MOST_BEHIND

    async def line(self) -> bytes | None:
        """The next line; None when the other end is closed."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return line if line.endswith(b"\n") else None

    async def sent(self) -> None:
        """Return when what was sent is on its way."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        """Close it, whatever was not sent yet."""
        self._writer.transport.abort()


def families(registry: CollectorRegistry) -> list[Family]:
    """All that a registry exports. A value that is no number is left out: JSON has none for it."""
    return [
        Family(
            family.name,
            family.type,
            family.documentation,
            [_sample(each) for each in family.samples if math.isfinite(each.value)],
        )
        for family in registry.collect()
    ]


def _sample(found: samples.Sample) -> Sample:
    shown = found.exemplar
    exemplar = Shown(dict(shown.labels), shown.value, float(shown.timestamp or 0)) if shown else None
    return Sample(found.name, found.labels, found.value, exemplar)
