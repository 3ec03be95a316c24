"""Events of delivery: pages, batches, failures, dead letters, and what waits in queues; by topic or in total."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from remora.metrics.events import EventGroup, Instruments, log, say
from remora.metrics.outages import FailingTopics, OutageEnded
from remora.metrics.series import (
    AgeHistogram,
    BacklogFigures,
    Backlogs,
    Books,
    Failing,
    Ledgers,
    RoomLeft,
    RoomsLeft,
    TopicGauge,
)
from remora.model.ledger import Balance
from remora.model.record import CAUSES
from remora.model.shard import QueueRoom
from remora.policy.delivery.retry import ShardFailure
from remora.policy.status.condition import Outage, State, cause_of, place_of, state_of_failure

KINDS = (*ShardFailure, "poison")
"""What attempts fail at."""


class DeliveryEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        self._outages = FailingTopics()
        self._last_failures: dict[str, tuple[float, str, str]] = {}
        topic_counter, counter, gauge = instruments.topic_counter, instruments.counter, instruments.gauge
        self._listed_entries = topic_counter("remora_listed_entries", "Entries read from queues.")
        self._listed_bytes = topic_counter("remora_listed_bytes", "Bytes of entries read from queues.")
        self._delivered_entries = topic_counter("remora_delivered_entries", "Entries that an endpoint acknowledged.")
        self._delivered_bytes = topic_counter(
            "remora_delivered_bytes", "Bytes of records that an endpoint acknowledged."
        )
        self._removed_entries = topic_counter("remora_removed_entries", "Entries removed from queues.")
        self._failed = topic_counter("remora_failures", "Attempts that failed, by kind of failure.", kind=KINDS)
        self._parked = topic_counter("remora_parked_entries", "Entries moved to the dead-letter store.", cause=CAUSES)
        self._retries = topic_counter("remora_retries", "Pauses of deliveries before another attempt.")
        self._retry_pauses = topic_counter(
            "remora_retry_pause_seconds",
            "Time that deliveries are to pause before another attempt, as decided at each failure.",
        )
        self._ages = AgeHistogram(
            instruments.labels,
            "remora_event_age_seconds",
            "Time from an event's commit by the gateway to its acknowledgement.",
        )
        self._backlogs = Backlogs(instruments.labels, "remora_backlog")
        self._ledgers = Ledgers(instruments.labels, "remora_ledger")
        self._rooms_left = RoomsLeft(instruments.labels, "remora_queue")
        self._failing = Failing(instruments.labels, self._outages.topics, self.clock)
        self._letters = TopicGauge(
            instruments.labels,
            "remora_dead_letters",
            "Dead letters that the store has now, until they are re-driven or dropped; each host shows all of them.",
        )
        self._held = TopicGauge(
            instruments.labels, "remora_topic_held", "1 while an operator holds a topic; absent while it is not held."
        )
        self._said_held: Mapping[str, str] = {}
        for collector in (
            self._ages, self._backlogs, self._ledgers, self._rooms_left, self._failing, self._letters, self._held,
        ):  # fmt: skip
            instruments.registry.register(collector)
        self._mends = counter("remora_queue_mends", "Queues whose leaked room was given back.")
        self._in_flight = gauge(
            "remora_in_flight_bytes", "Bytes of entries that are read and neither delivered nor parked yet."
        )
        self._unacked = gauge(
            "remora_unacknowledged_entries", "Entries that are read and neither delivered nor parked yet."
        )
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
        self._progress = gauge(
            "remora_progress_timestamp_seconds", "Unix time at which an entry was last delivered or parked."
        )

    def listed(self, topic: str, entries: int, nbytes: int) -> None:
        """A read of a queue returned entries."""
        self._listed_entries.add(topic, entries)
        self._listed_bytes.add(topic, nbytes)
        if log.isEnabledFor(logging.DEBUG):
            say(logging.DEBUG, "listed", "entries read", topic=topic, entries=entries, bytes=nbytes)

    def delivered(self, topic: str, entries: int, nbytes: int, created_ns: Sequence[int], now_ns: int) -> None:
        """The endpoint acknowledged a batch at `now_ns`; `created_ns` has its entries' times of creation."""
        self._delivered_entries.add(topic, entries)
        self._delivered_bytes.add(topic, nbytes)
        self._ages.observe(topic, created_ns, now_ns)
        self._progress.set(now_ns / 1e9)
        if log.isEnabledFor(logging.DEBUG):
            say(logging.DEBUG, "delivered", "entries acknowledged", topic=topic, entries=entries, bytes=nbytes)

    def age_exemplar(self, topic: str, trace_id: str, age_s: float, now_s: float) -> None:
        """An event of this age, which arrived at `now_s`, belongs to this trace."""
        self._ages.exemplify(topic, trace_id, age_s, now_s)

    def removed(self, topic: str, entries: int) -> None:
        """Entries that are done with left their queue."""
        self._removed_entries.add(topic, entries)
        if log.isEnabledFor(logging.DEBUG):
            say(logging.DEBUG, "removed", "entries removed", topic=topic, entries=entries)

    def in_flight(self, nbytes: int, entries: int) -> None:
        """This worker holds `nbytes` bytes of `entries` entries now."""
        self._in_flight.set(nbytes)
        self._unacked.set(entries)

    def unacked_waited(self, of: str) -> None:
        """A listing waits for acknowledgements of a "topic" or of a "destination"."""
        self._unacked_waits.labels(of).inc()

    def turned_back(self, priority: str, entries: int) -> None:
        """Entries that were read ahead are read again later, since a shard of a higher priority found no room."""
        self._turned_back.labels(priority).inc(entries)
        if log.isEnabledFor(logging.DEBUG):
            say(logging.DEBUG, "turned_back", "entries turned back", priority=priority, entries=entries)

    def failed(self, topic: str, kind: str, reason: str, *, queue: str = "", endpoint: str = "") -> None:
        """An attempt at a queue failed, and the queue fails until it `recovered`, was `emptied` or `left`.

        `kind` is one of `KINDS`. With the redacted `endpoint` that failed, the topics that it fails for one cause share
        a line.
        """
        place = place_of(endpoint)
        cause = cause_of(reason, place) if endpoint else kind
        if self._outages.failed(topic, queue, kind, (place or topic, cause), self.clock()):
            self._say_failed(topic, kind, reason, ("failed", place or topic, cause))
        self._count_failed(topic, kind, reason)

    def failed_in_passing(self, topic: str, kind: str, reason: str) -> None:
        """Something failed that does not keep the topic from being delivered."""
        self._say_failed(topic, kind, reason, ("failed", topic, kind))
        self._count_failed(topic, kind, reason)

    def _count_failed(self, topic: str, kind: str, reason: str) -> None:
        self._failed.add(topic, 1, kind)
        self._last_failures[topic] = (self.clock(), kind, reason)

    def _say_failed(self, topic: str, kind: str, reason: str, key: object) -> None:
        stopped = state_of_failure(kind) is State.STOPPED
        level = logging.ERROR if stopped else logging.WARNING
        text = "the topic is stopped until an operator acts" if stopped else "delivery failed"
        self._say_seldom(level, "topic_failed", key, text, topic=topic, kind=kind, reason=reason)

    def recovered(self, topic: str, queue: str = "") -> None:
        """A queue of a topic that was failing delivers again. No error when it was not failing."""
        if ended := self._outages.ended(topic, queue):
            self._say_seldom(  # a topic that fails and recovers all the time must not fill the log either
                logging.INFO, "topic_recovered", ("recovered", ended.of), "delivery works again",
                topic=topic, **_of(ended, self.clock()),
            )  # fmt: skip

    def emptied(self, topic: str, queue: str = "") -> None:
        """Nothing waits any more in a queue of a topic that was failing. No error when it was not failing."""
        if ended := self._outages.ended(topic, queue):
            self._say_seldom(
                logging.INFO, "topic_emptied", ("emptied", ended.of),
                "nothing waits; the next entry will show whether delivery works",
                topic=topic, **_of(ended, self.clock()),
            )  # fmt: skip

    def left(self, topic: str, queue: str) -> None:
        """This worker delivers the queue no longer: how it fails is another one's to say."""
        self._outages.ended(topic, queue)

    def destination_failing(self, outage: Outage) -> None:
        """A destination fails topics for one cause. Called once an interval for each while that is so."""
        shown = outage.condition
        say(
            logging.ERROR if shown.state is State.STOPPED else logging.WARNING,
            "destination_failing",
            "an operator must act" if shown.state is State.STOPPED else "deliveries fail and are tried again",
            destination=outage.place or "unknown", reason=outage.cause, state=str(shown.state),
            since_s=round(shown.since_s), topics=len(outage.topics), named=outage.named,
            events="unknown" if outage.entries is None else outage.entries, events_at_least=outage.is_at_least,
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

    def letters_stored(self, topics: Mapping[str, int]) -> None:
        """The number of dead letters that the store has now, by topic; a topic that is gone goes by its queue."""
        self._letters.set(topics)

    def topics_held(self, topics: Mapping[str, str]) -> None:
        """These topics are held now, each until when and why; the others are not, or no longer."""
        before, self._said_held = self._said_held, dict(topics)
        self._held.set(dict.fromkeys(topics, 1))
        for topic in sorted(topics.keys() - before.keys()):
            say(logging.INFO, "topic_held", "nothing of a topic is delivered", topic=topic, reason=topics[topic])
        for topic in sorted(before.keys() - topics.keys()):
            say(logging.INFO, "topic_resumed", "a topic is held no longer", topic=topic)

    def retry(self, topic: str, delay_s: float) -> None:
        """Another attempt follows after a pause."""
        self._retries.add(topic, 1)
        self._retry_pauses.add(topic, delay_s)
        if log.isEnabledFor(logging.DEBUG):
            say(logging.DEBUG, "retry", "trying again after a pause", topic=topic, delay_s=round(delay_s, 3))

    def remark(self, topic: str, text: str) -> None:
        """Something about a topic works otherwise than asked. Each text is said once."""
        if self._is_news(f"topic {topic}", text):
            say(logging.INFO, "topic_remark", text, topic=topic)

    def backlog(self, topic: str, entries: int, exact: bool, nbytes: int, oldest_age_s: float | None) -> None:
        """What waits in all queues of a topic that this process holds."""
        self._backlogs.set(topic, BacklogFigures(entries, exact, nbytes, oldest_age_s))

    def room_left(self, topic: str, left: RoomLeft) -> None:
        """The room of the worst of a topic's queues that this process holds."""
        self._rooms_left.set(topic, left)

    def mended(self, topic: str, queue: str, before: QueueRoom, after: QueueRoom) -> None:
        """A queue got back the room that its store had leaked."""
        self._mends.inc()
        say(
            logging.WARNING, "queue_mended", "a queue got its leaked room back",
            topic=topic, queue=queue, leaked_before=before.leaked_bytes, leaked_after=after.leaked_bytes,
            room_before=before.room_bytes, room_after=after.room_bytes,
        )  # fmt: skip

    def mend_failed(self, topic: str, queue: str, why: str) -> None:
        """A queue that leaks was not mended; the next look follows."""
        self._say_seldom(
            logging.WARNING, "mend_failed", ("mend", queue), "a queue did not get its leaked room back",
            topic=topic, queue=queue, reason=why,
        )  # fmt: skip

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


def _of(ended: OutageEnded, now: float) -> dict[str, object]:
    """How many attempts failed, for how long, and how many topics failed for the same cause."""
    others = {"topics": ended.topics} if ended.topics > 1 else {}
    return {"failures": ended.failures, "seconds": round(now - ended.since, 3), **others}
