"""Requests to store events that concern several queues or that may be repeated, each in an object of its own.

Object `remora.request.<name>` in remora's namespace has what is asked for as its data, and in xattr `remora.state`
what has become of it. Each change of the state compares it with the one before in the same operation:

    reserved --> decided --> done
        \\--> ended           (aborted, or expired)

A request that is `decided` will be carried out, whatever happens to who decided it.

Object `remora.requests` is the agenda: an omap key `<stage>/<when>/<name>` for each request that somebody may have
to look after, and from when on, in ms since the epoch. It is written before its request is, so that none is unknown:

* `open`: decided, or about to be; to be carried out in case that whoever does it has stopped.
* `held`: room is reserved; to be ended, since by then it is too old.
* `kept`: done or ended, and remembered for whoever repeats it; to be removed.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from remora.model.errors import StoreError
from remora.model.ingest import ReservedRoom
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic
from remora.storage.librados import Operation, ReadOp, WriteOp
from remora.storage.rados.part import RadosPart
from remora.storage.rados.refusals import OWN, MissingError, Refusals

_AGENDA = "remora.requests"
_OBJECT = "remora.request."
_STATE = "remora.state"
_VERSION = 1
_FIRST_READ = 64 << 10
_PAGE = 256
_KEY = re.compile(r"(open|held|kept)/([0-9]{15})/(.+)")

_GONE: Refusals = MappingProxyType({**OWN, errno.ENOENT: (MissingError, "there is no such request")})


class State(StrEnum):
    """What has become of a request."""

    RESERVED = "reserved"
    DECIDED = "decided"
    DONE = "done"
    ENDED = "ended"


class Stage(StrEnum):
    """What a request is on the agenda for."""

    OPEN = "open"
    HELD = "held"
    KEPT = "kept"


class Part(msgspec.Struct, frozen=True):
    """Some events of a request, next to each other in one shard, that are committed together.

    They have a reservation of the queue's own, and their payloads for as long as those are needed. The parts of a
    shard are committed one after the other.
    """

    shard: int
    reservation: int
    entries: int
    payloads: list[bytes] = []


class Request(msgspec.Struct, frozen=True):
    """A request as it is stored. A newer version may add fields, which are skipped, but never change these.

    `rooms` are of a reservation, `events` and `digest` of what was decided. Only a request that can be `repeated` is
    remembered for long. Times are ms since the epoch by the clock of whoever made or decided it.
    """

    version: int
    topic: str
    topic_id: str
    made_ms: int
    parts: list[Part]
    repeated: bool = True
    rooms: list[ReservedRoom] = []
    decided_ms: int = 0
    digest: bytes = b""
    events: int = 0

    def decided(self, parts: list[Part], digest: bytes) -> Request:
        """The request with what is to be stored."""
        events = sum(len(part.payloads) for part in parts)
        return msgspec.structs.replace(self, parts=parts, decided_ms=now_ms(), digest=digest, events=events)

    def shard(self, part: Part) -> Shard:
        """The queue that a part is about."""
        return Shard(f"{self.topic}.{part.shard}" if part.shard else self.topic, Origin.REMORA)

    def queues(self) -> dict[Shard, list[tuple[str, Part]]]:
        """The parts of each queue, in order, each with what tells it from the others."""
        found: dict[Shard, list[tuple[str, Part]]] = {}
        for number, part in enumerate(self.parts):
            found.setdefault(self.shard(part), []).append((str(number), part))
        return found

    def slim(self) -> Request:
        """What has to be remembered when it is done or ended."""
        parts = [msgspec.structs.replace(part, payloads=[]) for part in self.parts]
        return msgspec.structs.replace(self, parts=parts, rooms=[])


class Known(NamedTuple):
    """A request and its state at one moment."""

    request: Request
    state: State


class Entry(NamedTuple):
    """A key of the agenda."""

    stage: Stage
    due_ms: int
    name: str

    @property
    def key(self) -> str:
        return f"{self.stage}/{self.due_ms:015d}/{self.name}"

    @property
    def overdue_s(self) -> float:
        """For how long it should have been looked after; less than 0 for as long as it need not be."""
        return (now_ms() - self.due_ms) / 1000


_decoder = msgspec.msgpack.Decoder(Request)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def new_request(
    topic: Topic, parts: list[Part], rooms: Sequence[ReservedRoom] = (), *, repeated: bool = True
) -> Request:
    """A request that is made now."""
    return Request(_VERSION, topic.name, topic.id, now_ms(), parts, repeated, list(rooms))


class Requests(RadosPart):
    """Stores requests, and what is to be done about them."""

    # --- the requests ----------------------------------------------------------------------------------

    async def load(self, name: str) -> Known | None:
        """The request as it is now; None when there is none."""
        size = _FIRST_READ
        while True:
            operation = ReadOp().assert_exists()
            content, xattrs = operation.read(0, size), operation.xattrs()
            try:
                await self._run(operation, name, f"reading request {name}")
            except MissingError:
                return None
            if len(content.data) < size:
                return _known(name, content.data, xattrs.values.get(_STATE, b""))
            size *= 8

    async def make(self, name: str, request: Request, state: State) -> None:
        """Store a new request. ExistsError when there is one of this name."""
        operation = WriteOp().create(exclusive=True)
        operation.write_full(msgspec.msgpack.encode(request)).set_xattr(_STATE, state)
        await self._run(operation, name, f"storing request {name}")

    async def change(self, name: str, request: Request, old: State, new: State) -> None:
        """Replace a request. MismatchError when its state is not `old`, MissingError when it is gone."""
        operation = WriteOp().assert_exists().assert_xattr(_STATE, old)
        operation.write_full(msgspec.msgpack.encode(request)).set_xattr(_STATE, new)
        await self._run(operation, name, f"storing request {name}")

    async def remove(self, name: str) -> None:
        """Remove the request; no error when it is gone."""
        try:
            await self._run(WriteOp().assert_exists().remove(), name, f"removing request {name}")
        except MissingError:
            return

    async def _run(self, operation: Operation, name: str, what: str) -> None:
        await self._connection.run(operation, _OBJECT + name, what, _GONE, self._own)

    # --- the agenda ------------------------------------------------------------------------------------

    async def note(self, entry: Entry) -> None:
        """Put a request on the agenda."""
        operation = WriteOp().create(exclusive=False).set_omap({entry.key: b""})
        await self._run_agenda(operation)

    async def move(self, entries: Sequence[Entry], to: Entry | None) -> None:
        """Take entries off the agenda, and put another one on it, if any, in the same operation."""
        operation = WriteOp().create(exclusive=False).remove_omap([entry.key for entry in entries])
        if to is not None:
            operation.set_omap({to.key: b""})
        await self._run_agenda(operation)

    async def agenda(self) -> dict[Stage, list[Entry]]:
        """The oldest entries of each stage, so many of them at most."""
        operation = ReadOp().assert_exists()
        pages = {stage: operation.omap_page("", f"{stage}/", _PAGE) for stage in Stage}
        try:
            await self._run_agenda(operation)
        except MissingError:
            return {stage: [] for stage in Stage}
        return {stage: list(_entries(page.values)) for stage, page in pages.items()}

    async def _run_agenda(self, operation: Operation) -> None:
        await self._connection.run(operation, _AGENDA, f"looking into {_AGENDA}", OWN, self._own)


def _entries(keys: dict[str, bytes]) -> Iterator[Entry]:
    for key in keys:
        if match := _KEY.fullmatch(key):
            stage, due_ms, name = match.groups()
            yield Entry(Stage(stage), int(due_ms), name)


def _known(name: str, data: bytes, state: bytes) -> Known:
    try:
        return Known(_decoder.decode(data), State(state.decode("ascii", "replace")))
    except (msgspec.MsgspecError, ValueError) as exc:
        raise StoreError(f"request {name} cannot be read: {exc}") from exc
