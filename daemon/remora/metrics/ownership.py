"""Events of ownership: queue locks, the workers that share the queues, and moves between them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from remora.metrics.events import EventGroup, Instruments, say
from remora.model.caller import Caller

MOST_OWNERS = 8
"""Owners that one line names."""


class OwnershipEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        counter, gauge = instruments.counter, instruments.gauge
        self._owned = gauge("remora_owned_shards", "Queues whose lock this process holds.")
        self._eligible = gauge("remora_eligible_shards", "Queues that remora is to deliver, held by a worker or not.")
        self._members = gauge("remora_members", "Workers that share the queues, this one included.")
        self._target = gauge("remora_target_shards", "Queues that are this process's share of all.")
        self._moves = counter(
            "remora_shard_moves", "Queues taken from another worker, by why it no longer held them.", "kind"
        )
        self._usage = gauge("remora_usage_ratio", "What this process uses of a resource, as a fraction.", "resource")
        self._usage_history = gauge(
            "remora_usage_history_ratio",
            "Moving average of how much this process uses of its busiest resource, as a fraction.",
        )
        self._balance_skipped = counter(
            "remora_balance_skipped", "Rounds in which no queue was given away for its load, by reason.", "reason"
        )
        self._acquired = counter("remora_lock_acquisitions", "Queue locks taken.")
        self._takeovers = counter("remora_lock_takeovers", "Queue locks taken from an owner that let them run out.")
        self._renewals = counter("remora_lock_renewals", "Queue locks renewed.")
        self._renewal_failures = counter("remora_lock_renewal_failures", "Renewals of queue locks that got no answer.")
        self._losses = counter("remora_lock_losses", "Queue locks lost while held.")
        self._refusals = counter("remora_removals_refused", "Removals refused by the store: the lock was lost before.")
        self._releases = counter("remora_lock_releases", "Queue locks given back.")
        self._renewal_s = instruments.histogram(
            "remora_lock_renewal_seconds",
            "Time to renew all queue locks that were due together.",
            buckets=(0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30),
        )

    def owned(self, shards: int) -> None:
        """This process owns this many shards now."""
        self._owned.set(shards)

    def eligible(self, shards: int) -> None:
        """Remora is to deliver this many shards, whichever worker owns them, or none."""
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
        say(level, "shard_acquired", text, queue=queue)

    def claimed(self, queue: str, by: Caller) -> None:
        """A queue was taken because a command had broken its lock for any worker; `by` is as the command says."""
        say(
            logging.INFO, "shard_claimed", "queue taken over from its owner, as a command claimed it",
            queue=queue, **by.known,
        )  # fmt: skip

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
            "the other workers were never seen; this one takes the cluster's limits whole",
        )

    def moved(self, kind: str) -> None:
        """A queue came from another worker.

        Planned, for its load, cleared (that one is dead), or stale (its lock ran out).
        """
        self._moves.labels(kind).inc()

    def usage(self, percents: Mapping[str, float], history: float) -> None:
        """What this process uses of each resource, in percent; `history` is of its busiest one, as a fraction."""
        for resource, percent in percents.items():
            self._usage.labels(resource).set(percent / 100)
        self._usage_history.set(history)

    def usage_unknown(self) -> None:
        """What this process uses is not measured any more."""
        self._usage.clear()
        self._usage_history.set(0)

    def balance_skipped(self, reason: str) -> None:
        """A round moved none of this process's queues; with one queue only, a busy process can give none."""
        self._balance_skipped.labels(reason).inc()
        if reason == "only_shard":
            text = "this worker is busier than others, and has one queue, which cannot be divided"
            self._say_seldom(logging.INFO, "balance_skipped", "balance", text, reason=reason)

    def sheds(self, shards: int, needed: float, usage: float, average: float) -> None:
        """This worker is busier than others, and plans to move this many shards to them."""
        say(
            logging.INFO, "shards_shed", "queues go to workers that are less busy",
            queues=shards, bytes_per_second=round(needed), usage=round(usage, 3), average=round(average, 3),
        )  # fmt: skip

    def acquired_many(self, shards: int) -> None:
        """This many queues were locked, too many to name."""
        say(logging.INFO, "shards_acquired", "queues locked", queues=shards)

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
        """The look for stale reservations of a queue failed; the next one follows."""
        self._say_seldom(
            logging.WARNING, "expiry_failed", "expiry_failed", "reservations were not expired", queue=queue, reason=why
        )

    def lost(self, queue: str, why: str) -> None:
        """This worker lost a lock that it did not release."""
        self._losses.inc()
        say(logging.WARNING, "shard_lost", "delivery of the queue stops: its lock is lost", queue=queue, reason=why)

    def removal_refused(self, queue: str, why: str) -> None:
        """The store refused a removal because the lock had been lost: another owner has the queue by now."""
        self._refusals.inc()
        say(logging.WARNING, "removal_refused", "nothing removed: the lock is lost", queue=queue, reason=why)

    def released(self, queue: str, *, named: bool = True) -> None:
        """A lock was given back, so that another owner can take it at once; `named` as in `acquired`."""
        self._releases.inc()
        say(logging.INFO if named else logging.DEBUG, "shard_released", "queue released", queue=queue)

    def release_failed(self, queue: str, why: str) -> None:
        """A lock could not be given back; others wait for the lease to run out."""
        self._say_seldom(
            logging.WARNING, "release_failed", "release_failed", "queue not released, its lease runs out",
            queue=queue, reason=why,
        )  # fmt: skip

    def handed_off(self, owners: Mapping[str, str]) -> None:
        """Other owners hold queues that this process would take, each named by its queue; a line for all of a round.

        Each owner of a queue is said once.
        """
        news = {queue: owner for queue, owner in owners.items() if self._is_news(f"owner of {queue}", owner)}
        if len(news) == 1:
            for queue, owner in news.items():
                say(logging.INFO, "shard_held", "queue is held by another owner", queue=queue, owner=owner)
        elif news:
            counts = ", ".join(f"{owner}: {count}" for owner, count in Counter(news.values()).most_common(MOST_OWNERS))
            say(logging.INFO, "shard_held", "queues are held by other owners", queues=len(news), owners=counts)

    def gone(self, queue: str, why: str, *, had_work: bool) -> None:
        """A queue that was held does not exist any more, because its topic was deleted or is no longer persistent.

        With `had_work` what waited in it has gone with it, undelivered.
        """
        if had_work:
            text = "delivery of the queue stops: it was deleted while entries waited in it, which are lost"
            say(logging.WARNING, "shard_gone", text, queue=queue, reason=why)
        else:
            say(logging.INFO, "shard_gone", "delivery of the queue stops: it was deleted", queue=queue, reason=why)

    def left_alone(self, queue: str, why: str) -> None:
        """A queue stays with its gateway. Each reason is said once."""
        if self._is_news(f"queue {queue}", why):
            say(logging.INFO, "shard_left_alone", "queue stays with its gateway", queue=queue, reason=why)
