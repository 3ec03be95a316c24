"""aiokafka's exceptions, sorted by what helps. The only place where that is decided.

The classes are those of `remora.model.errors`; whatever stands in no list is transient, so that it is tried again
rather than given up: the worst that this can do is to repeat an entry.
"""

from __future__ import annotations

import aiokafka.errors as kafka

from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.policy.ownership.quarantine import ANSWERED


class InvalidRecord(kafka.BrokerResponseError):  # type: ignore[misc]  # aiokafka, which lacks it, is Any to mypy
    """A topic's rules refuse a record of a batch: one without a key where the topic is compacted, or a schema."""

    errno = 87
    message = "INVALID_RECORD"


TOO_LARGE: tuple[type[Exception], ...] = (
    kafka.MessageSizeTooLargeError,
    kafka.RecordListTooLargeError,
    kafka.RecordTooLargeError,
)
"""Poison when the batch holds one record; otherwise smaller batches help."""

UNCLEAR: tuple[type[Exception], ...] = (
    kafka.InvalidProducerEpoch,
    kafka.InvalidProducerIdMapping,
    kafka.OutOfOrderSequenceNumber,
    kafka.ProducerClosed,
    kafka.ProducerFenced,
    kafka.UnknownProducerId,
)
"""With these an earlier try of the batch may have been taken, whose answer was lost."""

DOUBTFUL: tuple[type[Exception], ...] = (
    kafka.KafkaConnectionError,
    kafka.KafkaTimeoutError,
    kafka.NotEnoughReplicasAfterAppendError,
    kafka.RequestTimedOutError,
    kafka.UnknownError,
)
"""After these a batch may have been taken, and is sent again with the same numbers."""

CONFIGURATION: dict[type[Exception], str] = {
    kafka.AuthenticationFailedError: "the broker refused user and password",
    kafka.AuthenticationMethodNotSupported: "the broker does not know this mechanism",
    kafka.ClusterAuthorizationFailedError: "the user may write to no topic of this cluster",
    kafka.GroupAuthorizationFailedError: "the user may not use consumer groups that begin with remora.",
    kafka.IllegalSaslStateError: "this port of the broker asks for no user and password",
    kafka.IncompatibleBrokerVersion: "the broker's release is too old, or too new",
    InvalidRecord: "the broker calls a record invalid: one without a key in a compacted topic, or against a schema",
    kafka.InvalidConfigurationError: "the broker refuses the topic's configuration",
    kafka.InvalidRequiredAcksError: "the broker refuses acks=all",
    kafka.InvalidTimestampError: "the topic's timestamp rule refuses the present time: is this host's clock right?",
    kafka.InvalidTransactionTimeout: "the broker allows no transaction to take kafka.transaction_timeout",
    kafka.InvalidTopicError: "Kafka allows no topic of this name",
    kafka.PolicyViolationError: "a policy of the broker forbids it",
    kafka.SaslAuthenticationFailed: "the broker refused user and password",
    kafka.SecurityDisabled: "the broker's security features are disabled",
    kafka.TopicAuthorizationFailedError: "the user may not write to this topic",
    kafka.TransactionalIdAuthorizationFailed: "the user may not use transactional ids that begin with remora.",
    kafka.UnsupportedCodecError: "the broker does not know this compression",
    kafka.UnsupportedForMessageFormatError: "the topic's message format is too old",
    kafka.UnsupportedSaslMechanismError: "the broker does not offer this mechanism",
    kafka.UnsupportedVersionError: "the broker's release is too old",
}

TRANSIENT: dict[type[Exception], str] = {
    kafka.BrokerNotAvailableError: "a broker is not available",
    kafka.CorruptRecordException: "the batch was damaged on its way",
    kafka.GroupCoordinatorNotAvailableError: "no coordinator is available yet",
    kafka.InvalidProducerEpoch: "the broker has retired this producer",
    kafka.InvalidProducerIdMapping: "the broker has forgotten this producer",
    kafka.KafkaConnectionError: "the connection to the broker broke or cannot be made",
    kafka.KafkaStorageError: "the broker's disk failed",
    kafka.KafkaTimeoutError: "no answer in time",
    kafka.LeaderNotAvailableError: "the partition has no leader now",
    kafka.NodeNotReadyError: "a broker cannot be reached",
    kafka.NotEnoughReplicasAfterAppendError: "too few replicas are in sync",
    kafka.NotEnoughReplicasError: "too few replicas are in sync",
    kafka.NotLeaderForPartitionError: "the partition is moving to another broker",
    kafka.OutOfOrderSequenceNumber: "an earlier batch of this partition failed",
    kafka.ProducerClosed: "the producer was closed meanwhile",
    kafka.ProducerFenced: "the broker has retired this producer",
    kafka.ReassignmentInProgress: "the partition is moving to another broker",
    kafka.ReplicaNotAvailableError: "a replica is not available",
    kafka.RequestTimedOutError: "no answer in time",
    kafka.StaleMetadata: "the cluster is changing",
    kafka.UnknownError: "the broker reports an error that it does not name",
    kafka.UnknownProducerId: "the broker has forgotten this producer",
    kafka.UnknownTopicOrPartitionError: "the broker does not know this partition now",
}


KINDS: dict[type[Exception], str] = {
    kafka.CorruptRecordException: ANSWERED,
    kafka.InvalidProducerEpoch: "fenced",
    kafka.InvalidProducerIdMapping: "fenced",
    kafka.KafkaConnectionError: "connect",
    kafka.KafkaStorageError: "storage",
    kafka.KafkaTimeoutError: "timeout",
    kafka.LeaderNotAvailableError: "leader_moved",
    kafka.NodeNotReadyError: "connect",
    kafka.NotEnoughReplicasAfterAppendError: ANSWERED,
    kafka.NotEnoughReplicasError: ANSWERED,
    kafka.NotLeaderForPartitionError: "leader_moved",
    kafka.OutOfOrderSequenceNumber: "fenced",
    kafka.ProducerClosed: "aborted",
    kafka.ProducerFenced: "fenced",
    kafka.ReassignmentInProgress: "leader_moved",
    kafka.ReplicaNotAvailableError: "leader_moved",
    kafka.RequestTimedOutError: "timeout",
    kafka.StaleMetadata: "leader_moved",
    kafka.UnknownError: ANSWERED,
    kafka.UnknownProducerId: "fenced",
    kafka.UnknownTopicOrPartitionError: "leader_moved",
}
"""What transient exceptions are about, as `policy.quarantine` has it; all others of these say that a broker is
unavailable. What a broker answers beside them is about the topic that was asked for."""


def error_of(code: int) -> type[Exception]:
    """The exception for what a broker answers to a batch."""
    found: type[Exception] = InvalidRecord if code == InvalidRecord.errno else kafka.for_code(code)
    return found


def blames_records(exc: Exception) -> bool:
    """Whether other records might well be taken: the error is about these, or it is not known what it is about."""
    if isinstance(exc, (*TOO_LARGE, InvalidRecord)):
        return True
    return not any(cls in CONFIGURATION or cls in TRANSIENT for cls in type(exc).__mro__)


def translate(exc: Exception, what: str, *, records: int = 0) -> EndpointError:
    """The error for an exception of aiokafka; `what` names topic and brokers, `records` a batch's size."""
    if isinstance(exc, TOO_LARGE):
        if records == 1:
            return EntryRefused(f"{what}: larger than the broker accepts")
        return EndpointUnavailable(
            f"{what}: a batch of {records} is larger than the broker accepts; it is split", "too_large"
        )
    for cls in type(exc).__mro__:
        if cls in CONFIGURATION:
            return EndpointMisconfigured(f"{what}: {CONFIGURATION[cls]} ({_name(exc)})")
        if cls in TRANSIENT:
            return EndpointUnavailable(f"{what}: {TRANSIENT[cls]} ({_name(exc)})", KINDS.get(cls, "unavailable"))
    return EndpointUnavailable(
        f"{what}: {_name(exc)}", ANSWERED if isinstance(exc, kafka.BrokerResponseError) else "unavailable"
    )


def _name(exc: Exception) -> str:
    """The class alone: an exception's own text may quote what was sent."""
    return type(exc).__name__
