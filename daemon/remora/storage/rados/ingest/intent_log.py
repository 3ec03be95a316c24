"""The intent log: requests to store events that take several queues or may be repeated, one object each.

Such a request is a two-phase commit whose participants are queues. Object `remora.request.<name>` in remora's namespace
(`remora.fanout.<name>` where it is for several topics, see FanOutEnvelope) holds the intent as its data and its state
in xattr `remora.state`. Each change of the state compares the state before in the same operation:

    prepared --> committed --> completed
        \\--> aborted

`prepared`: each queue has room reserved. `committed`: the events will be stored, whichever process stops. `completed`:
they are stored. `aborted`: the room was given back, on request or because no commit came in time. The object and the
xattr keep the values `reserved`, `decided`, `done` and `ended`.

`schedule.py` says which intents have to be looked at, and when.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from remora.model.errors import StoreDamaged, StoreError
from remora.model.ingest import ReservedRoom
from remora.model.shard import Origin, Shard
from remora.model.topic import generation_of, own_topic_name, shard_of
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import OWN, MissingError, Refusals

_STATE = "remora.state"
_FIRST_READ = 64 << 10

_GONE: Refusals = MappingProxyType({**OWN, errno.ENOENT: (MissingError, "there is no such request")})


class IntentState(StrEnum):
    """The state of an intent, by the value that is stored."""

    PREPARED = "reserved"
    COMMITTED = "decided"
    COMPLETED = "done"
    ABORTED = "ended"


class IntentPart(msgspec.Struct, frozen=True):
    """Consecutive events of one shard that one operation commits.

    `reservation` is the queue's own, for `entries` entries; `payloads` are kept as long as they are needed. The parts
    of a shard are committed one after the other.
    """

    shard: int
    reservation: int
    entries: int
    payloads: list[bytes] = []


class Logged(Protocol):
    """What the log keeps of a request: an intent, or one for each of several topics.

    `OBJECTS` begins the names of the objects, and `SCHEDULE` is the schedule's. `events` counts what is stored.
    """

    OBJECTS: ClassVar[str]
    SCHEDULE: ClassVar[str]
    VERSION: ClassVar[int]
    OF_SEVERAL_TOPICS: ClassVar[bool]

    @property
    def version(self) -> int: ...
    @property
    def made_ms(self) -> int: ...
    @property
    def decided_ms(self) -> int: ...
    @property
    def repeated(self) -> bool: ...
    @property
    def events(self) -> int: ...
    @property
    def members(self) -> Sequence[tuple[str, Intent]]:
        """The intents, each with what its marks have behind the request's name."""
        ...

    def slim(self, moved: frozenset[str] = frozenset()) -> Self:
        """The request without payloads and rooms: what is retained of one that is completed or aborted. `moved` has
        the members with a part in a later layout."""
        ...


L = TypeVar("L", bound=Logged)


class Intent(msgspec.Struct, frozen=True):
    """A request as it is stored. Fields may be added, and are skipped by those that do not know them. Another meaning
    of these fields is another version, which is refused.

    `topic` is the first queue of the layout that room was reserved in, so that those that know one layout only complete
    it in the right queues. `moved` is set when a part was stored in a later layout, as its own takes nothing any more.

    `rooms` belong to a reservation; `events`, `digest` and `decided_ms` are set when it is committed. Only an intent
    that may be `repeated` is retained for long. Times are ms since the epoch by the clock of the host that wrote them.
    """

    OBJECTS: ClassVar[str] = "remora.request."
    SCHEDULE: ClassVar[str] = "remora.requests"
    VERSION: ClassVar[int] = 1
    OF_SEVERAL_TOPICS: ClassVar[bool] = False

    version: int
    topic: str
    topic_id: str
    made_ms: int
    parts: list[IntentPart]
    repeated: bool = True
    rooms: list[ReservedRoom] = []
    decided_ms: int = 0
    digest: bytes = b""
    events: int = 0
    moved: bool = False

    @property
    def generation(self) -> int:
        """That of the layout in which room was reserved."""
        return generation_of(self.topic)

    @property
    def topic_name(self) -> str:
        """The name of its topic."""
        return own_topic_name(self.topic)

    def committed(self, parts: list[IntentPart], digest: bytes) -> Intent:
        """The intent with the payloads to store, committed now."""
        events = sum(len(part.payloads) for part in parts)
        return msgspec.structs.replace(self, parts=parts, decided_ms=now_ms(), digest=digest, events=events)

    def shard(self, part: IntentPart) -> Shard:
        """The queue of a part."""
        return shard_of(self.topic, part.shard, Origin.REMORA)

    def queues(self) -> dict[Shard, list[tuple[str, IntentPart]]]:
        """The parts of each queue in order, each with its number, which is unique within the intent."""
        found: dict[Shard, list[tuple[str, IntentPart]]] = {}
        for number, part in enumerate(self.parts):
            found.setdefault(self.shard(part), []).append((str(number), part))
        return found

    @property
    def members(self) -> Sequence[tuple[str, Intent]]:
        """See `Logged`."""
        return [("", self)]

    def slim(self, moved: frozenset[str] = frozenset()) -> Intent:
        """See `Logged`."""
        parts = [msgspec.structs.replace(part, payloads=[]) for part in self.parts]
        return msgspec.structs.replace(self, parts=parts, rooms=[], moved="" in moved)


class LoggedIntent(NamedTuple, Generic[L]):
    """A request and its state at one moment."""

    intent: L
    state: IntentState

    @property
    def is_committed(self) -> bool:
        """Whether its events are stored or will be."""
        return self.state in (IntentState.COMMITTED, IntentState.COMPLETED)


def now_ms() -> int:
    """Milliseconds since the epoch, by this host's wall clock."""
    return time.time_ns() // 1_000_000


class IntentLog(RadosPart, Generic[L]):
    """Stores requests of one kind by name, and changes their state by comparison."""

    def __init__(self, connection: ClusterConnection, kind: type[L]) -> None:
        super().__init__(connection)
        self._kind = kind
        self._decoder = msgspec.msgpack.Decoder(kind)

    async def load(self, name: str) -> LoggedIntent[L] | None:
        """The request of this name as it is now; None when there is none.

        Raises StoreDamaged when nobody can read it, and StoreError when only a newer remora can.
        """
        size = _FIRST_READ
        while True:
            operation = ReadOp().assert_exists()
            content, xattrs = operation.read(0, size), operation.xattrs()
            try:
                await self._run(operation, name, f"reading request {name}")
            except MissingError:
                return None
            if len(content.data) < size:
                return self._logged(name, content.data, xattrs.values.get(_STATE, b""))
            size *= 8

    async def create(self, name: str, intent: L, state: IntentState) -> None:
        """Store a new request. Raises ExistsError when there is one of this name."""
        operation = WriteOp().create(exclusive=True)
        operation.write_full(msgspec.msgpack.encode(intent)).set_xattr(_STATE, state)
        await self._run(operation, name, f"storing request {name}")

    async def change(self, name: str, intent: L, old: IntentState, new: IntentState) -> None:
        """Replace a request. Raises MismatchError when its state is not `old`, MissingError when it is gone."""
        operation = WriteOp().assert_exists().assert_xattr(_STATE, old)
        operation.write_full(msgspec.msgpack.encode(intent)).set_xattr(_STATE, new)
        await self._run(operation, name, f"storing request {name}")

    async def remove(self, name: str) -> None:
        """Remove the request; no error when it is gone."""
        try:
            await self._run(WriteOp().assert_exists().remove(), name, f"removing request {name}")
        except MissingError:
            return

    async def _run(self, operation: ObjectOperation, name: str, what: str) -> None:
        await self._connection.run(operation, self._kind.OBJECTS + name, what, _GONE, self._own)

    def _logged(self, name: str, data: bytes, state: bytes) -> LoggedIntent[L]:
        try:
            found = LoggedIntent(self._decoder.decode(data), IntentState(state.decode("ascii", "replace")))
        except (msgspec.MsgspecError, ValueError) as exc:
            raise StoreDamaged(f"request {name} cannot be read: {exc}") from exc
        if (version := found.intent.version) > self._kind.VERSION:
            raise StoreError(f"request {name} is a newer remora's: version {version}, not {self._kind.VERSION}")
        return found


class FanOutEnvelope(msgspec.Struct, frozen=True):
    """Intents of several topics that are committed together, every copy or none, and the answer to their request.

    `Intent` is what remoras of one topic a request know, and they would store all parts in the first topic. So
    envelopes have objects and a schedule of their own, and names that begin with `~`, which no topic's does. Fields may
    be added as to an `Intent`.

    A reservation has its `announcement` until it is committed, and then the intents of the topics that get events.
    """

    OBJECTS: ClassVar[str] = "remora.fanout."
    SCHEDULE: ClassVar[str] = "remora.fanouts"
    VERSION: ClassVar[int] = 1
    OF_SEVERAL_TOPICS: ClassVar[bool] = True

    version: int
    made_ms: int
    intents: list[Intent]
    repeated: bool
    decided_ms: int = 0
    digest: bytes = b""
    accepted: int = 0
    unmatched: int = 0
    topics: dict[str, int] = {}
    announcement: bytes = b""

    @property
    def events(self) -> int:
        """The copies, over all topics."""
        return sum(self.topics.values())

    @property
    def members(self) -> Sequence[tuple[str, Intent]]:
        """See `Logged`."""
        return [(f".{number}", intent) for number, intent in enumerate(self.intents)]

    def slim(self, moved: frozenset[str] = frozenset()) -> FanOutEnvelope:
        """See `Logged`."""
        intents = [intent.slim(frozenset({""} if member in moved else ())) for member, intent in self.members]
        return msgspec.structs.replace(self, intents=intents, announcement=b"")
