"""What becomes of endpoints' connections and requests, for those who count it: one observer for all kinds.

Each kind of endpoint asks for its part, so that a test watches that alone; `Telemetry` has all of them.
"""

from __future__ import annotations

import logging
from typing import Protocol

from remora.endpoints.tasks import CrashLog, CrashObserver

log = logging.getLogger(__name__)


class KafkaObserver(CrashObserver, Protocol):
    """Hears what becomes of connections; `cluster` is `host:port,...` without secrets."""

    def producer_opened(self, cluster: str) -> None: ...

    def producer_retired(self, cluster: str, reason: str) -> None: ...

    def producer_closed(self, cluster: str) -> None: ...

    def exact_opened(self, cluster: str) -> None:
        """Connections for a route in transactions were opened."""
        ...

    def exact_closed(self, cluster: str) -> None: ...

    def transaction_ended(self, cluster: str, outcome: str, seconds: float) -> None:
        """A transaction ended after this wait; `outcome` is committed, aborted, fenced or unknown."""
        ...

    def partitions_changed(self, cluster: str, topic: str, before: int, after: int) -> None: ...

    def limit_assumed(self, cluster: str, topic: str, limit_bytes: int) -> None: ...


class AmqpObserver(CrashObserver, Protocol):
    """Hears what becomes of connections and messages; `broker` is `host:port` without secrets."""

    def amqp_connected(self, broker: str) -> None: ...

    def amqp_disconnected(self, broker: str, reason: str) -> None: ...

    def amqp_unroutable(self, broker: str, exchange: str) -> None:
        """A message was confirmed that reached no queue."""
        ...


class NatsObserver(CrashObserver, Protocol):
    """Hears what becomes of connections and messages; `server` is `host:port` without secrets."""

    def nats_connected(self, server: str) -> None: ...

    def nats_disconnected(self, server: str, reason: str) -> None: ...

    def nats_known(self, server: str, by: str) -> None:
        """A stream had a message already; by its duplicate window (`window`), or by its subject's last one (`look`)."""
        ...


class HttpObserver(CrashObserver, Protocol):
    """Hears what becomes of connections and requests."""

    def http_opened(self) -> None:
        """A connection was opened."""
        ...

    def http_closed(self) -> None:
        """A connection was closed."""
        ...

    def http_answered(self, kind: str, requests: int) -> None:
        """`count` requests had answers of one class: 2xx, 3xx, 4xx, 5xx, other, or none for no answer."""
        ...

    def http_retried(self) -> None:
        """A lane tries a record again itself."""
        ...


class EndpointObserver(KafkaObserver, AmqpObserver, NatsObserver, HttpObserver, Protocol):
    """All of it."""


class LogObserver(CrashLog):
    """Writes to the log, where there is no telemetry."""

    def producer_opened(self, cluster: str) -> None:
        log.debug("%s: producer opened", cluster)

    def producer_retired(self, cluster: str, reason: str) -> None:
        log.warning("%s: producer retired after %s; new batches go to another one", cluster, reason)

    def producer_closed(self, cluster: str) -> None:
        log.debug("%s: producer closed", cluster)

    def exact_opened(self, cluster: str) -> None:
        log.debug("%s: transactional producer opened", cluster)

    def exact_closed(self, cluster: str) -> None:
        log.debug("%s: transactional producer closed", cluster)

    def transaction_ended(self, cluster: str, outcome: str, seconds: float) -> None:
        log.debug("%s: transaction %s after %.3f s", cluster, outcome, seconds)

    def partitions_changed(self, cluster: str, topic: str, before: int, after: int) -> None:
        log.warning("%s: topic %s went from %d to %d partitions, keys move", cluster, topic, before, after)

    def limit_assumed(self, cluster: str, topic: str, limit_bytes: int) -> None:
        log.warning(
            "%s: max.message.bytes of topic %s cannot be read (no permission), %d is assumed",
            cluster, topic, limit_bytes,
        )  # fmt: skip

    def amqp_connected(self, broker: str) -> None:
        log.debug("%s: connected", broker)

    def amqp_disconnected(self, broker: str, reason: str) -> None:
        log.debug("%s: disconnected: %s", broker, reason)

    def amqp_unroutable(self, broker: str, exchange: str) -> None:
        log.debug("%s: a message for exchange %s reached no queue", broker, exchange)

    def nats_connected(self, server: str) -> None:
        log.debug("%s: connected", server)

    def nats_disconnected(self, server: str, reason: str) -> None:
        log.debug("%s: disconnected: %s", server, reason)

    def nats_known(self, server: str, by: str) -> None:
        log.debug("%s: the stream has the message (%s)", server, by)

    def http_opened(self) -> None:
        log.debug("HTTP connection opened")

    def http_closed(self) -> None:
        log.debug("HTTP connection closed")

    def http_answered(self, kind: str, requests: int) -> None:
        log.debug("%d HTTP requests answered with %s", requests, kind)

    def http_retried(self) -> None:
        log.debug("HTTP record tried again")
