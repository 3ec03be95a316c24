"""What delivering needs of a destination such as Kafka."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.model.topic import Target

ALL_LANES = 1 << 62
"""The `width` of a route whose lanes may all be under way."""


class Batch(Protocol):
    """Some records of one shard that travel, arrive and fail together.

    `lane` names their order domain: all records of a key fall into one lane. A shard has at most one batch
    of a lane under way, and hands over the next only when that one has arrived; this alone keeps the order,
    whatever a driver does with failed batches.
    """

    @property
    def lane(self) -> int: ...

    @property
    def records(self) -> Sequence[Record]: ...


class Route(Protocol):
    """The way from one shard to its endpoint, with everything that must not change while records are under way."""

    @property
    def stale(self) -> bool:
        """True when keys would fall into other lanes by now: finish what is under way, then open a new route."""
        ...

    @property
    def acks_show_load(self) -> bool:
        """Whether acknowledgements that take longer are a sign that this host or the destination is short of processor
        time. A receiver that is slow of its own must not slow the other topics of its worker."""
        ...

    @property
    def width(self) -> int:
        """How many lanes may have a batch under way at once. It may change at any time, and is at least 1."""
        ...

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        """Sort records into batches, in order within each lane; and the refused ones with why.

        Pure: nothing is sent. A refused record cannot be delivered here as far as is known, for example because the
        broker's size limit is below it: it is given up only when it is refused again after `look_again`. Several
        batches of one lane are to be pushed in the order of the list.
        """
        ...

    async def look_again(self) -> None:
        """Look up anew by what `pack` refuses records; it stands by that from then on.

        Lanes stay as they are. Raises as entering the route does.
        """
        ...

    async def push(self, batch: Batch) -> None:
        """Return when every record of the batch is durable at the endpoint.

        Raises EndpointUnavailable (transient; the batch may have arrived nevertheless, in whole or in part),
        EndpointMisconfigured, or EntryRefused when a record that `pack` let pass was refused for good. The error's
        `arrived` says how many records, from the front, are durable all the same, and `tries` how often the one behind
        them was tried: where EntryRefused gives it, that is the record which was refused. `unclear` names those that
        were sent and may have arrived, `once_unclear` those that may have with an earlier try
        of the push. After a failure a route may have its other pushes end early, with their own `arrived`.

        A batch is pushed again as it is only after `pack` was asked anew.
        """
        ...

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Return when the letters are durable where the target wants them in addition to the store's, if anywhere.

        Letters of a key keep their order. Raises EndpointUnavailable (some may have arrived nevertheless) and
        EndpointMisconfigured.
        """
        ...


class ExactRoute(Protocol):
    """The way from one shard to its endpoint in transactions.

    What is committed together becomes visible together, to readers that ask for committed records only, and with it
    the position that was reached. It belongs to one task.
    """

    @property
    def reached(self) -> bytes | None:
        """The position of the next entry to deliver, as the last commit for this incarnation of the queue left it.

        None where nothing was ever committed for it; a position that is kept and cannot be read is no such case, and
        fails the entering of the route. It was read after every earlier route of this shard was fenced, so that nothing
        of theirs can be committed any more.
        """
        ...

    @property
    def stale(self) -> bool:
        """As `Route.stale`; also true when other shards wait for their turn, and this one had its."""
        ...

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        """As `Route.pack`."""
        ...

    async def look_again(self) -> None:
        """As `Route.look_again`; not while a commit is under way."""
        ...

    async def commit(self, batches: Sequence[Batch], upto: bytes, letters: Sequence[DeadLetter] = ()) -> None:
        """Return when the batches, the letters and the position `upto` are committed, in one transaction.

        Batches of one lane take effect in the order of the list. Letters go where the target wants them in addition to
        the store's, else nowhere.

        Raises EndpointFenced, EndpointUnavailable, EndpointMisconfigured, or EntryRefused when a record that `pack`
        let pass was refused for good. After any of these, and when it is cancelled, the outcome is unknown and the
        route is spent: leave it and enter another one, whose `reached` tells.
        """
        ...


@runtime_checkable
class SucceedingRoute(Protocol):
    """What a `Route` or an `ExactRoute` offers beside if it can send headers that not every record has."""

    def succeeds(self, after: bytes) -> None:
        """Send with the next record that is packed, the first of its shard, where the shards before it ended.

        `after` is as in a Page. It is left out where the record is too large with it.
        """
        ...


class Endpoint(Protocol):
    """A kind of destination (Kafka), with the connections that its topics share."""

    @property
    def schemes(self) -> frozenset[str]:
        """The URI schemes that it delivers to."""
        ...

    def check(self, target: Target) -> list[str]:
        """Remarks on a target that works otherwise than asked. Raises EndpointMisconfigured with why."""
        ...

    def publishes_letters(self, target: Target) -> bool:
        """Whether routes to this target publish dead letters in addition to the store, so that these need a route.

        Raises nothing: it is asked of targets that cannot work, too.
        """
        ...

    async def up(self, target: Target) -> frozenset[str]:
        """What of the target's destination answers now, by names that stay the same: for Kafka, its brokers.

        Empty where nothing does, for whatever reason; raises nothing. It ends within the time that a connection may
        take, and keeps none. That something is up does not say that it can be delivered to.
        """
        ...

    def destination(self, target: Target) -> Hashable:
        """What shares the fate of this target: targets with equal answers are up and down together.

        Raises nothing: it is asked of targets that cannot work, too.
        """
        ...

    def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AbstractAsyncContextManager[Route]:
        """Open a way to the target: connects where needed and looks up what packing must know.

        With `quick_retries` a push may try a record again itself that was refused in passing; without, each attempt is
        the caller's, because their number or pace is limited.

        Entering raises EndpointUnavailable or EndpointMisconfigured. What is learnt about one target never
        shows at another, save that equal targets may share a connection.
        """
        ...


@runtime_checkable
class EndpointSource(Protocol):
    """What stands for an endpoint until a topic needs it."""

    @property
    def schemes(self) -> frozenset[str]:
        """The URI schemes that the endpoint delivers to."""
        ...

    async def made(self) -> Endpoint:
        """The endpoint, ready to open routes: the first call makes it. Raises what making it does, and tries again at
        the next call."""
        ...


@runtime_checkable
class LateEndpoint(Protocol):
    """What an endpoint offers beside `Endpoint` if it hears of a record that arrives after its push was given up."""

    async def arrived_late(
        self, shard: Shard, incarnation: str, target: Target, positions: Sequence[bytes]
    ) -> frozenset[bytes]:
        """Which of these records have arrived of which a push to this target could not tell (`EndpointError.unclear`).

        Asked before they become dead letters, and of the same record once. Where an answer may still come over the
        connection that a record was sent on, this waits for it, for as long as a push may take. Raises nothing.
        """
        ...


@runtime_checkable
class TransactionalEndpoint(Protocol):
    """What an endpoint offers beside `Endpoint` if it can deliver exactly once; the others deliver at least once."""

    def exact(self, shard: Shard, incarnation: str, target: Target) -> AbstractAsyncContextManager[ExactRoute]:
        """Open a way to the target in transactions. Only the owner of the shard calls this.

        Entering fences every route that was entered for this shard and incarnation before, here or anywhere; what they
        had not committed never becomes visible. Then it reads what they had. It sends nothing. Their number is bounded
        for each destination: where there are more, entering waits for its turn. Raises as `route` does, and
        EndpointMisconfigured where a position is kept for the shard that cannot be read: taking it for none would
        deliver again what was committed.

        Before the first commit there must be a proof that the shard's lock is still held: an owner that lost it and
        enters would fence the rightful one.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """A step of the way to an endpoint, as `remora topic test` takes it: what came of it, and how long it took.

    `ok` is None for one that was not looked at.
    """

    name: str
    ok: bool | None
    said: str
    seconds: float = 0.0
