"""Limits of what comes in over HTTP: bytes and events per second of tokens and topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remora.model.errors import ConfigError
from remora.policy.shaping.bucket import SECOND_US, CreditBucket
from remora.policy.shaping.classes import fits

MOST_RETRY_AFTER_S = 3600


_LIMIT = "limit:"


def bucket_name(limit: str, what: str) -> str:
    """The name of a limit's bucket of bytes, or of events, among the groups of a host. No group of a scope has it."""
    return f"{_LIMIT}{limit}:{what}"


def is_of_limit(group: str) -> bool:
    """Whether a group is a limit's bucket."""
    return group.startswith(_LIMIT)


@dataclass(frozen=True, slots=True)
class Rate:
    """So much per second, and so much at once."""

    per_second: int
    burst: int


@dataclass(frozen=True, slots=True)
class Limit:
    """What is configured for the tokens, or the topics, that fit; a rate of None is no limit."""

    of: str
    name: str
    match: tuple[str, ...]
    bytes: Rate | None = None
    events: Rate | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request is charged."""

    bytes: int = 0
    events: int = 0


class RateBucket:
    """One bucket that is filled tick by tick, with carried remainders; full at the start."""

    def __init__(self, rate: Rate, tick_us: int) -> None:
        self.rate = rate
        self.bucket = CreditBucket(capacity=rate.burst, level=rate.burst)
        self._tick_us = tick_us
        self._ticks = 0

    def tick_to(self, ticks: int) -> None:
        """Fills in the ticks since the start at once, as nothing was taken between them."""
        dealt = [self.rate.per_second * count * self._tick_us // SECOND_US for count in (self._ticks, ticks)]
        self.bucket.fill(dealt[1] - dealt[0])
        self._ticks = ticks

    @property
    def retry_after_s(self) -> int:
        """Seconds until something may pass again; 0 where it may now."""
        return seconds_to_wait(self.bucket.level, self.rate)

    def charge(self, amount: int) -> None:
        """Take by force; a negative amount is given back."""
        if amount > 0:
            self.bucket.drain(amount, force=True)
        elif amount < 0:
            self.bucket.release(-amount)


def seconds_to_wait(level: int, rate: Rate) -> int:
    """Seconds until a level is above 0, at least 1 and at most an hour; 0 where it is by now."""
    if level > 0:
        return 0
    if not rate.per_second:
        return MOST_RETRY_AFTER_S
    return min(max(1, -((level - 1) // rate.per_second)), MOST_RETRY_AFTER_S)


class Counted(Protocol):
    """What a limit needs of a bucket: one in memory, or a view of what the supervisor deals out."""

    @property
    def retry_after_s(self) -> int:
        """Seconds until something may pass again; 0 where it may now."""

    def charge(self, amount: int) -> None:
        """Take by force; a negative amount is given back."""


@dataclass(slots=True)
class Limited:
    """The buckets of one limit."""

    limit: Limit
    bytes: Counted | None
    events: Counted | None

    def charge(self, cost: Cost) -> None:
        """Take by force; a negative cost is given back."""
        for counted, amount in ((self.bytes, cost.bytes), (self.events, cost.events)):
            if counted is not None:
                counted.charge(amount)

    @property
    def buckets(self) -> list[Counted]:
        """Those that there are."""
        return [each for each in (self.bytes, self.events) if each is not None]


class Limits:
    """All limits, and which of them count for a request: the first that fits its token, and the first for its topic."""

    def __init__(self, limits: Iterable[Limited]) -> None:
        self.all = list(limits)

    def for_request(self, token: str, topic: str | None) -> list[Limited]:
        """The limits under which a request is, at most two."""
        return [*self.for_one("token", token), *(() if topic is None else self.for_one("topic", topic))]

    def for_one(self, of: str, name: str) -> list[Limited]:
        """The limit of a token, or of a topic, of this name, if there is one."""
        return [each for each in self.all if each.limit.of == of and fits(each.limit.match, name)][:1]


def retry_after_s(limits: Sequence[Limited]) -> int:
    """For how long a request has to wait, that of the slowest bucket; 0: it passes."""
    return max((counted.retry_after_s for each in limits for counted in each.buckets), default=0)


def admit(limits: Sequence[Limited], cost: Cost) -> int:
    """Charge a request whole, where all its buckets are above 0, and answer 0; else charge nothing, and the seconds."""
    wait = retry_after_s(limits)
    if not wait:
        for each in limits:
            each.charge(cost)
    return wait


@dataclass(frozen=True, slots=True)
class Reserved:
    """What an open reservation was charged, and under which limits."""

    limits: tuple[Limited, ...]
    cost: Cost = field(default_factory=Cost)

    def settle(self, used: Cost) -> None:
        """The reservation ends: what it did not use comes back. A commit asks no bucket; it was promised."""
        for each in self.limits:
            each.charge(Cost(used.bytes - self.cost.bytes, used.events - self.cost.events))


def rate_from(options: tuple[int | None, int | None], names: tuple[str, str], path: str) -> Rate | None:
    """A rate and its burst from what is configured; None where both are left out. Raises ConfigError with the path."""
    for value, name in zip(options, names, strict=True):
        if value is not None and value < 0:
            raise ConfigError(f"{path}.{name}", "must not be negative")
    per_second, burst = options
    if per_second is None and burst is None:
        return None
    if per_second is None or burst is None:
        raise ConfigError(f"{path}.{names[per_second is not None]}", "is missing")
    if per_second and not burst:
        raise ConfigError(f"{path}.{names[1]}", "must be above 0 where the rate is")
    return Rate(per_second, burst)
