"""Events of the store: whether it answers, what it refuses, and what could not be read from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from remora.metrics.events import EventGroup, Instruments, say


class StoreEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        counter, gauge = instruments.counter, instruments.gauge
        self._syncs = counter("remora_store_syncs", "Transactions that the store has synced to this host's disk.")
        self._synced = 0
        self._connected = gauge("remora_store_connected", "1 while the store answers.")
        self._store_failing = gauge(
            "remora_store_failing",
            "1 while the store or one of its parts cannot be used, for the cause in the label.",
            "cause",
        )
        self._store_causes: set[str] = set()
        self._store_part_lost = gauge(
            "remora_store_part_lost",
            "1 while this file or directory of the store cannot be used; topics in others go on.",
            "path",
        )
        self._lost_parts: set[str] = set()
        self._discovery_failures = counter("remora_discovery_failures", "Failed looks for queues and topics.")
        self._arrivals = counter(
            "remora_arrivals",
            "Queues of this worker that a notification of the store named, as entries came or may have come."
            " On RADOS a notification names all queues of a doorbell.",
        )
        self._store_connected = False

    def store_synced(self, transactions: int) -> None:
        """The store has synced this many transactions since it was opened."""
        self._syncs.inc(transactions - self._synced)
        self._synced = transactions

    def store_state(self, connected: bool, text: str) -> None:
        """The store answers, or does not; `text` says which one, or why. Repeats cost nothing but a line a minute."""
        self._connected.set(connected)
        was_connected, self._store_connected = self._store_connected, connected
        if not connected:
            self._say_seldom(logging.ERROR, "store_unavailable", "store", text)
        elif not was_connected:
            say(logging.INFO, "store_connected", text)

    def store_failing(self, failing: Mapping[str, str], damaged: Mapping[str, str]) -> None:
        """Why the store or a part of it cannot be used now, a sentence by its cause, and one by the path of each
        part concerned; none when all of it can be used."""
        self._store_causes |= set(failing)
        for cause in self._store_causes:
            self._store_failing.labels(cause).set(cause in failing)
        self._lost_parts |= set(damaged)
        for path in self._lost_parts:
            self._store_part_lost.labels(path).set(path in damaged)
        if self._store_connected:  # else that is said already
            for cause, text in failing.items():
                self._say_seldom(logging.WARNING, "store_failing", ("store", cause), text, cause=cause)

    def catalogue_failed(self, why: str) -> None:
        """A look for queues and topics failed; the last one stands."""
        self._discovery_failures.inc()
        self._say_seldom(
            logging.WARNING, "discovery_failed", "discovery", "queues and topics could not be read", reason=why
        )

    def peaks_not_kept(self, why: str) -> None:
        """The peaks of an hour could not be written to the store; they are tried again for an hour."""
        self._say_seldom(
            logging.WARNING, "peaks_not_kept", "peaks", "an hour of what came in is not kept for advice", reason=why
        )

    def layout_delivered(self, topic: str, generations: Sequence[int]) -> None:
        """The last entry of a topic's former layouts is delivered, and their queues are gone."""
        say(
            logging.INFO, "layout_delivered", "the former shards of a re-sharded topic are delivered and gone",
            topic=topic, generations=",".join(map(str, generations)),
        )  # fmt: skip

    def layout_kept(self, topic: str, why: str) -> None:
        """Whether a topic's former layouts may go, or its change goes on, could not be found out; it is tried again."""
        self._say_seldom(
            logging.WARNING, "layout_kept", ("layout", topic), "the former shards of a topic cannot be looked after",
            topic=topic, reason=why,
        )  # fmt: skip

    def arrived(self, queues: int) -> None:
        """The store has named this many queues that may have new entries."""
        self._arrivals.inc(queues)

    def arrivals_failed(self, why: str) -> None:
        """The store does not notify of new entries; idle queues are polled until it does."""
        self._say_seldom(
            logging.WARNING, "arrivals_failed", "arrivals",
            "the store does not notify of new entries; idle queues are polled", reason=why,
        )  # fmt: skip
