"""Every error that remora raises on purpose, under one base class.

`retriable` answers the caller's only question: may the same call succeed later without an operator's help? Adapters
translate their driver's exceptions into these at their own edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Self, TypeVar

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")


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

    `binds` are the other options of the rule that is broken, and `place` says where the option stands, if it does.
    """

    def __init__(self, key: str, reason: str, binds: tuple[str, ...] = (), place: str = "") -> None:
        said = f"{reason} ({place})" if place else reason
        super().__init__(f"{key}: {said}" if key else said)
        self.key = key
        self.reason = reason
        self.binds = binds

    def at(self, place: str) -> ConfigError:
        """The same, with a place."""
        return ConfigError(self.key, self.reason, self.binds, place)

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Every problem, in the order of the file."""
        return (self,)


class ConfigErrors(ConfigError):
    """A configuration with several problems; its key is that of the first one."""

    def __init__(self, problems: tuple[ConfigError, ...]) -> None:
        super().__init__("", "; ".join(map(str, problems)))
        self.key = problems[0].key
        self._problems = problems

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        """Every problem, in the order of the file."""
        return self._problems


class ConfigUnreadable(ConfigError):
    """This user may not read the configuration, or a file that it names."""


class PermissionMissing(RemoraError):
    """This user, token or certificate is not allowed to, or cannot be used as it is: an operator must act."""


class DaemonNotReachable(RemoraError):
    """Nothing answers on the admin port or on the control socket."""


class ChangeNotAllowed(RemoraError):
    """The daemon lets this caller change nothing."""


class WorkerFailed(RemoraError):
    """A worker process ended before it was ever ready; `code` is its exit code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StoreError(RemoraError):
    """The store answered with an error."""


class StoreUnavailable(StoreError):
    """The store did not answer in time or cannot be reached now. The outcome of a write is unknown."""

    retriable = True


class StoreAway(StoreUnavailable):
    """The embedded store's disk or files cannot be used now, and the host's operator has to know.

    `cause` is `gone`, `read_only`, `io_error` or `no_room`. The store recovers by itself when they can be used again.
    """

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


class StoreMisconfigured(StoreError):
    """A pool, permission, keyring or file is missing, and an operator has to act. The text names it."""


class StoreMissing(StoreMisconfigured):
    """There is no embedded store yet, and this caller must not make one."""


class OwnershipLost(StoreError):
    """The store refused an operation because its caller no longer holds the shard's lock."""


class LockLetGo(OwnershipLost):
    """The store itself let the lock go when it opened its files anew: nobody else has asked for the queue."""


class NotOurs(RemoraError):
    """The shard's topic is one that radosgw delivers itself: give the lock back."""


class ShardGone(StoreError):
    """The queue object does not exist any more, or is not the incarnation that was locked."""


class TopicNotSequenced(StoreError):
    """The topic gives its events no numbers."""


class QueueFull(StoreError):
    """A reservation was refused because the queue has no room for it."""

    retriable = True


class ReservationIdTaken(QueueFull):
    """A reservation was refused because the queue's next one would have the id of an open one.

    Ids are 32 bits wide and begin anew; the queue takes no reservation until that one ends. Nothing was stored.
    """


class StoreFull(StoreError):
    """The disk or the cluster has no room left. Nothing was stored; the store recovers by itself when there is room."""

    retriable = True


class StoreDamaged(StoreError):
    """A part of the store cannot be read any more (a corrupted page): its queues stop until an operator acts."""


class RowDamaged(StoreDamaged):
    """A row of the embedded store is not what it is to be: who needs it is told, and all else of its file is used."""


class DirectoryLost(StoreDamaged):
    """A directory of an embedded store of several cannot be used now: its queues stop until it is there again."""

    retriable = True


class IngestRefused(StoreError):
    """Events were not stored, for a reason that their sender has to know. Nothing was changed."""


class TopicUnknown(IngestRefused):
    """There is no topic of this name, or it is not the one that was meant."""


class TopicMoved(IngestRefused):
    """The topic has another layout than the caller knows. Looked up anew, the same request goes where it belongs."""


class TopicClosed(IngestRefused):
    """The topic is being drained and takes no new events."""


class OnceConflict(IngestRefused):
    """The idempotency key was used for another request before."""


class ReservationUnknown(IngestRefused):
    """There never was such a reservation, or its outcome was deleted."""


class ReservationExpired(IngestRefused):
    """The reservation was not committed in time, or it was aborted; its room was given back."""


class ReservationMismatch(IngestRefused):
    """The events are not those that room was reserved for, in this order; the reservation stays open."""


class ReservationExceeded(IngestRefused):
    """An event is larger than what was reserved for it; the reservation stays open."""


class TopicRefused(StoreError):
    """A topic cannot be made, changed or removed as asked; the text says why, and what would work."""


class TopicNamed(TopicRefused):
    """A topic cannot be removed, since notifications send to it; the text names them."""


class NotificationRefused(StoreError):
    """A notification cannot be made, changed or removed as asked; the text says why, and what would work."""


class EndpointError(RemoraError):
    """An endpoint did not take what was pushed; the class says what may help.

    `arrived` is how many records of the batch, from its front, are durable at the endpoint; the others may be.
    `tries` is how often the first of the others was tried in vain, at last with those behind it that were tried
    `together`. Where it is None all others count as tried once: the batch travelled as one, or the destination failed
    and not a record.

    `unclear` are records of the batch, by index, that were sent and may have arrived: there was no answer yet, or it is
    not told by `arrived`. `once_unclear` are records that may have arrived by an earlier try within the push, and whose
    last try was answered.

    `kind` is what the failure is about, as `policy.quarantine` has them: the destination itself, or something else.
    `retry_after_s` is how long the endpoint asks to be left alone; None where it does not say.
    """

    kind = "configuration"
    arrived = 0
    tries: int | None = None
    retry_after_s: float | None = None
    together = 1
    unclear: Sequence[int] = ()
    once_unclear: Sequence[int] = ()

    def tried(self, records: Sequence[R]) -> list[R]:
        """Those of a batch's records that were tried in vain, each as often as it was."""
        left = records[self.arrived :]
        if self.tries is None:
            return list(left)
        return [*left[:1]] * self.tries + ([*left[1 : self.together]] if self.tries else [])

    def at(self, arrived: int, tries: int | None = None, together: int = 1) -> Self:
        """This error, of a push that came so far."""
        self.arrived, self.tries, self.together = arrived, tries, together
        return self

    def again(self) -> Self:
        """Another error that says the same, for each of those who wait for one thing to raise."""
        return copy(self)


class EndpointUnavailable(EndpointError):
    """Transient: the same push may succeed later (broker away, time-out, leader election, throttled)."""

    retriable = True

    def __init__(self, text: str, kind: str = "unavailable") -> None:
        super().__init__(text)
        self.kind = kind


class EndpointMisconfigured(EndpointError):
    """Configuration: nothing of this topic can be delivered until an operator acts.

    Examples are an unknown Kafka topic, a refused password, an untrusted certificate or a malformed URI.
    """


class EndpointDenied(EndpointMisconfigured):
    """The operator lets no topic connect to where the endpoint lies; the text names the option, and no address."""


class EndpointFenced(EndpointError):
    """Another producer was initialised for the shard, or the endpoint fenced this one after a transaction took too
    long.

    Nothing more of this producer can become visible. A new one may only send after the shard's lock was proven again: a
    fenced owner that simply goes on would fence the rightful one.
    """

    kind = "fenced"


class EntryRefused(EndpointError):
    """Poison: an entry can never be delivered and becomes a dead letter.

    It is the one behind those that arrived where `tries` is known, else any one of the batch.
    """

    kind = "refused"


def without_frames(exc: E) -> E:
    """Return the exception without the frames that it and its causes passed; call it once the exception was reported.

    Frames keep every local of their functions alive, perhaps megabytes, and often the exception itself. Only Python's
    garbage collector ends such a cycle, and in a busy worker it hardly ever runs.
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
