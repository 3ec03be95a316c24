"""Every error that remora raises on purpose, under one base class.

`retriable` answers the caller's only question: may the same call succeed later without anybody
acting? Adapters translate their driver's exceptions into these at their own edge.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class RemoraError(Exception):
    """Base of all errors that remora raises on purpose; the text is a plain sentence for an operator."""

    retriable: ClassVar[bool] = False


class CodecError(RemoraError, ValueError):
    """Bytes that are not what their format says; names the field and the byte offset."""

    def __init__(self, field: str, offset: int, reason: str) -> None:
        super().__init__(f"{field} at byte {offset}: {reason}")
        self.field = field
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[CodecError], tuple[str, int, str]]:
        return (type(self), (self.field, self.offset, self.reason))


class ConfigError(RemoraError):
    """A configuration that is refused; `key` is the dotted path of the option to look at first.

    `binds` are the other options of a rule that is broken.
    """

    def __init__(self, key: str, reason: str, binds: tuple[str, ...] = ()) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)
        self.key = key
        self.reason = reason
        self.binds = binds

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Everything that is wrong, in the order of the file."""
        return (self,)


class ConfigErrors(ConfigError):
    """A configuration with several problems; its key is that of the first one."""

    def __init__(self, problems: tuple[ConfigError, ...]) -> None:
        super().__init__("", "; ".join(map(str, problems)))
        self.key = problems[0].key
        self._problems = problems

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Everything that is wrong, in the order of the file."""
        return self._problems


class DaemonNotReachable(RemoraError):
    """Nothing answers on the admin port."""


class WorkerFailed(RemoraError):
    """A worker process ended before it was ever ready; `code` is its exit code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StoreError(RemoraError):
    """The shard store answered with an error."""


class StoreUnavailable(StoreError):
    """The store did not answer in time or cannot be reached now. The outcome of a write is unknown."""

    retriable = True


class StoreAway(StoreUnavailable):
    """The embedded store's disk or its files cannot be used now, which whoever runs the host must know.

    `cause` is one of a small closed set: `gone`, `read_only`, `io_error`. It goes on by itself when they can be used.
    """

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


class StoreMisconfigured(StoreError):
    """A pool, permission, keyring or file is missing: somebody must act. The text names it."""


class OwnershipLost(StoreError):
    """The store refused an operation because its caller no longer holds the shard's lock."""


class ShardGone(StoreError):
    """The queue object does not exist any more, or is not the incarnation that was locked."""


class QueueFull(StoreError):
    """A reservation was refused because the queue has no room for it."""

    retriable = True


class StoreFull(StoreError):
    """The disk or the cluster has no room left; nothing was stored, and it goes on by itself when there is room."""

    retriable = True


class StoreDamaged(StoreError):
    """A part of the store cannot be read any more (a corrupted page): its queues stop until somebody acts."""


class IngestRefused(StoreError):
    """Events were not taken, for a reason that their sender must know. Nothing was changed."""


class TopicUnknown(IngestRefused):
    """There is no topic of this name, or it is another one by now."""


class TopicClosed(IngestRefused):
    """The topic is being drained and takes no new events."""


class OnceConflict(IngestRefused):
    """The idempotency key was used for something else before."""


class ReservationUnknown(IngestRefused):
    """There never was such a reservation, or its outcome is forgotten."""


class ReservationExpired(IngestRefused):
    """The reservation was not committed in time, or it was aborted; its room was given back."""


class ReservationMismatch(IngestRefused):
    """The events are not those that room was reserved for, in this order; the reservation stays open."""


class ReservationExceeded(IngestRefused):
    """An event is larger than what was reserved for it; the reservation stays open."""


class TopicRefused(StoreError):
    """A topic cannot be made, changed or removed as asked; the text says why and what would do."""


class EndpointError(RemoraError):
    """An endpoint did not take what was pushed; the class says what may help."""


class EndpointUnavailable(EndpointError):
    """Transient: the same push may succeed later (broker away, time-out, leader election, throttled)."""

    retriable = True


class EndpointMisconfigured(EndpointError):
    """Configuration: nothing of this topic can be delivered until somebody acts.

    Examples are an unknown Kafka topic, a refused password, an untrusted certificate or a malformed URI.
    """


class EndpointFenced(EndpointError):
    """Somebody initialised the shard's producer after us, or the endpoint did so because a transaction took too long.

    Nothing more of this producer can become visible. A new one may only send after the lock was proven again: a fenced
    owner that simply goes on would fence the rightful one.
    """


class EntryRefused(EndpointError):
    """Poison: this one entry can never be delivered, whatever is done; it is parked."""


def without_frames(exc: E) -> E:
    """The exception, when its way has been told: neither it nor what led to it holds the frames that it passed.

    These keep all that their functions held, megabytes perhaps, and often the exception itself. Such a cycle ends only
    with Python's next look for garbage, which a busy worker hardly ever takes.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [exc]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return exc
