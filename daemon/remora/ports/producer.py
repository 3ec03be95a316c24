"""What taking events in needs of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from remora.model.fan_out import FannedOut, TopicCopies, TopicRooms
from remora.model.ingest import IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.ports.administration import Notifications, OwnTopics
from remora.ports.delivery import Catalog


class TwoPhase(Protocol):
    """The producing side, as a gateway uses it: room is reserved first, so that a commit cannot be refused."""

    async def reserve(self, shard: Shard, entries: int, nbytes: int) -> int:
        """Reserve room and return the reservation's id. Raises QueueFull."""
        ...

    async def commit(self, shard: Shard, reservation: int, payloads: Sequence[bytes]) -> None:
        """Append the payloads in order, all or none, and end the reservation."""
        ...

    async def abort(self, shard: Shard, reservation: int) -> None:
        """End the reservation; unknown ones are no error."""
        ...


class Ingest(Protocol):
    """Storing events in topics of remora's own: in order, all or none over the shards, also over a crash.

    `topic` is as `own_topics.find` gave it. Raises TopicUnknown when it is not that any more, TopicClosed, QueueFull
    when a queue lacks room, StoreFull, and ValueError for a shard that the topic does not have; then nothing was
    stored. After StoreUnavailable the outcome is unknown. A repeat is answered whatever became of the topic's state
    and room.
    """

    async def publish(
        self, topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None = None
    ) -> PublishResult:
        """Store events; returns when they are durable.

        With `once` the same request again, for at least ten minutes and over a restart, stores nothing and is
        answered as the first time, `repeated`. Raises OnceConflict.
        """
        ...

    async def reserve(self, topic: Topic, rooms: Sequence[ReservedRoom]) -> str:
        """Reserve room in all shards or in none, and return the reservation's id, `<topic>.<random>`."""
        ...

    async def commit(
        self, topic: Topic, reservation: str, events: Sequence[RoutedEvent], digest: bytes
    ) -> PublishResult:
        """Store exactly the events that room was reserved for, and end the reservation.

        What was promised before the topic was closed is still taken. The same commit again, for at least ten minutes
        and over a restart, stores nothing and is answered as the first time. Raises ReservationUnknown,
        ReservationExpired, ReservationMismatch, ReservationExceeded, and OnceConflict when other events were committed
        before.
        """
        ...

    async def abort(self, topic: Topic, reservation: str) -> None:
        """Give the room back. Aborting again is no error; after a commit it is OnceConflict. ReservationUnknown."""
        ...


@runtime_checkable
class PublishSoon(Protocol):
    """What a store may offer beside: `publish` without a coroutine, and so without a task, for each request."""

    def publish_soon(
        self,
        topic: Topic,
        events: Sequence[RoutedEvent],
        once: IdempotencyKey | None,
        done: Callable[[PublishResult | Exception], None],
    ) -> None:
        """Store events as `publish` does, and call `done` in the event loop, later, with what that returns or raises.

        Requests for one topic are stored in the order of the calls. What `publish` raises before anything is stored
        may be raised at once, and then `done` is not called.
        """
        ...


class FanningOut(Protocol):
    """Events for several topics, all copies or none, also over a crash.

    The topics are as `own_topics.find` gave them, each once. Raises what `Ingest.publish` raises; its text names the
    topic. After StoreUnavailable the outcome is unknown, and what was decided is finished later.
    """

    async def fan_out(
        self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None = None
    ) -> FannedOut:
        """Store the copies; returns when all are durable.

        With `once` the request is remembered for at least ten minutes and over a restart, whatever its key is used for
        in single topics; where it was stored before, nothing is, and the answer is that of the first time, `repeated`.
        Raises OnceConflict.
        """
        ...

    def fan_out_soon(
        self, copies: Sequence[TopicCopies], answer: FannedOut, done: Callable[[FannedOut | Exception], None]
    ) -> bool:
        """Store copies that are one transaction, and call `done` in the event loop, later, with the answer or what
        storing raises; False, and nothing is done, where they are several."""
        ...

    async def fanned_out(self, once: IdempotencyKey) -> FannedOut | None:
        """The answer that a request with this key had before; None where there is none. Raises OnceConflict."""
        ...


class Announcing(Protocol):
    """The two phases of events whose topics are not known for certain.

    Room is reserved in each topic that an event may go to. Raises what `FanningOut` and `Ingest.commit` raise.
    """

    async def announce(self, rooms: Sequence[TopicRooms], announcement: bytes) -> str:
        """Reserve room in all topics or in none, keep the announcement with it, and return the reservation's id, which
        begins with no topic's name."""
        ...

    async def announced(self, reservation: str, digest: bytes) -> bytes | FannedOut:
        """The announcement that was kept; where the reservation is committed, the answer that it had.

        Raises OnceConflict where other events were committed, ReservationUnknown, and ReservationExpired.
        """
        ...

    async def commit_announced(
        self, reservation: str, copies: Sequence[TopicCopies], answer: FannedOut, digest: bytes
    ) -> FannedOut:
        """Store the copies, all or none, in the room that was reserved for them; all other room is given back."""
        ...

    async def abort_announced(self, reservation: str) -> None:
        """Give all room back. Aborting again is no error; after a commit it is OnceConflict. ReservationUnknown."""
        ...


class AnyIngest(Ingest, FanningOut, Announcing, Protocol):
    """All ways in: with a topic, without one, and without one in two phases."""


class IngestStore(Protocol):
    """A store as the ingest API sees it, by its parts."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def own_topics(self) -> OwnTopics: ...
    @property
    def notifications(self) -> Notifications: ...
    @property
    def ingest(self) -> AnyIngest: ...
