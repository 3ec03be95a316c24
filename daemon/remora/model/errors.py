"""Every error that remora raises on purpose, under one base class.

`retriable` answers the caller's only question: may the same call succeed later without anybody
acting? Adapters translate their driver's exceptions into these at their own edge.
"""

from __future__ import annotations

from typing import ClassVar


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
    """A configuration that is refused; `key` is the dotted path of the offending option."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)
        self.key = key
        self.reason = reason


class StoreError(RemoraError):
    """The shard store answered with an error."""


class StoreUnavailable(StoreError):
    """The store did not answer in time or cannot be reached now. The outcome of a write is unknown."""

    retriable = True


class StoreMisconfigured(StoreError):
    """A pool, permission, keyring or file is missing: somebody must act. The text names it."""


class OwnershipLost(StoreError):
    """The store refused an operation because its caller no longer holds the shard's lock."""


class ShardGone(StoreError):
    """The queue object does not exist any more, or is not the incarnation that was locked."""


class QueueFull(StoreError):
    """A reservation was refused because the queue has no room for it."""

    retriable = True


class EndpointError(RemoraError):
    """An endpoint did not take what was pushed; the class says what may help."""


class EndpointUnavailable(EndpointError):
    """Transient: the same push may succeed later (broker away, time-out, leader election, throttled)."""

    retriable = True


class EndpointMisconfigured(EndpointError):
    """Configuration: nothing of this topic can be delivered until somebody acts.

    Examples are an unknown Kafka topic, a refused password, an untrusted certificate or a malformed URI.
    """


class EntryRefused(EndpointError):
    """Poison: this one entry can never be delivered, whatever is done; it is parked."""
