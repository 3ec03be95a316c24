"""Which of aiokafka's exceptions mean what."""

from __future__ import annotations

from typing import Any

import aiokafka.errors as kafka
import pytest

from remora.endpoints.kafka.errors import CONFIGURATION, TOO_LARGE, TRANSIENT, translate
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable, EntryRefused


def names(classes: Any) -> list[Any]:
    return sorted(classes, key=lambda cls: str(cls.__name__))


@pytest.mark.parametrize("cls", names(TRANSIENT))
def test_transient(cls: type[Exception]) -> None:
    """These are tried again, with topic and class in the reason."""
    error = translate(cls("secret"), "topic t at b:1")

    assert type(error) is EndpointUnavailable
    assert str(error) == f"topic t at b:1: {TRANSIENT[cls]} ({cls.__name__})"


@pytest.mark.parametrize("cls", names(CONFIGURATION))
def test_configuration(cls: type[Exception]) -> None:
    """These stop the topic, with topic and class in the reason."""
    error = translate(cls("secret"), "topic t at b:1")

    assert type(error) is EndpointMisconfigured
    assert str(error) == f"topic t at b:1: {CONFIGURATION[cls]} ({cls.__name__})"


@pytest.mark.parametrize("cls", names(TOO_LARGE))
def test_poison(cls: type[Exception]) -> None:
    """A record that was refused alone is refused for good; one among others is not."""
    assert type(translate(cls(), "t", records=1)) is EntryRefused
    assert type(translate(cls(), "t", records=2)) is EndpointUnavailable


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (kafka.NotEnoughReplicasError, "answered"),
        (kafka.NotEnoughReplicasAfterAppendError, "answered"),
        (kafka.CorruptRecordException, "answered"),
        (kafka.UnknownError, "answered"),
        (kafka.IllegalGenerationError, "answered"),
        (kafka.UnknownTopicOrPartitionError, "leader_moved"),
        (kafka.TopicAuthorizationFailedError, "configuration"),
        (kafka.KafkaStorageError, "storage"),
        (kafka.RequestTimedOutError, "timeout"),
        (kafka.KafkaConnectionError, "connect"),
        (kafka.BrokerNotAvailableError, "unavailable"),
        (kafka.KafkaError, "unavailable"),
    ],
)
def test_a_topics_refusal_is_not_its_brokers(cls: type[Exception], kind: str) -> None:
    """What a broker answers about a topic counts for that alone; no answer, and its own troubles, for the brokers."""
    assert translate(cls(), "t").kind == kind


def test_unlisted() -> None:
    """What stands in no list is transient."""
    assert type(translate(kafka.IllegalGenerationError(), "t")) is EndpointUnavailable


def test_lists_are_disjoint() -> None:
    """No exception stands in two lists."""
    assert not TRANSIENT.keys() & CONFIGURATION.keys()
    assert not TRANSIENT.keys() & set(TOO_LARGE)
    assert not CONFIGURATION.keys() & set(TOO_LARGE)


@pytest.mark.parametrize("code", range(90))
def test_every_code_of_the_protocol(code: int) -> None:
    """Whatever a broker answers to a batch becomes one of the three errors."""
    error = translate(kafka.for_code(code)(), "t", records=1)

    assert isinstance(error, EndpointUnavailable | EndpointMisconfigured | EntryRefused)


def test_only_retriable_ones_are_transient() -> None:
    """Everything that aiokafka itself would repeat is transient here too."""
    retriable = [
        cls
        for cls in vars(kafka).values()
        if isinstance(cls, type) and issubclass(cls, kafka.KafkaError) and getattr(cls, "retriable", False)
    ]

    assert retriable
    assert [cls for cls in retriable if type(translate(cls(), "t")) is not EndpointUnavailable] == []
