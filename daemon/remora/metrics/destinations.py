"""Events of endpoints and destinations: HTTP, Kafka, AMQP and NATS, quarantine, and what the operator denies."""

from __future__ import annotations

import logging

from remora.metrics.events import EventGroup, Instruments, say


class DestinationEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        counter, gauge = instruments.counter, instruments.gauge
        self._quarantines = counter("remora_quarantines", "Quarantines of failing destinations that a worker began.")
        self._quarantine_skips = counter(
            "remora_quarantine_skips",
            "Bad windows of a destination after which a worker's draw began no quarantine.",
        )
        self._quarantined = gauge("remora_quarantined_destinations", "Destinations in quarantine.")
        self._quarantining = gauge(
            "remora_quarantining_workers_ratio",
            "Share of all workers that quarantine a destination, for the destination that most of them do.",
        )
        self._denied = counter(
            "remora_denied_destinations", "Attempts to connect that `destinations` denied.", "scheme"
        )
        self._producers = gauge(
            "remora_kafka_producers", "Kafka producers that are open: shared ones, and those of one queue each.", "kind"
        )
        self._retired = counter("remora_kafka_retired_producers", "Kafka producers given up after a failure.")
        self._transactions = counter(
            "remora_kafka_transactions",
            "Kafka transactions, by outcome: committed, aborted, fenced (by the queue's next producer) or unknown.",
            "outcome",
        )
        for outcome in ("committed", "aborted", "fenced", "unknown"):
            self._transactions.labels(outcome)
        self._transaction_s = instruments.histogram(
            "remora_kafka_transaction_seconds",
            "Time that a Kafka transaction took until it was committed.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self._http_connections = gauge("remora_http_connections", "Connections to HTTP receivers that are open.")
        self._http_opened = counter("remora_http_opened_connections", "Connections to HTTP receivers that were opened.")
        self._http_requests = counter(
            "remora_http_requests", "Requests to HTTP receivers, by answer; none: no whole answer.", "answer",
        )  # fmt: skip
        self._http_retried = counter(
            "remora_http_quick_retries", "Records tried again while others of the receiver arrived."
        )
        self._amqp_connections = gauge("remora_amqp_connections", "Connections to AMQP brokers that are open.")
        self._amqp_unroutable = counter(
            "remora_amqp_unroutable_messages",
            "Messages that an AMQP broker confirmed although no queue took them; 0 with amqp-ack-level=routable.",
        )
        self._nats_connections = gauge("remora_nats_connections", "Connections to NATS servers that are open.")
        self._nats_known = counter(
            "remora_nats_known_messages",
            "Messages that a NATS stream had already, by its window of duplicates or the subject's last message.",
            "by",
        )
        for by in ("window", "look"):
            self._nats_known.labels(by)

    def denied(self, scheme: str) -> None:
        """The operator's rules let no topic connect to where an endpoint of this URI scheme lies."""
        self._denied.labels(scheme).inc()

    def quarantined(self, destination: str, errors: int, seconds: float) -> None:
        """A destination failed so often that one queue at a time tries it from now on."""
        self._quarantines.inc()
        self._quarantined.inc()
        say(
            logging.WARNING, "destination_quarantined", "a destination fails; one queue at a time tries it now",
            destination=destination, errors=errors, seconds=seconds,
        )  # fmt: skip

    def quarantining(self, part: float) -> None:
        """So many of all workers, as a part, quarantine one destination, by the rows that they announce."""
        self._quarantining.set(part)

    def quarantine_skipped(self) -> None:
        """A destination failed often enough for quarantine, and this worker drew not to quarantine it."""
        self._quarantine_skips.inc()

    def quarantine_ended(self, destination: str, why: str, left: int, **more: object) -> None:
        """A destination's quarantine is over; `left` others are in quarantine still. `more` are fields of the line."""
        self._quarantined.set(left)
        say(
            logging.INFO, "destination_released", "a destination is used again",
            destination=destination, reason=why, **more,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- HTTP

    def http_opened(self) -> None:
        """A connection to a receiver was opened."""
        self._http_connections.inc()
        self._http_opened.inc()

    def http_closed(self) -> None:
        """A connection to a receiver was closed."""
        self._http_connections.dec()

    def http_answered(self, kind: str, requests: int) -> None:
        """This many requests got answers of one class: 2xx, 3xx, 4xx, 5xx, other, or none for no whole answer."""
        self._http_requests.labels(kind).inc(requests)

    def http_retried(self) -> None:
        """A record is tried again by its own lane, while others are delivered."""
        self._http_retried.inc()

    # ------------------------------------------------------------------------------------ Kafka

    def producer_opened(self, cluster: str) -> None:
        """A producer that topics share was opened; `cluster` names brokers, without secrets."""
        self._producers.labels("shared").inc()
        say(logging.DEBUG, "producer_opened", "Kafka producer opened", cluster=cluster)

    def producer_retired(self, cluster: str, reason: str) -> None:
        """A producer takes nothing new after a failure; another one is opened where it is needed."""
        self._retired.inc()
        self._say_seldom(
            logging.WARNING, "producer_retired", ("retired", cluster, reason),
            "Kafka producer given up after a failure", cluster=cluster, reason=reason,
        )  # fmt: skip

    def producer_closed(self, cluster: str) -> None:
        """A producer that topics shared was closed."""
        self._producers.labels("shared").dec()
        say(logging.DEBUG, "producer_closed", "Kafka producer closed", cluster=cluster)

    def exact_opened(self, cluster: str) -> None:
        """The connections of one queue's transactions were opened."""
        self._producers.labels("exact").inc()

    def exact_closed(self, cluster: str) -> None:
        """The connections of one queue's transactions were closed."""
        self._producers.labels("exact").dec()

    def transaction_ended(self, cluster: str, outcome: str, seconds: float) -> None:
        """Counts the wait for a transaction; `outcome` is committed, aborted, fenced or unknown."""
        self._transactions.labels(outcome).inc()
        if outcome == "committed":
            self._transaction_s.observe(seconds)
        else:
            self._say_seldom(
                logging.WARNING, "transaction_failed", ("transaction", cluster, outcome), "a transaction failed",
                cluster=cluster, outcome=outcome, seconds=round(seconds, 3),
            )  # fmt: skip

    def partitions_changed(self, cluster: str, topic: str, before: int, after: int) -> None:
        """A Kafka topic has another number of partitions: keys move, once nothing is in flight."""
        if self._is_news(f"partitions of {cluster} {topic}", f"{before} {after}"):
            say(
                logging.WARNING, "partitions_changed", "the Kafka topic has another number of partitions, keys move",
                cluster=cluster, kafka_topic=topic, before=before, after=after,
            )  # fmt: skip

    def limit_assumed(self, cluster: str, topic: str, limit_bytes: int) -> None:
        """A Kafka topic's size limit cannot be read for want of a permission."""
        say(
            logging.WARNING, "limit_assumed", "max.message.bytes cannot be read (no permission), a value is assumed",
            cluster=cluster, kafka_topic=topic, limit_bytes=limit_bytes,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- AMQP

    def amqp_connected(self, broker: str) -> None:
        """A connection to an AMQP broker was opened; `broker` is `host:port`."""
        self._amqp_connections.inc()
        say(logging.DEBUG, "amqp_connected", "AMQP connection opened", broker=broker)

    def amqp_disconnected(self, broker: str, reason: str) -> None:
        """A connection to an AMQP broker ended."""
        self._amqp_connections.dec()
        self._say_seldom(
            logging.INFO, "amqp_disconnected", ("amqp", broker, reason),
            "AMQP connection ended", broker=broker, reason=reason,
        )  # fmt: skip

    def amqp_unroutable(self, broker: str, exchange: str) -> None:
        """The broker confirmed a message that no queue got; its topic counts it as delivered."""
        self._amqp_unroutable.inc()
        self._say_seldom(
            logging.WARNING, "amqp_unroutable", ("unroutable", broker, exchange),
            "a message reached no queue, and counts as delivered: amqp-ack-level is not routable",
            broker=broker, exchange=exchange,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- NATS

    def nats_connected(self, server: str) -> None:
        """A connection to a NATS server was opened; `server` is `host:port`."""
        self._nats_connections.inc()
        say(logging.DEBUG, "nats_connected", "NATS connection opened", server=server)

    def nats_disconnected(self, server: str, reason: str) -> None:
        """A connection to a NATS server ended."""
        self._nats_connections.dec()
        self._say_seldom(
            logging.INFO, "nats_disconnected", ("nats", server, reason),
            "NATS connection ended", server=server, reason=reason,
        )  # fmt: skip

    def nats_known(self, server: str, by: str) -> None:
        """A stream had a message that was to be sent; `by` is window or look."""
        self._nats_known.labels(by).inc()
