"""How much tokens and topics may send: bytes and events per second, of all workers of the host together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from remora.config.ingest import LimitSettings
from remora.metrics import Telemetry
from remora.model.traffic import Priority
from remora.policy.shaping.cells import MemberAccount
from remora.policy.shaping.rates import (
    Cost,
    Limited,
    Limits,
    Rate,
    Reserved,
    bucket_name,
    retry_after_s,
    seconds_to_wait,
)
from remora.ports.credit import Bank
from remora.servers.ingest.problems import RATE_LIMITED, RefusedRequest

NOTHING: Mapping[str, Any] = MappingProxyType({})


class SharedRate:
    """A limit's bucket of bytes or of events, as far as it is this worker's."""

    def __init__(self, rate: Rate, account: MemberAccount) -> None:
        self._rate = rate
        self._account = account

    @property
    def retry_after_s(self) -> int:
        """Seconds until something may pass again; 0 where it may now."""
        return seconds_to_wait(self._account.level(Priority.MAX), self._rate)

    def charge(self, amount: int) -> None:
        """Take by force; a negative amount is given back."""
        if amount > 0:
            self._account.charge(Priority.MAX, amount)
        elif amount < 0:
            self._account.release(Priority.MAX, -amount)


@dataclass(slots=True)
class Receipt:
    """What a request was charged, as far as it is known by now, and under which limits."""

    limits: Sequence[Limited]
    nbytes: int = 0
    events: int = 0

    def received(self, nbytes: int) -> None:
        """The request has `nbytes`, inflated."""
        self._charge(nbytes=nbytes - self.nbytes)
        self.nbytes = nbytes

    def holds(self, events: int) -> None:
        """The request has `events` events; 0 where it stored none after all, since its bytes were received."""
        self._charge(events=events - self.events)
        self.events = events

    def returns(self) -> None:
        """Nothing was received, or no room reserved: all of it comes back."""
        self.received(0)
        self.holds(0)

    def _charge(self, *, nbytes: int = 0, events: int = 0) -> None:
        for each in self.limits:
            each.charge(Cost(nbytes, events))


class IngestLimits:
    """The limits of the ingest API. It costs a comparison for each request where there are none."""

    def __init__(
        self, telemetry: Telemetry, bank: Bank, reservation_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A reservation returns what it did not use within `reservation_s`, to the worker that took it."""
        self._telemetry = telemetry
        self._bank = bank
        self.reservation_s = reservation_s
        self._clock = clock
        self._limits = Limits(())
        self._reserved: dict[str, tuple[Mapping[str, Reserved], float]] = {}

    def configure(self, limits: Iterable[LimitSettings]) -> None:
        """Use these limits from the next request on; one without a group yet lets everything pass."""
        bank = self._bank

        def shared(name: str, what: str, rate: Rate | None) -> SharedRate | None:
            group = None if rate is None else bank.find(bucket_name(name, what))
            if rate is None or group is None:
                return None
            return SharedRate(rate, bank.account(group))

        self._limits = Limits(
            Limited(
                each.limit,
                shared(each.name, "bytes", each.limit.bytes),
                shared(each.name, "events", each.limit.events),
            )
            for each in limits
        )

    def admit(self, token: str, topic: str | None) -> Receipt:
        """Let a request in, whose body was not read yet; without a topic where it names none. Raises Problem where it
        has to come back later."""
        return self._admit(self._limits.for_request(token, topic) if self._limits.all else [])

    def admit_copies(self, topic: str, events: int, nbytes: int) -> Receipt:
        """Charge the copies of a request's events for a topic, which notifications send there. Raises Problem as
        `admit`, with the topic's name."""
        receipt = self._admit(self._limits.for_one("topic", topic) if self._limits.all else [], f" ({topic})")
        receipt.received(nbytes)
        receipt.holds(events)
        return receipt

    def _admit(self, limits: Sequence[Limited], name: str = "") -> Receipt:
        wait_s = retry_after_s(limits)
        if wait_s:
            slowest = max(limits, key=lambda each: retry_after_s([each])).limit
            self._telemetry.ingest_limited(slowest.of)
            raise RefusedRequest(
                RATE_LIMITED,
                f"the limit {slowest.name} of this {slowest.of}{name} is used up for {wait_s} s",
                headers={"Retry-After": str(wait_s)},
            )
        return Receipt(limits)

    def reserved(self, reservation: str, receipt: Receipt, of_topics: Mapping[str, Receipt] = NOTHING) -> None:
        """Room was reserved, and charged; of one that names no topic also to each topic that it has room in."""
        charged = {"": receipt, **of_topics}
        if not any(each.limits for each in charged.values()):
            return
        now = self._clock()
        while self._reserved and next(iter(self._reserved.values()))[1] <= now:
            del self._reserved[next(iter(self._reserved))]  # it has expired, and returns nothing
        kept = {topic: Reserved(tuple(each.limits), Cost(each.nbytes, each.events)) for topic, each in charged.items()}
        self._reserved[reservation] = (kept, now + self.reservation_s)

    def ended(self, reservation: str, used: Cost, of_topics: Mapping[str, Cost] = NOTHING) -> None:
        """A reservation was committed or aborted: what it did not use comes back. No limit can refuse this."""
        kept, until = self._reserved.pop(reservation, (NOTHING, 0.0))
        if until > self._clock():
            for topic, each in kept.items():
                each.settle(of_topics.get(topic, Cost()) if topic else used)
