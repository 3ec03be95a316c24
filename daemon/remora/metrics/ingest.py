"""Events of ingest: requests, their answers, connections, memory and credentials."""

from __future__ import annotations

import logging

from remora.metrics.counts import TimesHistogram
from remora.metrics.events import EventGroup, Instruments, log, say
from remora.policy.status.bucket_news import NewsBook


class IngestEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        self.taken_in_bytes = 0
        """Bytes of the entries made of events that were taken in."""
        self.buckets = NewsBook()
        """What became last of events of each bucket that were sent without a topic; for the status."""
        self._ingested_events = instruments.topic_counter("remora_ingested_events", "Events taken in and stored.")
        self._ingested_bytes = instruments.topic_counter(
            "remora_ingested_bytes", "Bytes of the entries stored for events that were taken in."
        )
        self._ingest_dropped = instruments.topic_counter(
            "remora_ingest_dropped_fields", "Members of events that an entry cannot hold."
        )
        self._ingest_repeated = instruments.topic_counter(
            "remora_ingest_repeats", "Requests to the ingest API that were stored before and are answered again."
        )
        self._ingest_tested = instruments.topic_counter(
            "remora_ingest_test_events", "Events s3:TestEvent, which are answered and stored nowhere."
        )
        counter, gauge = instruments.counter, instruments.gauge
        self._ingest_unmatched = counter(
            "remora_ingest_unmatched", "Events that were sent without a topic and match no notification."
        )
        self._ingest_s = TimesHistogram(
            instruments.registry,
            "remora_ingest_request_seconds",
            "Time from a request's headers to the ingest API's answer, by kind of request and class of status.",
            ("kind", "status"),
            (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
        )
        self._ingest_refused = counter(
            "remora_ingest_refusals", "Requests that the ingest API refused, by the code of the answer.", "code"
        )
        self._ingest_cut = counter(
            "remora_ingest_cut_connections", "Connections that the ingest API cut, by what was wrong.", "reason"
        )
        self._ingest_limited = counter(
            "remora_ingest_limited", "Requests that the ingest API answered with 429, by the scope of the limit.", "of"
        )
        self._ingest_requests = gauge("remora_ingest_requests", "Requests to the ingest API that are under way.")
        self._ingest_held = gauge("remora_ingest_held_bytes", "Bytes of bodies of the ingest API's requests under way.")
        self._ingest_connections = gauge("remora_ingest_connections", "Open connections of the ingest API.")
        self._ingest_is_paused = gauge(
            "remora_ingest_paused",
            "1 while new requests to the ingest API wait, because bodies hold too much memory; else 0.",
        )
        self._ingest_pauses = counter(
            "remora_ingest_pauses",
            "Times that bodies held too much memory, and requests to the ingest API began to wait.",
        )
        self._ingest_waiting = gauge(
            "remora_ingest_waiting_requests", "Requests to the ingest API that wait for memory."
        )
        self._ingest_wait_s = instruments.histogram(
            "remora_ingest_wait_seconds",
            "Time for which a request to the ingest API waited for memory; only requests that waited.",
            buckets=(0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30),
        )

    def ingested(self, topic: str, events: int, nbytes: int, dropped: int) -> None:
        """Events were taken in and are stored; `dropped` members of them had no place in an entry."""
        self._ingested_events.add(topic, events)
        self._ingested_bytes.add(topic, nbytes)
        self.taken_in_bytes += nbytes
        if dropped:
            self._ingest_dropped.add(topic, dropped)
        if log.isEnabledFor(logging.DEBUG):
            say(logging.DEBUG, "ingested", "events stored", topic=topic, events=events, bytes=nbytes, dropped=dropped)

    def ingest_repeated(self, topic: str) -> None:
        """A request came again, and nothing was stored twice."""
        self._ingest_repeated.add(topic, 1)

    def ingest_unmatched(self, events: int, bucket: str) -> None:
        """Events match no notification, the last of them one of this bucket."""
        self._ingest_unmatched.inc(events)
        self._say_seldom(
            logging.INFO, "ingest_unmatched", "ingest_unmatched", "events match no notification",
            events=events, bucket=bucket,
        )  # fmt: skip

    def ingest_tested(self, topic: str, events: int) -> None:
        """Somebody's bucket was told to notify this topic, and has said so."""
        self._ingest_tested.add(topic, events)
        self._say_seldom(
            logging.INFO, "ingest_tested", ("tested", topic), "an s3:TestEvent came, which is not stored", topic=topic
        )

    def ingest_answered(self, kind: str, status: int, seconds: float) -> None:
        """A request was answered; `kind` is one of few."""
        self._ingest_s.observe(seconds, kind, f"{status // 100}xx")

    def ingest_refused(self, code: str, status: int, reason: str, client: str = "") -> None:
        """A request was refused. Only those that an operator should look at are logged."""
        self._ingest_refused.labels(code).inc()
        if status >= 500 or status in (401, 403):
            self._say_seldom(
                logging.WARNING, "ingest_refused", ("ingest", code), "events were not taken",
                code=code, reason=reason, **({"client": client} if client else {}),
            )  # fmt: skip

    def ingest_limited(self, of: str) -> None:
        """A limit of a token or of a topic was used up; the refusal itself is counted by its code."""
        self._ingest_limited.labels(of).inc()

    def ingest_connection_cut(self, reason: str) -> None:
        """A connection was ended from this side; `reason` is one of few."""
        self._ingest_cut.labels(reason).inc()
        self._say_seldom(logging.INFO, "ingest_connection_cut", ("cut", reason), "a connection was cut", reason=reason)

    def ingest_load(self, connections: int, requests: int, nbytes: int) -> None:
        """The connections that are open, the requests under way, and the bytes of their bodies, now."""
        self._ingest_connections.set(connections)
        self._ingest_requests.set(requests)
        self._ingest_held.set(nbytes)

    def ingest_memory(self, *, is_paused: bool, waiting: int) -> None:
        """`waiting` requests of this worker wait; whether requests wait is the same for all workers of the host."""
        self._ingest_is_paused.set(is_paused)
        self._ingest_waiting.set(waiting)

    def ingest_paused(self, nbytes: int) -> None:
        """New requests begin to wait, since bodies hold `nbytes` in all workers; the worker that sees it says so."""
        self._ingest_pauses.inc()
        self._say_seldom(
            logging.INFO, "ingest_paused", "ingest_paused", "requests wait: bodies under way hold all the memory",
            bytes=nbytes,
        )  # fmt: skip

    def ingest_waited(self, seconds: float) -> None:
        """A request has waited for memory, and whether it got any is counted by its answer."""
        self._ingest_wait_s.observe(seconds)

    def ingest_serving(self, address: str, tokens: int | None) -> None:
        """Events are taken in; from every client that can connect where `tokens` is None."""
        who = "every client that can connect" if tokens is None else f"the holders of {tokens} tokens"
        say(logging.INFO, "ingest_serving", "events are taken in", address=address, senders=who)

    def ingest_credentials(self, what: str) -> None:
        """Tokens or certificate were read again and are in force from now on."""
        say(logging.INFO, "ingest_credentials", "credentials were read again", files=what)

    def ingest_credentials_refused(self, why: str) -> None:
        """Tokens or certificate were read again and refused; the earlier ones stay in force."""
        self._say_seldom(
            logging.ERROR, "ingest_credentials_refused", ("credentials", why), "the old credentials stay", reason=why
        )
