"""The section of traffic shaping: scopes, classes and principals."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from remora.config.checked import Checked, raised, repeated, too_many
from remora.config.units import Rate, Seconds, Unit, show_duration, show_size
from remora.model.errors import ConfigError
from remora.model.traffic import (
    BUCKETS,
    PRIORITY_QUEUE,
    UNMETERED,
    Meter,
    Principal,
    PrincipalKind,
    Priority,
    Scope,
    ScopeKind,
    TrafficClass,
    check_principals,
    check_scopes,
    limit_of,
)
from remora.policy.shaping.classes import BehindFrom, Rules, fits_destination, names_in, networks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterSettings:
    """The rates and the burst of one bucket of a scope; without `max` its rate has no limit."""

    guaranteed: Rate
    burst: Rate
    max: Rate | None = None

    @property
    def meter(self) -> Meter:
        """What it means: a guaranteed rate above its max is cut to it."""
        return Meter(self.guaranteed if self.max is None else min(self.guaranteed, self.max), self.burst, self.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetersSettings:
    """The meters of a scope: one for each priority, the highest first, and that of the spare."""

    max: MeterSettings | None = None
    client_high: MeterSettings | None = None
    client_normal: MeterSettings | None = None
    client_low: MeterSettings | None = None
    background: MeterSettings | None = None
    idle: MeterSettings | None = None
    priority_queue: MeterSettings | None = None

    @property
    def by_bucket(self) -> dict[str, MeterSettings]:
        """Those that are configured, by the name of their bucket."""
        found = {bucket: getattr(self, bucket) for bucket in BUCKETS}
        return {bucket: meter for bucket, meter in found.items() if meter is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeSettings:
    """What is metered together, and how. `match`, `each` and `across` mean nothing for a host and its store.

    With `across` set to "cluster" the numbers are about what all hosts send together.
    """

    name: str
    of: Literal["host", "store", "destination", "tenant", "topic"]
    match: tuple[str, ...] = ("*",)
    each: bool = True
    across: Literal["host", "cluster"] = "host"
    enabled: bool = False
    adaptive: bool = False
    meters: MetersSettings = field(default_factory=MetersSettings)

    @property
    def scope(self) -> Scope:
        """What it covers."""
        shared = limit_of(self.by_bucket) if self.is_shared else None
        return Scope(self.name, ScopeKind(self.of), self.match, self.each, shared)

    @property
    def is_shared(self) -> bool:
        """Whether its limit is divided among all workers of the store."""
        return self.across == "cluster" and self.enabled

    @property
    def by_bucket(self) -> dict[str, Meter]:
        """The meters that count, by bucket."""
        return {bucket: each.meter for bucket, each in self.meters.by_bucket.items()}

    @property
    def without_credit(self) -> list[str]:
        """The priorities that never get any: they cannot hold it, or have no guarantee and there is no spare."""
        meters = self.by_bucket
        spare = meters.get(PRIORITY_QUEUE, UNMETERED)
        found = []
        for bucket in Priority:
            meter = meters.get(bucket, UNMETERED)
            if not meter.burst or meter.max == 0 or not (meter.guaranteed or spare.burst):
                found.append(str(bucket))
        return found

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break; `Checked` settings that contain it raise them."""
        yield from raised(lambda: check_scopes([self.scope], "shaping.scope"))
        if self.across == "cluster" and ScopeKind(self.of).is_whole:
            path = f"shaping.scope.{self.name}.across"
            yield ConfigError(path, f'must be "host" where the scope is of a {self.of}')
        for bucket, each in self.meters.by_bucket.items():
            if each.meter.guaranteed and not each.burst:
                path = f"shaping.scope.{self.name}.meters.{bucket}.burst"
                yield ConfigError(path, "must be above 0 where the guaranteed rate is")

    def remarks(self, workers: int, tick_s: float) -> Iterator[str]:
        """What is allowed here, and may not be what is meant."""
        path, meters = f"shaping.scope.{self.name}.meters", self.meters.by_bucket
        for bucket, each in meters.items():
            if each.max is not None and each.guaranteed > each.max:
                cut, most = show_size(each.guaranteed), show_size(each.max)
                yield f"{path}.{bucket}.guaranteed: {cut} is cut to its max, {most}"
        if not self.enabled:
            return
        if self.without_credit:
            yield f"{path}: no credit for {', '.join(self.without_credit)}: no shard moves at these"
        for bucket, each in meters.items():
            if each.burst < workers * tick_s * each.meter.guaranteed:
                yield (
                    f"{path}.{bucket}.burst: {show_size(each.burst)} is less than {workers} workers take in a tick of"
                    f" {show_duration(tick_s)}, so one busy worker alone cannot take the whole rate"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalSettings:
    """Topics by who sends to them or receives from them, and the highest class that they may have."""

    name: str
    of: Literal["topic", "tenant", "owner", "token", "destination", "certificate"] = "topic"
    match: tuple[str, ...]
    max_class: Literal["realtime", "tail", "backlog", "replay", "idle"]

    @property
    def principal(self) -> Principal:
        """What it means."""
        return Principal(self.name, self.match, TrafficClass(self.max_class), PrincipalKind(self.of))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapingSettings(Checked):
    """How the traffic to Kafka is divided by priority, within which scopes; without an enabled scope, not at all."""

    tick_s: Annotated[float, Unit("duration", 0.001, 1)] = 0.01
    default_class: Literal["realtime", "tail", "backlog", "replay", "idle"] = "tail"
    backlog_age_s: Seconds = 5.0
    backlog_entries: Annotated[int, Unit("count", 1, 1_000_000_000)] = 1000
    relief_at: Annotated[int, Unit("count", 1, 100)] = 80
    groups: Annotated[int, Unit("count", 1, 3_000)] = 256
    scope: tuple[ScopeSettings, ...] = ()
    principal: tuple[PrincipalSettings, ...] = ()

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        yield from too_many(len(self.scope), "shaping.scope")
        yield from repeated([each.name for each in self.scope], "shaping.scope")
        yield from repeated([each.name for each in self.principal], "shaping.principal")
        for scope in self.scope:
            yield from scope.problems()
        for each in self.principal:
            yield from raised(functools.partial(check_principals, [each.principal], "shaping.principal"))

    @property
    def of_store(self) -> str | None:
        """The name of the scope of the store, if there is one."""
        return next((each.name for each in self.scope if each.of == "store"), None)

    @property
    def rules(self) -> Rules:
        """Which class and which groups a shard has by these settings."""
        return Rules(
            scopes=tuple(each.scope for each in self.scope),
            principals=tuple(each.principal for each in self.principal),
            default=TrafficClass(self.default_class),
            behind=BehindFrom(self.backlog_age_s, self.backlog_entries),
            relief_at=self.relief_at,
            without_relief=frozenset(
                each.name for each in self.scope if each.enabled and Priority.MAX in each.without_credit
            ),
        )

    def remarks(self, workers: int) -> list[str]:
        """What is allowed, and may not be what is meant, on a host with `workers` workers."""
        found = [remark for each in self.scope for remark in each.remarks(workers, self.tick_s)]
        return [*found, *self._divided()]

    def _divided(self) -> Iterator[str]:
        """Lists of brokers in this file where a scope fits only some brokers: the list is not in that scope."""
        scopes = [each for each in self.scope if each.of == "destination"]
        named = [each.match for each in scopes]
        named += [each.match for each in self.principal if each.of == "destination"]
        lists = {entry: None for each in named for entry in each if "," in entry}
        for scope in scopes:
            for brokers in lists:
                fitting = [each for each in brokers.split(",") if fits_destination(scope.match, each)]
                if fitting and not fits_destination(scope.match, brokers):
                    yield f"shaping.scope.{scope.name}.match: {_divides(scope, brokers, fitting)}"


def _divides(scope: ScopeSettings, brokers: str, fitting: Sequence[str]) -> str:
    """Says that a scope fits only these of a list of brokers. Looks no name up."""
    only = f"fits only {', '.join(fitting)} of {brokers}"
    others = [each for each in brokers.split(",") if each not in fitting]
    if networks_of(scope.match) and all(map(names_in, others)):
        return f"{only} by name: whether the others lie in its networks, the daemon looks up when it delivers to them"
    return f"{only}: that destination belongs to the next scope"
