"""What topics of an endpoint share: opened once for all callers, replaced when unusable, closed when idle; and
connections by identity with the outlets over them that equal targets share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointError, EndpointUnavailable

T = TypeVar("T")


class Shared(Generic[T]):
    """One connection, channel or file at a time. `what` names it in messages."""

    def __init__(
        self,
        what: str,
        tasks: Tasks,
        open_one: Callable[[], Coroutine[Any, Any, T]],
        close_one: Callable[[T, float], Coroutine[Any, Any, None]],
        *,
        is_usable: Callable[[T], bool] = lambda _: True,
        used_at: Callable[[T, float], float | None] = lambda _, at: at,
    ) -> None:
        """`close_one` gets the seconds that what is under way may take, and runs in the background.

        What `is_usable` denies is not given out again; it is left to its owner, who knows why. `used_at` gets the time
        of the last `ready` or end of use, and says when it was used last; None while it is.
        """
        self.what = what
        self.current: T | None = None
        self.is_closed = False
        self.users = 0
        self._tasks = tasks
        self._open_one = open_one
        self._close_one = close_one
        self._is_usable = is_usable
        self._used_at = used_at
        self._last_used = asyncio.get_running_loop().time()
        self._opening: asyncio.Task[T | Exception] | None = None

    async def ready(self) -> T:
        """What is open, or is opened now. Raises EndpointError; a defect is raised too, for each caller that waited."""
        self._last_used = asyncio.get_running_loop().time()
        if self.current is not None and self._is_usable(self.current):
            return self.current
        if self.is_closed:
            raise self._closed()
        if self._opening is None:
            self._opening = self._tasks.ask(self._open(), name=f"open {self.what}")
        opening = self._opening
        await asyncio.wait([opening])  # neither cancels it with one of those who wait, nor them with it
        if opening.cancelled():
            raise self._closed()
        outcome = opening.result()
        del opening
        try:
            if isinstance(outcome, EndpointError):
                raise outcome.again() from outcome.__cause__
            if isinstance(outcome, Exception):
                raise RuntimeError(f"{self.what} could not be opened") from outcome
            return outcome
        finally:
            del outcome  # no frame may keep the exception that it raises: see `without_frames`

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """It is not idle during the block."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self._last_used = asyncio.get_running_loop().time()

    def close_current(self, patience_s: float = 0.0) -> None:
        """Close what is open, in the background; the next who needs one has another opened."""
        one, self.current = self.current, None
        if one is not None:
            self._tasks.begin(self._close_one(one, patience_s), name=f"close {self.what}")

    def close_idle(self, before: float) -> bool:
        """Retire it where nothing used it since then; whether there is nothing now, and nobody who needs it."""
        if self.users or self._opening is not None:
            return False
        used_at = self._last_used if self.current is None else self._used_at(self.current, self._last_used)
        if used_at is None or used_at > before:
            return False
        self.close_current()
        return True

    def close(self, patience_s: float = 0.0) -> None:
        """Retire it, and open no other one."""
        self.is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        self.close_current(patience_s)

    async def _open(self) -> T:
        try:
            self.current = opened = await self._open_one()
        finally:
            self._opening = None
        return opened

    def _closed(self) -> EndpointUnavailable:
        return EndpointUnavailable(f"{self.what}: the endpoint is closed", "aborted")


async def leave_open(_one: object, _patience_s: float) -> None:
    """Closes nothing: for what needs no goodbye, or what its owner closes."""


async def sweep(idle_s: float, close_idle: Callable[[float], None]) -> None:
    """Until cancelled, have what was not used for `idle_s` closed; `close_idle` gets the time since when."""
    while True:
        await asyncio.sleep(min(idle_s / 4, 10.0))
        close_idle(asyncio.get_running_loop().time() - idle_s)


MOST_KNOWN = 10_000


class Ending(Protocol):
    """A connection. It calls back when it ends, with `error` set."""

    @property
    def error(self) -> EndpointError | None: ...

    async def close(self) -> None:
        """Say goodbye, in bounded time."""
        ...

    async def ended(self) -> None:
        """Return when nothing is left of it, in bounded time."""
        ...


class Idle(Protocol):
    """What is closed when nothing used it for long."""

    def close_idle(self, before: float) -> bool:
        """Close it when nothing used it since then; whether it is closed."""
        ...

    def close(self) -> None:
        """Begin to close it, and open nothing any more."""
        ...


C = TypeVar("C", bound=Ending)
K = TypeVar("K", bound=Hashable)
P = TypeVar("P", bound=Hashable)
SlotT = TypeVar("SlotT", bound=Idle)
OutletT = TypeVar("OutletT", bound=Idle)


class ConnectionSlot(Generic[C]):
    """The connections of one identity: one, or more where the first has no room for another topic."""

    def __init__(
        self,
        name: str,
        tasks: Tasks,
        open_one: Callable[[Callable[[C], None]], Awaitable[C]],
        has_room: Callable[[C], bool],
        *,
        connected: Callable[[str], None],
        disconnected: Callable[[str, str], None],
    ) -> None:
        """`open_one` gets what a connection calls when it ends; `connected` and `disconnected` are called for each."""
        self.connections: list[C] = []
        self._name = name
        self._tasks = tasks
        self._open_one = open_one
        self._has_room = has_room
        self._connected = connected
        self._disconnected = disconnected
        self._newest: Shared[C] = Shared(name, tasks, self._open, leave_open, is_usable=has_room)

    def __str__(self) -> str:
        return self._name

    async def ready(self) -> C:
        """A connection with room; all that need one wait for the same opening. Raises EndpointError."""
        with_room = next((each for each in self.connections if self._has_room(each)), None)
        if with_room is not None:
            self._newest.current = with_room
        return await self._newest.ready()

    async def _open(self) -> C:
        opened = await self._open_one(self._connection_ended)
        self.connections.append(opened)
        self._connected(self._name)
        return opened

    def _connection_ended(self, connection: C) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            if connection is self._newest.current:
                self._newest.current = None
            self._tasks.begin(connection.ended(), name=f"end {self}")
            self._disconnected(self._name, str(connection.error))

    def close_idle(self, before: float) -> bool:
        """Close all connections when none was asked for since then; whether they are closed."""
        if not self._newest.close_idle(before):
            return False
        self.close()
        return True

    def close(self) -> None:
        """Open none any more, and close what is open, in the background."""
        self._newest.close()
        for each in list(self.connections):
            self._tasks.begin(each.close(), name=f"close {self}")


class OutletPool(Generic[K, SlotT, P, OutletT]):
    """All slots of an endpoint by identity, and all outlets by identity and place."""

    def __init__(self, make_slot: Callable[[K], SlotT], make_outlet: Callable[[SlotT, P], OutletT]) -> None:
        self._make_slot = make_slot
        self._make_outlet = make_outlet
        self._slots: dict[K, SlotT] = {}
        self._outlets: dict[tuple[K, P], OutletT] = {}

    def outlet(self, identity: K, place: P) -> OutletT:
        """The outlet of a topic; equal targets have the same one."""
        slot = self._slots.get(identity)
        if slot is None:
            slot = self._slots[identity] = self._make_slot(identity)
        outlet = self._outlets.get((identity, place))
        if outlet is None:
            outlet = self._outlets[identity, place] = self._make_outlet(slot, place)
        return outlet

    def known_outlet(self, identity: K, place: P) -> OutletT | None:
        """The outlet of a topic that was used not long ago."""
        return self._outlets.get((identity, place))

    def slot(self, identity: K) -> SlotT | None:
        """The slot of an identity that was used not long ago."""
        return self._slots.get(identity)

    async def sweep(self, idle_s: float) -> None:
        """Close what was not used for `idle_s`, until cancelled."""
        await sweep(idle_s, self.close_idle)

    def close_idle(self, before: float) -> None:
        """Close outlets that nothing used since then, and connections without outlets."""
        for key, outlet in list(self._outlets.items()):
            if outlet.close_idle(before):
                del self._outlets[key]
        used = {identity for identity, _ in self._outlets}
        for identity, slot in list(self._slots.items()):
            if identity not in used and slot.close_idle(before):
                del self._slots[identity]

    def close(self) -> None:
        """Begin to close everything; the task group waits for it."""
        for outlet in self._outlets.values():
            outlet.close()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        self._outlets.clear()


class TopicMakers(Generic[P]):
    """Who has topics at a server, for a question that knows a target only: where an S3 user has one, that counts."""

    def __init__(self) -> None:
        self._by_operator: dict[P, bool] = {}

    def note(self, server: P, *, by_operator: bool) -> None:
        """A topic of the operator's, or of an S3 user's, goes to this server."""
        if len(self._by_operator) >= MOST_KNOWN:
            self._by_operator.clear()
        self._by_operator[server] = by_operator and self._by_operator.get(server, True)

    def is_operators(self, server: P) -> bool:
        """Whether all topics that are known there are the operator's."""
        return self._by_operator.get(server, False)
