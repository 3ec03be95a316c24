"""The values of traffic shaping: priorities, the classes of shards, the meters of a scope.

Rates are bytes per second and bursts bytes, both whole numbers. A `max` of None is unlimited, and never a large number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from types import MappingProxyType

from remora.model.errors import ConfigError


class Priority(StrEnum):
    """The priorities of a group, the highest first; each has a bucket of its own."""

    MAX = "max"
    CLIENT_HIGH = "client_high"
    CLIENT_NORMAL = "client_normal"
    CLIENT_LOW = "client_low"
    BACKGROUND = "background"
    IDLE = "idle"


PRIORITY_QUEUE = "priority_queue"
"""The seventh bucket: spare credit, which goes to the priorities from the highest on; no shard asks at this one."""

BUCKETS: tuple[str, ...] = (*Priority, PRIORITY_QUEUE)
"""All buckets of a group, in the order in which they are filled."""


class TrafficClass(StrEnum):
    """The traffic class of a shard, the most urgent first."""

    RELIEF = "relief"
    REALTIME = "realtime"
    TAIL = "tail"
    BACKLOG = "backlog"
    REPLAY = "replay"
    IDLE = "idle"

    @property
    def priority(self) -> Priority:
        """The priority at which a shard of this class asks."""
        return _PRIORITIES[self]

    def lower_of(self, other: TrafficClass) -> TrafficClass:
        """The less urgent one of two."""
        return max(self, other, key=_ORDER.index)

    def is_at_least(self, other: TrafficClass) -> bool:
        """Whether this one is as urgent as the other, or more so."""
        return _ORDER.index(self) <= _ORDER.index(other)


_ORDER = tuple(TrafficClass)
_PRIORITIES = MappingProxyType(
    {
        TrafficClass.RELIEF: Priority.MAX,
        TrafficClass.REALTIME: Priority.CLIENT_HIGH,
        TrafficClass.TAIL: Priority.CLIENT_NORMAL,
        TrafficClass.BACKLOG: Priority.CLIENT_LOW,
        TrafficClass.REPLAY: Priority.BACKGROUND,
        TrafficClass.IDLE: Priority.IDLE,
    }
)
if set(_PRIORITIES) != set(TrafficClass):
    raise AssertionError("a traffic class has no priority")

CONFIGURABLE = tuple(each for each in TrafficClass if each is not TrafficClass.RELIEF)
"""The classes that an operator or a topic may name: only a full queue gives relief."""


class ScopeKind(StrEnum):
    """The kinds of scope, the narrowest first: the order in which a page passes its groups."""

    TOPIC = "topic"
    TENANT = "tenant"
    DESTINATION = "destination"
    HOST = "host"
    STORE = "store"

    @property
    def is_whole(self) -> bool:
        """Whether a scope of this kind is one group: all that the host sends, or all its traffic with the store."""
        return self in (ScopeKind.HOST, ScopeKind.STORE)


class PrincipalKind(StrEnum):
    """By what a principal knows its topics: a name of the topic's own, of a sender, or of the receiver."""

    TOPIC = "topic"
    TENANT = "tenant"
    OWNER = "owner"
    TOKEN = "token"  # noqa: S105 - the word for a kind
    DESTINATION = "destination"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Meter:
    """The rates and the burst of one bucket; `guaranteed` is never above `max`."""

    guaranteed: int = 0
    burst: int = 0
    max: int | None = None


UNMETERED = Meter()
"""An absent meter: in an enabled group it gives no credit, so that its priority never moves."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is metered together: all of a host or of its traffic with the store, or the destinations, tenants or topics
    that match its patterns."""

    name: str
    of: ScopeKind
    match: tuple[str, ...] = ("*",)
    each: bool = True
    """One group for each match instead of one for all. A host and its store have one group in any case."""
    shared_limit: int | None = None
    """The bytes per second that all workers of the store share in each group; None where each host has its own."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Topics by who sends to them or receives from them, and the most urgent class that they may have."""

    name: str
    match: tuple[str, ...]
    max_class: TrafficClass
    of: PrincipalKind = PrincipalKind.TOPIC


def meters_from(options: Mapping[str, Mapping[str, int | None]], path: str) -> dict[str, Meter]:
    """The meters that are configured at `path`; a guaranteed rate above its max is cut to it.

    Raises ConfigError with the option's path for an unknown bucket or option, a missing or negative number, and a rate
    without a burst.
    """
    return {bucket: _meter(bucket, given, f"{path}.{bucket}") for bucket, given in options.items()}


def limit_of(meters: Mapping[str, Meter]) -> int:
    """The sum of a scope's guaranteed rates, the spare's included."""
    return sum(each.guaranteed for each in meters.values())


def burst_of(meters: Mapping[str, Meter]) -> int:
    """The sum of a scope's bursts."""
    return sum(each.burst for each in meters.values())


def _meter(bucket: str, given: Mapping[str, int | None], path: str) -> Meter:
    if bucket not in BUCKETS:
        raise ConfigError(path, f"is no bucket; there are {', '.join(BUCKETS)}")
    for option in given:
        if option not in ("guaranteed", "burst", "max"):
            raise ConfigError(f"{path}.{option}", "is no option; there are guaranteed, burst, max")
    values = [given.get(option) for option in ("guaranteed", "burst")]
    for option, value in zip(("guaranteed", "burst"), values, strict=True):
        if value is None:
            raise ConfigError(f"{path}.{option}", "is missing")
    for option in ("guaranteed", "burst", "max"):
        if (given.get(option) or 0) < 0:
            raise ConfigError(f"{path}.{option}", "must not be negative")
    guaranteed, burst, most = values[0] or 0, values[1] or 0, given.get("max")
    meter = Meter(guaranteed if most is None else min(guaranteed, most), burst, most)
    if meter.guaranteed and not burst:
        raise ConfigError(f"{path}.burst", "must be above 0 where the guaranteed rate is")
    return meter


_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


def check_scopes(scopes: Iterable[Scope], path: str) -> None:
    """Raise ConfigError for malformed or repeated names, and for networks of destinations that are none."""
    seen: set[str] = set()
    for each in scopes:
        if not _NAME.fullmatch(each.name):
            raise ConfigError(f"{path}.{each.name}", "is no name; it is to be [a-z][a-z0-9-]{0,31}")
        _check(each.name, each.match, seen, path, may_be_networks=each.of is ScopeKind.DESTINATION)


def check_principals(principals: Iterable[Principal], path: str) -> None:
    """Raise ConfigError for repeated names, classes that no option may name, and networks that are none."""
    seen: set[str] = set()
    for each in principals:
        if not each.name:
            raise ConfigError(path, "a name must not be empty")
        if each.max_class not in CONFIGURABLE:
            raise ConfigError(f"{path}.{each.name}.max_class", f"{each.max_class} cannot be configured")
        _check(each.name, each.match, seen, path, may_be_networks=each.of is PrincipalKind.DESTINATION)


def class_from(word: str, path: str) -> TrafficClass:
    """The class of this name. Raises ConfigError with the path for one that cannot be configured."""
    if word not in CONFIGURABLE:
        raise ConfigError(path, f"must be one of {', '.join(CONFIGURABLE)}")
    return TrafficClass(word)


def _check(name: str, match: Iterable[str], seen: set[str], path: str, *, may_be_networks: bool) -> None:
    if name in seen:
        raise ConfigError(f"{path}.{name}", "is there twice")
    seen.add(name)
    for each in match if may_be_networks else ():
        if "/" in each:
            try:
                ip_network(each, strict=False)
            except ValueError as exc:
                raise ConfigError(f"{path}.{name}.match", f"expected a network such as 10.0.0.0/8: {exc}") from None
