"""Every event that remora reports, with its metric and its log line.

Levels: ERROR when an operator must act or data was lost, WARNING when something is odd but recovers, INFO for
lifecycle, DEBUG per batch. What may happen again and again is said once, and then at most once a minute with
its count. Nothing here is called per entry, save for `dead_lettered`.

All methods belong to the event loop's thread. Texts must be fit for anybody's eyes: pass `Target.redacted`.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from remora.codec import speedups
from remora.metrics.figures import LastFailure, TopicFigures, topic_figures
from remora.metrics.logs import Repeats
from remora.metrics.series import AgeHistogram, Backlog, Backlogs, Books, Failing, Ledgers, TopicCounter, TopicLabels
from remora.model.ledger import Balance
from remora.model.traffic import Meter, Priority, limit_of

MOST_REMARKS = 10_000
MOST_REMARKS_EACH = 16

_log = logging.getLogger("remora")

# A `_created` series beside every counter would double the exposition and tells nothing that a restart does not.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus-client leaves it unannotated


class Telemetry:
    """The daemon's metrics in a registry of their own, and its log."""

    def __init__(
        self,
        *,
        metric_topics: int = 500,
        repeat_interval_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`metric_topics` bounds the topics with series of their own; `clock` only spaces repeated log lines."""
        self.registry = CollectorRegistry(auto_describe=True)
        self.repeats = Repeats(repeat_interval_s, clock)
        self._clock = clock
        self._labels = TopicLabels(metric_topics)
        self._failures: dict[str, tuple[float, int]] = {}
        self._last_failures: dict[str, tuple[float, str, str]] = {}
        self._remarks: dict[str, set[str]] = {}
        self._store_connected = False
        self._traces_failing = False
        self.taken_in_bytes = 0
        """Bytes of the entries made of events that were taken in."""
        self._make_topic_metrics()
        self._make_worker_metrics()
        ProcessCollector(registry=self.registry)

    def _make_topic_metrics(self) -> None:
        registry, labels = self.registry, self._labels

        def counter(name: str, text: str, *further: str) -> TopicCounter:
            return TopicCounter(registry, labels, name, text, *further)

        self._listed_entries = counter("remora_listed_entries", "Entries read from queues.")
        self._listed_bytes = counter("remora_listed_bytes", "Bytes of entries read from queues.")
        self._delivered_entries = counter("remora_delivered_entries", "Entries that an endpoint acknowledged.")
        self._delivered_bytes = counter("remora_delivered_bytes", "Bytes of records that an endpoint acknowledged.")
        self._removed_entries = counter("remora_removed_entries", "Entries removed from queues.")
        self._failed = counter("remora_failures", "Attempts that failed, by kind of failure.", "kind")
        self._parked = counter("remora_parked_entries", "Entries moved to the dead-letter store.", "cause")
        self._retries = counter("remora_retries", "Pauses before another attempt.")
        self._retry_pauses = counter("remora_retry_pause_seconds", "Time decided to be spent in such pauses.")
        self._counters = (
            self._listed_entries, self._listed_bytes, self._delivered_entries, self._delivered_bytes,
            self._removed_entries, self._failed, self._parked, self._retries, self._retry_pauses,
            *self._make_ingest_counters(),
        )  # fmt: skip
        self._ages = AgeHistogram(
            labels, "remora_event_age_seconds", "Time from an event's commit by the gateway to its acknowledgement."
        )
        self._backlogs = Backlogs(labels, "remora_backlog")
        self._ledgers = Ledgers(labels, "remora_ledger")
        self._failing = Failing(
            labels,
            "remora_topic_failing",
            "1 while a topic's last attempt failed; kind=configuration or damaged: stopped until an operator acts.",
        )
        for collector in (self._ages, self._backlogs, self._ledgers, self._failing):
            registry.register(collector)

    def _make_ingest_counters(self) -> tuple[TopicCounter, ...]:
        registry, labels = self.registry, self._labels
        self._ingested_events = TopicCounter(registry, labels, "remora_ingested_events", "Events taken in and stored.")
        self._ingested_bytes = TopicCounter(
            registry, labels, "remora_ingested_bytes", "Bytes of the entries that were made of such events."
        )
        self._ingest_dropped = TopicCounter(
            registry, labels, "remora_ingest_dropped_fields", "Members of events that an entry cannot hold."
        )
        self._ingest_repeated = TopicCounter(
            registry, labels, "remora_ingest_repeats", "Requests that had been stored before and were answered again."
        )
        return self._ingested_events, self._ingested_bytes, self._ingest_dropped, self._ingest_repeated

    def _make_http_metrics(self) -> None:
        registry = self.registry
        self._http_connections = Gauge(
            "remora_http_connections", "Connections to HTTP receivers that are open.", registry=registry
        )
        self._http_opened = Counter(
            "remora_http_opened_connections", "Connections to HTTP receivers that were opened.", registry=registry
        )
        self._http_requests = Counter(
            "remora_http_requests", "Requests to HTTP receivers, by answer; none: no whole answer.", ("answer",),
            registry=registry,
        )  # fmt: skip
        self._http_retried = Counter(
            "remora_http_quick_retries", "Records tried again while others of the receiver arrived.", registry=registry
        )

    def _make_worker_metrics(self) -> None:
        registry = self.registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self._build = gauge("remora_build_info", "1, with this build's versions.", "version", "python", "codec")
        self._spans = counter(
            "remora_spans", "Spans that were sampled; that a receiver took; that it did not take.", "state"
        )
        self._workers = gauge("remora_workers", "Worker processes that are ready.")
        self._worker_ends = counter("remora_worker_ends", "Worker processes that ended without being asked to.")
        self._worker_hangs = counter("remora_worker_hangs", "Worker processes killed because they made no progress.")
        self._ready = gauge("remora_ready", "1 when /-/ready says so.")
        self._delivery_ready = gauge("remora_delivery_ready", "1 when /-/ready/delivery says so.")
        self._owned = gauge("remora_owned_shards", "Queues whose lock this process holds.")
        self._eligible = gauge("remora_eligible_shards", "Queues that remora is to deliver, held by a worker or not.")
        self._members = gauge("remora_members", "Workers that share the queues, this one included.")
        self._target = gauge("remora_target_shards", "Queues that are this process's share of all.")
        self._moves = counter(
            "remora_shard_moves", "Queues taken from another worker, by why it held them no more.", "kind"
        )
        self._usage = gauge("remora_usage_ratio", "What this process uses of a resource, as a fraction.", "resource")
        self._usage_history = gauge("remora_usage_history_ratio", "Its busiest resource over time.")
        self._balance_skipped = counter(
            "remora_balance_skipped", "Rounds in which no queue was given away for its load, by reason.", "reason"
        )
        self._quarantines = counter("remora_quarantines", "Destinations that a worker left to others for a while.")
        self._quarantine_skips = counter(
            "remora_quarantine_skips", "Bad windows of a destination after which a worker did not, by its draw."
        )
        self._quarantined = gauge("remora_quarantined_destinations", "Destinations in quarantine.")
        self._denied = counter(
            "remora_denied_destinations", "Attempts to connect that `destinations` denied.", "scheme"
        )
        self._acquired = counter("remora_lock_acquisitions", "Queue locks taken.")
        self._takeovers = counter("remora_lock_takeovers", "Queue locks taken from an owner that let them run out.")
        self._renewals = counter("remora_lock_renewals", "Queue locks renewed.")
        self._renewal_failures = counter("remora_lock_renewal_failures", "Renewals that got no answer.")
        self._losses = counter("remora_lock_losses", "Queue locks lost while held.")
        self._refusals = counter("remora_removals_refused", "Removals refused by the store: the lock was lost before.")
        self._releases = counter("remora_lock_releases", "Queue locks given back.")
        self._renewal_s = Histogram(
            "remora_lock_renewal_seconds",
            "Time that renewing queue locks took, of all that were due together.",
            registry=registry,
            buckets=(0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30),
        )
        self._in_flight = gauge("remora_in_flight_bytes", "Bytes held of entries that are not yet done with.")
        self._unacked = gauge("remora_unacknowledged_entries", "Entries that were listed and are not yet done with.")
        self._unacked_waits = counter(
            "remora_unacknowledged_waits",
            "Listings that waited for acknowledgements, by whose bound was reached: a topic's or a destination's.",
            "of",
        )
        self._turned_back = counter(
            "remora_turned_back_entries",
            "Entries that were read and turned back for a shard of a higher priority, by their own shard's priority.",
            "priority",
        )
        self._syncs = counter("remora_store_syncs", "Transactions that the store has synced to this host's disk.")
        self._synced = 0
        self._connected = gauge("remora_store_connected", "1 while the store answers.")
        self._store_failing = gauge(
            "remora_store_failing", "1 while the store or a part of it cannot be used for this cause.", "cause"
        )
        self._store_causes: set[str] = set()
        self._discovery_failures = counter("remora_discovery_failures", "Looks for queues and topics that failed.")
        self._progress = gauge("remora_progress_timestamp_seconds", "When an entry last was delivered or parked.")
        self._reloads = counter("remora_config_reloads", "Reloads of the configuration.", "result")
        self._reload_ok = gauge("remora_config_last_reload_successful", "1 when the last reload was accepted.")
        self._reload_ok.set(1)
        self._crashes = counter("remora_crashes", "Unexpected errors; the part concerned starts anew.")
        self._lag = Histogram(
            "remora_event_loop_lag_seconds",
            "How late the event loop wakes up.",
            registry=registry,
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
        )

        self._make_endpoint_metrics(counter, gauge)
        self._make_ingest_metrics(counter, gauge)
        self._make_shaping_metrics(counter, gauge)

    def _make_endpoint_metrics(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        self._producers = gauge(
            "remora_kafka_producers", "Kafka producers that are open: shared ones, and those of one queue each.", "kind"
        )
        self._retired = counter("remora_kafka_retired_producers", "Kafka producers given up after a failure.")
        self._make_http_metrics()
        self._amqp_connections = gauge("remora_amqp_connections", "Connections to AMQP brokers that are open.")
        self._amqp_unroutable = counter(
            "remora_amqp_unroutable_messages",
            "Messages that an AMQP broker confirmed and no queue got; none with amqp-ack-level routable.",
        )
        self._transactions = counter(
            "remora_kafka_transactions",
            "Transactions, by outcome: committed, aborted, fenced (by the queue's next producer) or unknown.",
            "outcome",
        )
        for outcome in ("committed", "aborted", "fenced", "unknown"):
            self._transactions.labels(outcome)
        self._transaction_s = Histogram(
            "remora_kafka_transaction_seconds",
            "Time that a transaction took until it was committed.",
            registry=self.registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )

    def _make_ingest_metrics(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        self._ingest_s = Histogram(
            "remora_ingest_request_seconds",
            "Time from a request's headers to its answer, by kind of request and class of status.",
            ("kind", "status"),
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
        )
        self._ingest_times: dict[tuple[str, int], Histogram] = {}
        self._ingest_refused = counter("remora_ingest_refusals", "Requests refused, by the code of the answer.", "code")
        self._ingest_cut = counter("remora_ingest_cut_connections", "Connections cut, by what was wrong.", "reason")
        self._ingest_limited = counter(
            "remora_ingest_limited", "Requests that were answered 429, by the scope of their limit.", "of"
        )
        self._ingest_requests = gauge("remora_ingest_requests", "Requests that are under way.")
        self._ingest_held = gauge("remora_ingest_held_bytes", "Bytes of bodies of the requests that are under way.")
        self._ingest_connections = gauge("remora_ingest_connections", "Connections that are open.")
        self._ingest_is_paused = gauge(
            "remora_ingest_paused", "1 while new requests wait, since bodies of all workers hold too much; else 0."
        )
        self._ingest_pauses = counter(
            "remora_ingest_pauses", "Times that bodies held too much, and requests began to wait."
        )
        self._ingest_waiting = gauge("remora_ingest_waiting_requests", "Requests that wait for memory.")
        self._ingest_wait_s = Histogram(
            "remora_ingest_wait_seconds",
            "Time that requests have waited for memory, of those that had to.",
            registry=self.registry,
            buckets=(0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30),
        )

    def _make_shaping_metrics(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        both = ("scope", "priority")
        self._shaping_granted = counter("remora_shaping_granted_bytes", "Bytes that credit was granted for.", *both)
        self._shaping_passed = counter(
            "remora_shaping_passed_bytes", "Bytes that went through a scope that is not enabled.", *both
        )
        self._shaping_waits = counter("remora_shaping_waits", "Listings that had to wait for credit.", *both)
        self._shaping_wait_s = Histogram(
            "remora_shaping_wait_seconds",
            "Time that listings waited for credit, of those that had to.",
            both,
            registry=self.registry,
            buckets=(0.001, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self._shaping_waiting = gauge("remora_shaping_waiting", "Listings that wait for credit now.", *both)
        self._shaping_level = gauge(
            "remora_shaping_level_bytes", "Credit of all workers in all groups; negative is a debt.", *both
        )
        self._shaping_moved = {
            "transferred": counter(
                "remora_shaping_transferred_bytes", "Credit that the spare gave to a priority.", *both
            ),
            "donated": counter(
                "remora_shaping_donated_bytes", "Credit that a priority left over, for the spare.", *both
            ),
        }
        self._shaping_lost = counter("remora_shaping_lost_bytes", "Credit that no sender used.", "scope")
        self._shaping_limit = gauge(
            "remora_shaping_limit_bytes", "Guaranteed bytes per second of all priorities and the spare.", "scope"
        )
        self._shaping_meter = {
            what: gauge(f"remora_shaping_{what}_bytes", text, "scope", "meter")
            for what, text in (
                ("guaranteed", "Bytes per second that a meter guarantees."),
                ("max", "Bytes per second that a meter allows at most; absent without a limit."),
                ("burst", "Bytes that a meter allows at once."),
            )
        }
        self._shaping_scale = gauge(
            "remora_shaping_scale_ratio",
            "How much of an adaptive spare there is, in the group with the least.",
            "scope",
        )
        self._shaping_unacked = gauge(
            "remora_shaping_unacked_bytes", "Bytes that were granted and no endpoint has acknowledged.", "scope"
        )
        self._shaping_late_s = gauge("remora_shaping_late_seconds", "How late the last tick of credit was.")
        self._shown_scopes: set[str] = set()

    # ---------------------------------------------------------------------------------- batches

    def listed(self, topic: str, entries: int, nbytes: int) -> None:
        """A listing of a queue brought entries."""
        self._listed_entries.add(topic, entries)
        self._listed_bytes.add(topic, nbytes)
        if _log.isEnabledFor(logging.DEBUG):
            _say(logging.DEBUG, "listed", "entries read", topic=topic, entries=entries, bytes=nbytes)

    def delivered(self, topic: str, entries: int, nbytes: int, created_ns: Sequence[int], now_ns: int) -> None:
        """The endpoint acknowledged a batch at `now_ns`; `created_ns` has its entries' times of creation."""
        self._delivered_entries.add(topic, entries)
        self._delivered_bytes.add(topic, nbytes)
        self._ages.observe(topic, created_ns, now_ns)
        self._progress.set(now_ns / 1e9)
        if _log.isEnabledFor(logging.DEBUG):
            _say(logging.DEBUG, "delivered", "entries acknowledged", topic=topic, entries=entries, bytes=nbytes)

    def age_exemplar(self, topic: str, trace_id: str, age_s: float, now_s: float) -> None:
        """An event of this age, which arrived at `now_s`, belongs to this trace."""
        self._ages.exemplify(topic, trace_id, age_s, now_s)

    def span_sampled(self) -> None:
        """A span was begun that is to be exported."""
        self._spans.labels("sampled").inc()

    def spans_exported(self, count: int, why: str) -> None:
        """The receiver took spans, or did not, for this reason; called by the exporter's thread."""
        self._spans.labels("failed" if why else "exported").inc(count)
        if bool(why) == self._traces_failing:
            return
        self._traces_failing = bool(why)
        if why:
            _say(logging.WARNING, "traces_failing", "spans are lost; delivery goes on", reason=why)
        else:
            _say(logging.INFO, "traces_recovered", "spans are exported again")

    def removed(self, topic: str, entries: int) -> None:
        """Entries that are done with left their queue."""
        self._removed_entries.add(topic, entries)
        if _log.isEnabledFor(logging.DEBUG):
            _say(logging.DEBUG, "removed", "entries removed", topic=topic, entries=entries)

    def in_flight(self, nbytes: int, entries: int) -> None:
        """`nbytes` bytes are held now."""
        self._in_flight.set(nbytes)
        self._unacked.set(entries)

    def unacked_waited(self, of: str) -> None:
        """A listing waits for acknowledgements of a "topic" or of a "destination"."""
        self._unacked_waits.labels(of).inc()

    def turned_back(self, priority: str, entries: int) -> None:
        """Entries that were read ahead are read again later, since a shard of a higher priority found no room."""
        self._turned_back.labels(priority).inc(entries)
        if _log.isEnabledFor(logging.DEBUG):
            _say(logging.DEBUG, "turned_back", "entries turned back", priority=priority, entries=entries)

    def store_synced(self, transactions: int) -> None:
        """The store has synced `count` transactions since it was opened."""
        self._syncs.inc(transactions - self._synced)
        self._synced = transactions

    # ---------------------------------------------------------------------------------- shaping

    def shaping_granted(self, scope: str, priority: str, nbytes: int, charged: bool) -> None:
        """A listing may send `nbytes`, `charged` in a scope that is enabled."""
        (self._shaping_granted if charged else self._shaping_passed).labels(scope, priority).inc(nbytes)

    def shaping_waits(self, scope: str, priority: str) -> None:
        """A listing waits for credit."""
        self._shaping_waits.labels(scope, priority).inc()

    def shaping_waited(self, scope: str, priority: str, seconds: float) -> None:
        """A listing has waited for credit, and goes on."""
        self._shaping_wait_s.labels(scope, priority).observe(seconds)

    def shaping_waiting(self, waiting: Mapping[tuple[str, str], int]) -> None:
        """How many listings wait now, by scope and priority; those that are left out have none."""
        self._shaping_waiting.clear()
        for labels, count in waiting.items():
            self._shaping_waiting.labels(*labels).set(count)

    def shaping_level(self, scope: str, priority: str, nbytes: int) -> None:
        """The credit of all workers in the groups of a scope."""
        self._shaping_level.labels(scope, priority).set(nbytes)

    def shaping_moved(self, what: str, scope: str, priority: str, nbytes: int) -> None:
        """Credit was moved: `transferred` to a priority, or `donated` by it."""
        self._shaping_moved[what].labels(scope, priority).inc(nbytes)

    def shaping_scale(self, scope: str, ratio: float, unacked: int) -> None:
        """A scope's spare counts at this scale, and `unacked` bytes are granted and acknowledged by no endpoint."""
        self._shaping_scale.labels(scope).set(ratio)
        self._shaping_unacked.labels(scope).set(unacked)

    def shaping_lost(self, scope: str, nbytes: int) -> None:
        """Credit was left over for good."""
        self._shaping_lost.labels(scope).inc(nbytes)

    def shaping_meters(self, meters: Mapping[str, Mapping[str, Meter]], late_s: float) -> None:
        """The meters that count, by scope and bucket; scopes that are left out are no more."""
        self._shaping_late_s.set(late_s)
        for each in (self._shaping_limit, *self._shaping_meter.values()):
            each.clear()
        for gone in self._shown_scopes - meters.keys():
            for metric in (self._shaping_scale, self._shaping_unacked):
                with suppress(KeyError):
                    metric.remove(gone)
            for priority in Priority:
                with suppress(KeyError):
                    self._shaping_level.remove(gone, priority)
        self._shown_scopes = set(meters)
        for scope, by_bucket in meters.items():
            self._shaping_limit.labels(scope).set(limit_of(by_bucket))
            for bucket, meter in by_bucket.items():
                self._shaping_meter["guaranteed"].labels(scope, bucket).set(meter.guaranteed)
                self._shaping_meter["burst"].labels(scope, bucket).set(meter.burst)
                if meter.max is not None:
                    self._shaping_meter["max"].labels(scope, bucket).set(meter.max)

    # --------------------------------------------------------------------------------- failures

    def failed(self, topic: str, kind: str, reason: str) -> None:
        """An attempt failed; `kind` is transient, fenced, configuration, poison, store or damaged."""
        self._failed.add(topic, 1, kind)
        since, count = self._failures.get(topic, (self._clock(), 0))
        self._failures[topic] = (since, count + 1)
        self._failing.kinds[topic] = kind
        self._last_failures[topic] = (self._clock(), kind, reason)
        stopped = kind in ("configuration", "damaged")
        level = logging.ERROR if stopped else logging.WARNING
        text = "the topic is stopped until an operator acts" if stopped else "delivery failed"
        self._say_seldom(level, "topic_failed", ("failed", topic, kind), text, topic=topic, kind=kind, reason=reason)

    def recovered(self, topic: str) -> None:
        """A topic that was failing delivers again. No error when it was not failing."""
        self._failing.kinds.pop(topic, None)
        if failures := self._failures.pop(topic, None):
            since, count = failures
            self._say_seldom(  # a topic that fails and recovers all the time must not fill the log either
                logging.INFO, "topic_recovered", ("recovered", topic), "delivery works again",
                topic=topic, failures=count, seconds=round(self._clock() - since, 3),
            )  # fmt: skip

    def emptied(self, topic: str) -> None:
        """Nothing waits any more of a topic that was failing. No error when it was not failing."""
        self._failing.kinds.pop(topic, None)
        if failures := self._failures.pop(topic, None):
            self._say_seldom(
                logging.INFO, "topic_emptied", ("emptied", topic),
                "nothing waits any more; whether delivery works remains to be seen", topic=topic, failures=failures[1],
            )  # fmt: skip

    def dead_lettered(self, topic: str, queue: str, position: str, cause: str, reason: str) -> None:
        """An entry went to the dead-letter store; `cause` is a DeadLetter's. An unknown topic goes by its queue."""
        topic = topic or queue
        self._parked.add(topic, 1, cause)
        self._progress.set_to_current_time()
        level = logging.WARNING if cause in ("expired", "exhausted") else logging.ERROR
        self._say_seldom(
            level, "entry_parked", ("parked", topic, cause), "an entry was not delivered and is kept as a dead letter",
            topic=topic, queue=queue, position=position, cause=cause, reason=reason,
        )  # fmt: skip

    def denied(self, scheme: str) -> None:
        """The operator's rules let no topic connect to where an endpoint of this URI scheme lies."""
        self._denied.labels(scheme).inc()

    def retry(self, topic: str, delay_s: float) -> None:
        """Another attempt follows after a pause."""
        self._retries.add(topic, 1)
        self._retry_pauses.add(topic, delay_s)
        if _log.isEnabledFor(logging.DEBUG):
            _say(logging.DEBUG, "retry", "trying again after a pause", topic=topic, delay_s=round(delay_s, 3))

    def remark(self, topic: str, text: str) -> None:
        """Something about a topic works otherwise than asked. Each text is said once."""
        if self._is_news(f"topic {topic}", text):
            _say(logging.INFO, "topic_remark", text, topic=topic)

    def backlog(self, topic: str, entries: int, exact: bool, nbytes: int, oldest_age_s: float | None) -> None:
        """What waits in all queues of a topic that this process holds."""
        self._backlogs.set(topic, Backlog(entries, exact, nbytes, oldest_age_s))

    def balances(self, topic: str, balances: Sequence[Balance]) -> None:
        """The ledgers of all queues of a topic that this process holds, at least one."""
        first, *others = map(Books.of, balances)
        self._ledgers.set(topic, sum(others, start=first))
        for each in balances:
            if each.unaccounted:
                self._say_seldom(
                    logging.ERROR, "ledger_unaccounted", ("ledger", each.shard), "entries are unaccounted for",
                    topic=topic, queue=each.shard.queue, entries=each.unaccounted, committed=each.committed,
                    removed=each.removed.total, pending=each.pending,
                )  # fmt: skip

    def topics(self) -> list[TopicFigures]:
        """What is counted of each topic now, those behind `other` together; for the status."""
        return topic_figures(
            self._delivered_entries.by_label(),
            self._parked.by_label(),
            self._ingested_events.by_label(),
            self._backlogs.by_label(),
            self._ledgers.by_label(),
            {
                topic: LastFailure(kind=kind, reason=reason, age_seconds=round(self._clock() - at, 3))
                for topic, (at, kind, reason) in self._last_failures.items()
                if self._labels.is_named(topic)
            },
        )

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, or delivered by others: its series end. Call after everything else about it."""
        if self._labels.is_named(topic):
            for counter in self._counters:
                counter.forget(topic)
            self._ages.forget(topic)
        self._backlogs.forget(topic)
        self._ledgers.forget(topic)
        self._failing.kinds.pop(topic, None)
        self._failures.pop(topic, None)
        self._last_failures.pop(topic, None)
        self._remarks.pop(f"topic {topic}", None)
        self._labels.forget(topic)

    # -------------------------------------------------------------------------------- ownership

    def owned(self, shards: int) -> None:
        """This process holds `count` queues now."""
        self._owned.set(shards)

    def eligible(self, shards: int) -> None:
        """Remora is to deliver `count` queues, held by any worker or none."""
        self._eligible.set(shards)

    def acquired(self, queue: str, taken_over: bool, *, named: bool = True) -> None:
        """A queue's lock was taken; `taken_over` when another owner had let it run out.

        Not `named` where a line for each of many queues would drown everything else.
        """
        self._acquired.inc()
        if taken_over:
            self._takeovers.inc()
        text = "queue taken over from an owner that went silent" if taken_over else "queue locked"
        level = (logging.WARNING if taken_over else logging.INFO) if named else logging.DEBUG
        _say(level, "shard_acquired", text, queue=queue)

    def members(self, workers: int, target: int) -> None:
        """`workers` workers share the queues, and `target` queues are this one's part."""
        self._members.set(workers)
        self._target.set(target)

    def members_failed(self, why: str) -> None:
        """The rows of the other workers could not be read, or this one's not be written; the last look stands."""
        self._say_seldom(
            logging.WARNING, "members_failed", "members", "the other workers are not known for now", reason=why
        )

    def budgets_whole(self) -> None:
        """This worker has never seen the others, and takes the whole of the limits that all workers share."""
        self._say_seldom(
            logging.WARNING,
            "budgets_whole",
            "budgets",
            "the other workers were never seen; limits of the cluster are taken whole",
        )

    def moved(self, kind: str) -> None:
        """A queue came from another worker.

        Planned, for its load, cleared (that one is dead), or stale (its lock ran out).
        """
        self._moves.labels(kind).inc()

    def usage(self, percents: Mapping[str, float], history: float) -> None:
        """So much of each resource this process uses, in percent; `history` is of the busiest, as a fraction."""
        for resource, percent in percents.items():
            self._usage.labels(resource).set(percent / 100)
        self._usage_history.set(history)

    def balance_skipped(self, reason: str) -> None:
        """A round moved none of this process's queues; with one queue only, a busy process can give none."""
        self._balance_skipped.labels(reason).inc()
        if reason == "only_shard":
            text = "this worker is busier than others, and has one queue, which cannot be divided"
            self._say_seldom(logging.INFO, "balance_skipped", "balance", text, reason=reason)

    def sheds(self, shards: int, needed: float, usage: float, average: float) -> None:
        """`count` queues are to go to other workers, since this one is busier."""
        _say(
            logging.INFO, "shards_shed", "queues go to workers that are less busy",
            queues=shards, bytes_per_second=round(needed), usage=round(usage, 3), average=round(average, 3),
        )  # fmt: skip

    def quarantined(self, destination: str, errors: int, seconds: float) -> None:
        """A destination failed so often that one queue at a time tries it from now on."""
        self._quarantines.inc()
        self._quarantined.inc()
        _say(
            logging.WARNING, "destination_quarantined", "a destination fails; one queue at a time tries it now",
            destination=destination, errors=errors, seconds=seconds,
        )  # fmt: skip

    def quarantine_skipped(self) -> None:
        """A destination failed as often, and this worker's draw was not to quarantine it."""
        self._quarantine_skips.inc()

    def quarantine_ended(self, destination: str, why: str, left: int) -> None:
        """A destination's quarantine is over; `left` others are in quarantine still."""
        self._quarantined.set(left)
        _say(logging.INFO, "destination_released", "a destination is used again", destination=destination, reason=why)

    def acquired_many(self, shards: int) -> None:
        """`count` queues were locked, too many to name."""
        _say(logging.INFO, "shards_acquired", "queues locked", queues=shards)

    def renewed(self, seconds: float, locks: int = 1) -> None:
        """Locks were renewed together, which took `seconds`."""
        self._renewals.inc(locks)
        self._renewal_s.observe(seconds)

    def renewal_failed(self, queue: str, why: str) -> None:
        """A renewal got no answer; it is repeated while the lease lasts."""
        self._renewal_failures.inc()
        self._say_seldom(
            logging.WARNING, "renewal_failed", "renewal_failed", "a lock was not renewed", queue=queue, reason=why
        )

    def expiry_failed(self, queue: str, why: str) -> None:
        """Stale reservations of a queue were not looked for; that is repeated."""
        self._say_seldom(
            logging.WARNING, "expiry_failed", "expiry_failed", "reservations were not expired", queue=queue, reason=why
        )

    def lost(self, queue: str, why: str) -> None:
        """A lock is held no longer though this worker did not release it."""
        self._losses.inc()
        _say(logging.WARNING, "shard_lost", "queue let go because its lock is lost", queue=queue, reason=why)

    def removal_refused(self, queue: str, why: str) -> None:
        """The store refused a removal because the lock had been lost: another owner has the queue by now."""
        self._refusals.inc()
        _say(logging.WARNING, "removal_refused", "nothing removed: the lock is lost", queue=queue, reason=why)

    def released(self, queue: str, *, named: bool = True) -> None:
        """A lock was given back, so that another owner can take it at once; `named` as in `acquired`."""
        self._releases.inc()
        _say(logging.INFO if named else logging.DEBUG, "shard_released", "queue released", queue=queue)

    def release_failed(self, queue: str, why: str) -> None:
        """A lock could not be given back; others wait for the lease to run out."""
        self._say_seldom(
            logging.WARNING, "release_failed", "release_failed", "queue not released, its lease runs out",
            queue=queue, reason=why,
        )  # fmt: skip

    def handed_off(self, queue: str, owner: str) -> None:
        """Another owner holds a queue that this process would take. Each owner is named once."""
        if self._is_news(f"owner of {queue}", owner):
            _say(logging.INFO, "shard_held", "queue is held by another owner", queue=queue, owner=owner)

    def gone(self, queue: str) -> None:
        """A queue that was held does not exist any more, because its topic was deleted."""
        _say(logging.INFO, "shard_gone", "queue let go because it was deleted", queue=queue)

    def left_alone(self, queue: str, why: str) -> None:
        """A queue stays with its gateway. Each reason is said once."""
        if self._is_news(f"queue {queue}", why):
            _say(logging.INFO, "shard_left_alone", "queue stays with its gateway", queue=queue, reason=why)

    # ------------------------------------------------------------------------------------ store

    def store_state(self, connected: bool, text: str) -> None:
        """The store answers, or does not; `text` says which one, or why. May be called as often as one likes."""
        self._connected.set(connected)
        was_connected, self._store_connected = self._store_connected, connected
        if not connected:
            self._say_seldom(logging.ERROR, "store_unavailable", "store", text)
        elif not was_connected:
            _say(logging.INFO, "store_connected", text)

    def store_failing(self, causes: Iterable[str]) -> None:
        """For which causes the store or a part of it cannot be used now."""
        now = set(causes)
        self._store_causes |= now
        for cause in self._store_causes:
            self._store_failing.labels(cause).set(cause in now)

    def catalogue_failed(self, why: str) -> None:
        """A look for queues and topics failed; the last one stands."""
        self._discovery_failures.inc()
        self._say_seldom(
            logging.WARNING, "discovery_failed", "discovery", "queues and topics could not be read", reason=why
        )

    # ----------------------------------------------------------------------------------- ingest

    def ingested(self, topic: str, events: int, nbytes: int, dropped: int) -> None:
        """Events were taken in and are stored; `dropped` members of them had no place in an entry."""
        self._ingested_events.add(topic, events)
        self._ingested_bytes.add(topic, nbytes)
        self.taken_in_bytes += nbytes
        if dropped:
            self._ingest_dropped.add(topic, dropped)
        if _log.isEnabledFor(logging.DEBUG):
            _say(logging.DEBUG, "ingested", "events stored", topic=topic, events=events, bytes=nbytes, dropped=dropped)

    def ingest_repeated(self, topic: str) -> None:
        """A request came again, and nothing was stored twice."""
        self._ingest_repeated.add(topic, 1)

    def ingest_answered(self, kind: str, status: int, seconds: float) -> None:
        """A request was answered; `kind` is one of few."""
        times = self._ingest_times.get((kind, status))
        if times is None:
            times = self._ingest_times[kind, status] = self._ingest_s.labels(kind, f"{status // 100}xx")
        times.observe(seconds)

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
        """So much is open and under way now."""
        self._ingest_connections.set(connections)
        self._ingest_requests.set(requests)
        self._ingest_held.set(nbytes)

    def ingest_memory(self, *, is_paused: bool, waiting: int) -> None:
        """`waiting` requests of this worker wait; whether requests wait is the same for all workers of the host."""
        self._ingest_is_paused.set(is_paused)
        self._ingest_waiting.set(waiting)

    def ingest_paused(self, nbytes: int) -> None:
        """The bodies of all workers hold so much that new requests wait; said by the worker that has seen it."""
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
        _say(logging.INFO, "ingest_serving", "events are taken in", address=address, senders=who)

    def ingest_credentials(self, what: str) -> None:
        """Tokens or certificate were read again and count from now on."""
        _say(logging.INFO, "ingest_credentials", "credentials were read again", files=what)

    def ingest_credentials_refused(self, why: str) -> None:
        """Tokens or certificate were read again and refused; those of before go on counting."""
        self._say_seldom(
            logging.ERROR, "ingest_credentials_refused", ("credentials", why), "the old credentials stay", reason=why
        )

    def arrivals_failed(self, why: str) -> None:
        """The store could not tell of new entries; idle queues are looked into until it can."""
        self._say_seldom(
            logging.WARNING, "arrivals_failed", "arrivals", "new entries were not told of by the store", reason=why
        )

    # ------------------------------------------------------------------------------------- HTTP

    def http_opened(self) -> None:
        """A connection to a receiver was opened."""
        self._http_connections.inc()
        self._http_opened.inc()

    def http_closed(self) -> None:
        """A connection to a receiver was closed."""
        self._http_connections.dec()

    def http_answered(self, kind: str, requests: int) -> None:
        """`count` requests had answers of one class: 2xx, 3xx, 4xx, 5xx, other, or none for no whole answer."""
        self._http_requests.labels(kind).inc(requests)

    def http_retried(self) -> None:
        """A record is tried again by its own lane, while others are delivered."""
        self._http_retried.inc()

    # ------------------------------------------------------------------------------------ Kafka

    def producer_opened(self, cluster: str) -> None:
        """A producer that topics share was opened; `cluster` names brokers, without secrets."""
        self._producers.labels("shared").inc()
        _say(logging.DEBUG, "producer_opened", "Kafka producer opened", cluster=cluster)

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
        _say(logging.DEBUG, "producer_closed", "Kafka producer closed", cluster=cluster)

    def exact_opened(self, cluster: str) -> None:
        """The connections of one queue's transactions were opened."""
        self._producers.labels("exact").inc()

    def exact_closed(self, cluster: str) -> None:
        """The connections of one queue's transactions were closed."""
        self._producers.labels("exact").dec()

    def transaction_ended(self, cluster: str, outcome: str, seconds: float) -> None:
        """A transaction was waited for so long; `outcome` is committed, aborted, fenced or unknown."""
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
            _say(
                logging.WARNING, "partitions_changed", "the Kafka topic has another number of partitions, keys move",
                cluster=cluster, kafka_topic=topic, before=before, after=after,
            )  # fmt: skip

    def limit_assumed(self, cluster: str, topic: str, limit_bytes: int) -> None:
        """A Kafka topic's size limit cannot be read for want of a permission."""
        _say(
            logging.WARNING, "limit_assumed", "max.message.bytes cannot be read (no permission), a value is assumed",
            cluster=cluster, kafka_topic=topic, limit_bytes=limit_bytes,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- AMQP

    def amqp_connected(self, broker: str) -> None:
        """A connection to an AMQP broker was opened; `broker` is `host:port`."""
        self._amqp_connections.inc()
        _say(logging.DEBUG, "amqp_connected", "AMQP connection opened", broker=broker)

    def amqp_disconnected(self, broker: str, reason: str) -> None:
        """A connection to an AMQP broker ended, for whatever reason."""
        self._amqp_connections.dec()
        self._say_seldom(
            logging.INFO, "amqp_disconnected", ("amqp", broker, reason),
            "AMQP connection ended", broker=broker, reason=reason,
        )  # fmt: skip

    def amqp_unroutable(self, broker: str, exchange: str) -> None:
        """A message was confirmed that no queue got, which its topic takes for delivered."""
        self._amqp_unroutable.inc()
        self._say_seldom(
            logging.WARNING, "amqp_unroutable", ("unroutable", broker, exchange),
            "a message reached no queue, and counts as delivered: amqp-ack-level is not routable",
            broker=broker, exchange=exchange,
        )  # fmt: skip

    # ---------------------------------------------------------------------------------- process

    def started(self, version: str, config: str, workers: int) -> None:
        """The daemon begins."""
        self._build.labels(version, platform.python_version(), speedups.IMPLEMENTATION).set(1)
        _say(logging.INFO, "started", f"remora {version} started", config=config, workers=workers)

    def running(self, version: str) -> None:
        """A worker process begins."""
        self._build.labels(version, platform.python_version(), speedups.IMPLEMENTATION).set(1)

    def serving(self, address: str) -> None:
        """The admin server listens."""
        _say(logging.INFO, "serving", "metrics and health are served", address=address)

    def worker_started(self, number: int, pid: int) -> None:
        """A worker process was started."""
        _say(logging.INFO, "worker_started", "a worker process was started", number=number, pid=pid)

    def worker_ready(self, number: int, pid: int, seconds: float) -> None:
        """A worker process works, `seconds` after it was started."""
        _say(
            logging.INFO, "worker_ready", "a worker process is ready",
            number=number, pid=pid, seconds=round(seconds, 3),
        )  # fmt: skip

    def worker_hangs(self, number: int, pid: int, silent_s: float) -> None:
        """A worker process made no progress for so long that it is killed."""
        self._worker_hangs.inc()
        _say(
            logging.ERROR, "worker_hangs", "a worker process makes no progress and is killed",
            number=number, pid=pid, seconds=round(silent_s, 3),
        )  # fmt: skip

    def worker_ended(self, number: int, pid: int, why: str, pause_s: float) -> None:
        """A worker process ended without being asked to; another one starts after the pause."""
        self._worker_ends.inc()
        self._say_seldom(
            logging.ERROR, "worker_ended", ("worker", number, why), "a worker process ended and is replaced",
            number=number, pid=pid, reason=why, pause_s=round(pause_s, 3),
        )  # fmt: skip

    def out_of_memory(self, number: int, pid: int, limit: str, used_mib: int) -> None:
        """A worker process cannot allocate memory, and ends itself."""
        _say(
            logging.ERROR, "out_of_memory",
            f"worker {number} cannot allocate memory and ends: {limit}; give it more (operations.md: Workers)",
            number=number, pid=pid, used_mib=used_mib,
        )  # fmt: skip

    def worker_unfinished(self, number: int, pid: int, why: str) -> None:
        """A worker process that was asked to finish ended otherwise."""
        _say(
            logging.WARNING, "worker_unfinished", "a worker process did not finish",
            number=number, pid=pid, reason=why,
        )  # fmt: skip

    def presence_failed(self, folder: str, why: str) -> None:
        """This worker cannot show that it lives: where it is killed with its supervisor, its locks must run out."""
        _say(
            logging.WARNING, "presence_failed", "the run directory cannot be used; locks of killed workers run out",
            folder=folder, reason=why,
        )  # fmt: skip

    def clearing_failed(self, why: str) -> None:
        """The locks of ended workers were not broken; that is repeated."""
        self._say_seldom(
            logging.WARNING, "clearing_failed", "clearing_failed", "locks of ended workers are not broken yet",
            reason=why,
        )  # fmt: skip

    def workers(self, serving: int) -> None:
        """`count` worker processes are ready."""
        self._workers.set(serving)

    def host_drain(self, on: bool) -> None:
        """This host gives its queues to others before maintenance, or takes part again."""
        text = "this host gives its queues to other hosts" if on else "this host takes part again"
        _say(logging.INFO, "host_drain", text)

    def draining(self, why: str) -> None:
        """The daemon stops taking work."""
        _say(logging.INFO, "draining", "finishing what is in flight", reason=why)

    def drained(self, seconds: float, clean: bool) -> None:
        """The daemon has stopped, with everything in flight finished or not."""
        if clean:
            _say(logging.INFO, "drained", "everything in flight is finished", seconds=round(seconds, 3))
        else:
            _say(
                logging.WARNING, "drain_timeout", "stopped with entries in flight, which will be delivered again",
                seconds=round(seconds, 3),
            )  # fmt: skip

    def reloaded(self, live: Iterable[str], restart: Iterable[str]) -> None:
        """The configuration was read again: what changed at once, and what waits for a restart."""
        self._reloads.labels("accepted").inc()
        self._reload_ok.set(1)
        _say(logging.INFO, "config_reloaded", "configuration reloaded", changed=", ".join(live) or "nothing")
        if waiting := ", ".join(restart):
            _say(logging.WARNING, "config_needs_restart", "changes that need a restart were ignored", options=waiting)

    def reload_failed(self, why: str) -> None:
        """The configuration was read again and refused; the old one stays."""
        self._reloads.labels("refused").inc()
        self._reload_ok.set(0)
        _say(logging.ERROR, "config_refused", "configuration not reloaded, the old one stays", reason=why)

    def crashed(self, what: str) -> None:
        """The exception being handled is a defect; `what` (a queue, a loop) starts anew."""
        self._crashes.inc()
        if self.repeats.unsaid(("crashed", what)) is not None:
            extra = {"event": "crashed", "fields": {"what": what}}
            _log.error("failed unexpectedly", exc_info=True, extra=extra)

    def loop_lag(self, seconds: float) -> None:
        """The event loop woke up so much later than asked."""
        self._lag.observe(seconds)

    def ready(self, is_ready: bool, to_deliver: bool) -> None:
        """What /-/ready and /-/ready/delivery say now."""
        self._ready.set(is_ready)
        self._delivery_ready.set(to_deliver)

    def _is_news(self, subject: str, text: str) -> bool:
        """Whether this was not yet said of the subject."""
        if len(self._remarks) >= MOST_REMARKS:
            self._remarks.clear()  # queues come and go; to repeat a remark is better than to keep all for ever
        said = self._remarks.setdefault(subject, set())
        if text in said:
            return False
        if len(said) >= MOST_REMARKS_EACH:
            said.clear()
        said.add(text)
        return True

    def _say_seldom(self, level: int, event: str, key: object, text: str, **fields: object) -> None:
        unsaid = self.repeats.unsaid(key)
        if unsaid is not None:
            _say(level, event, text, **fields, **({"repeated": unsaid} if unsaid else {}))


def _say(level: int, event: str, text: str, **fields: object) -> None:
    # As an argument, so that a per cent sign in the text is only a per cent sign.
    _log.log(level, "%s", text, extra={"event": event, "fields": fields})
