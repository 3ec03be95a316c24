"""The settings tree: what the TOML file says, checked once, frozen, in seconds and bytes.

A file is refused rather than repaired, and the refusal names all of its problems, each with the dotted path of its key.
A rule that binds several options stands in `problems` of the settings that it binds, which are checked when they are
built: no settings that break a rule can exist.

An option's key is its field's name; durations lose the `_s` of their field, because the text carries the unit:
`lease = "90s"` is `lease_s = 90.0`.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import ipaddress
import re
import socket
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from remora.model.errors import ConfigError, ConfigErrors
from remora.model.traffic import (
    BUCKETS,
    PRIORITY_QUEUE,
    Meter,
    Principal,
    Priority,
    Scope,
    ScopeKind,
    TrafficClass,
    check_principals,
    check_scopes,
    limit_of,
)
from remora.policy.classes import Rules
from remora.policy.destinations import DEFAULT_DENY, DestinationRules, read_rules
from remora.policy.lease import LeaseTimes
from remora.policy.lifetime import Limits
from remora.policy.quarantine import Options as QuarantineOptions
from remora.policy.rates import Limit, rate_from
from remora.policy.shedding import RESOURCES, Options

DRAIN_PART = 0.8
"""The part of `delivery.drain_timeout` that one request to an endpoint takes at most, whatever its own timeout says."""

MOST_BYTES = 1 << 20
"""A configuration file beyond this size is a mistake and is not read."""

# ----------------------------------------------------------------------------------------------- units

_DURATION_UNITS = MappingProxyType({"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400})
_SIZE_UNITS = MappingProxyType({"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9})
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB|MB|GB)")


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `30s`, `1.5m`, `2h` or `1d`; ValueError for anything else."""
    if not (match := _DURATION.fullmatch(text)):
        raise ValueError(f'expected a duration with a unit (ms, s, m, h or d) such as "30s", not "{text}"')
    number, unit = match.groups()
    # The division keeps "100ms" at exactly 0.1, where a product with 0.001 would not.
    return float(number) / 1000 if unit == "ms" else float(number) * _DURATION_UNITS[unit]


def show_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads as this many whole milliseconds."""
    ms = round(seconds * 1000)
    if not ms:
        return "0s"
    for unit, each in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms % each == 0:
            return f"{ms // each}{unit}"
    return f"{ms}ms"


def parse_size(text: str) -> int:
    """Bytes of `512B`, `512KiB`, `64MiB`, `1GiB`, `128MB` or `1GB`; ValueError for anything else."""
    if not (match := _SIZE.fullmatch(text)):
        raise ValueError(f'expected a size with a unit (B, KiB, MiB, GiB, MB or GB) such as "64MiB", not "{text}"')
    return int(match[1]) * _SIZE_UNITS[match[2]]


def show_size(nbytes: int) -> str:
    """The shortest text that `parse_size` reads as this many bytes."""
    for unit in ("GiB", "MiB", "GB", "MB", "KiB"):
        if nbytes and nbytes % _SIZE_UNITS[unit] == 0:
            return f"{nbytes // _SIZE_UNITS[unit]}{unit}"
    return f"{nbytes}B"


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number means, and its limits (both are allowed values)."""

    kind: Literal["duration", "size", "count"]
    least: float
    most: float

    def show(self, value: float) -> str:
        """The value as it stands in the file, without quotes."""
        match self.kind:
            case "duration":
                return show_duration(value)
            case "size":
                return show_size(int(value))
            case "count":
                return str(value)

    def read(self, raw: object) -> float | int:
        """The number that a TOML value stands for; ValueError says what is wrong with it."""
        value = self._number(raw)
        if not self.least <= value <= self.most:
            raise ValueError(f"{self.show(value)} is outside {self.show(self.least)} to {self.show(self.most)}")
        return value

    def _number(self, raw: object) -> float | int:
        if self.kind == "count":
            if isinstance(raw, bool) or not isinstance(raw, int):
                raise ValueError(f"expected a whole number, not {_toml_name(raw)}")
            return raw
        if not isinstance(raw, str):
            example = '"30s"' if self.kind == "duration" else '"64MiB"'
            raise ValueError(f"expected a {self.kind} in quotes such as {example}, not {_toml_name(raw)}")
        return parse_duration(raw) if self.kind == "duration" else parse_size(raw)


Seconds = Annotated[float, Unit("duration", 0.001, 7 * 86400)]
Lifetime = Annotated[float, Unit("duration", 0, 3650 * 86400)]
Bytes = Annotated[int, Unit("size", 64 << 10, 1 << 40)]
Rate = Annotated[int, Unit("size", 0, 1 << 50)]
"""Bytes per second, or bytes at once."""

# -------------------------------------------------------------------------------------------- settings


class Checked:
    """Settings that refuse to be built while they break a rule."""

    __slots__ = ()

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings(Checked):
    """How many worker processes there are, when one counts as hung, and where they show that they live.

    `workers` 0 means one for each core that this process may use.
    """

    workers: Annotated[int, Unit("count", 0, 256)] = 0
    watchdog_s: Seconds = 20.0
    run_directory: str = "/run/remora"

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not self.run_directory.startswith("/"):
            yield ConfigError("supervisor.run_directory", f'expected an absolute path, not "{self.run_directory}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings(Checked):
    """Which store holds the queues."""

    kind: Literal["sqlite", "rados"] = "sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings(Checked):
    """Where the embedded store keeps its files, and how much a queue may hold.

    `files` counts when the directory is made; later the directory itself tells. `if_missing` says whether a store is
    made where there is none, or waited for: its disk may not be mounted.
    """

    directory: str = "/var/lib/remora"
    if_missing: Literal["make", "wait"] = "make"
    files: Annotated[int, Unit("count", 1, 256)] = 16
    queue_bytes: Bytes = 128_000_000

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not self.directory.startswith("/"):
            yield ConfigError("sqlite.directory", f'expected an absolute path, not "{self.directory}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RadosSettings(Checked):
    """How to reach the cluster, and where a zone keeps its queues and topics.

    Empty names are looked up: in ceph.conf, then from the zone by `radosgw-admin zone get`, then the defaults
    of a zone named `default`. Pools are written as radosgw does, `pool` or `pool:namespace`.
    """

    conf: str = "/etc/ceph/ceph.conf"
    name: str = "client.remora"
    keyring: str = ""
    cluster: str = "ceph"
    zone: str = ""
    pool: str = ""
    namespace: str = ""
    log_pool: str = ""
    topics_pool: str = ""
    op_timeout_s: Seconds = 10.0
    mount_timeout_s: Seconds = 10.0

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if self.namespace and not self.pool:
            yield ConfigError(
                "rados.namespace", "a namespace needs its pool: set rados.pool too", binds=("rados.pool",)
            )
        kind, dot, name = self.name.partition(".")
        if not (kind and dot and name):
            yield ConfigError("rados.name", f'expected a type and an id such as "client.remora", not "{self.name}"')


TAKEN_OVER = ("kafka", "http", "https", "amqp", "amqps")
"""The URI schemes of endpoints whose topics can be taken over from radosgw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipSettings(Checked):
    """When queues are found, locked, renewed and let go."""

    lease_s: Seconds = 90.0
    renew_interval_s: Seconds = 30.0
    trust_margin_s: Seconds = 5.0
    release_timeout_s: Seconds = 5.0
    discovery_interval_s: Seconds = 2.0
    claim_from_radosgw: Literal["never", "always"] = "never"
    schemes: tuple[str, ...] = ("kafka",)
    reservation_age_s: Seconds = 120.0
    reservation_interval_s: Seconds = 30.0
    host_id: str = ""

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if rule := self.times.broken_rule():
            yield ConfigError("ownership.renew_interval", rule, binds=("ownership.lease", "ownership.trust_margin"))
        for each in self.schemes:
            if each not in TAKEN_OVER:
                yield ConfigError("ownership.schemes", f'"{each}" is not one of {", ".join(TAKEN_OVER)}')
        # It is a part of the lock's cookie, `remora/<host id>/...`, which others take apart again.
        if not re.fullmatch(r"[A-Za-z0-9._-]{0,64}", self.host_id):
            yield ConfigError("ownership.host_id", "only letters, digits, '.', '_' and '-', at most 64 of them")

    @property
    def times(self) -> LeaseTimes:
        """The lease with everything that is timed by it."""
        return LeaseTimes(self.lease_s, self.renew_interval_s, self.trust_margin_s)

    @property
    def host(self) -> str:
        """The name of this host in lock cookies: `host_id`, else one that this machine always gets again."""
        return self.host_id or own_host_id()


Percent = Annotated[int, Unit("count", 0, 100)]
AnyBytes = Annotated[int, Unit("size", 0, 1 << 40)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings(Checked):
    """When shards move from busy workers to others; `strategy` "count" evens out their numbers only.

    Thresholds are points of usage, up to 100. A limit of 0 is one that is not known: its resource counts as unused,
    but for memory, where that of the control group stands in.
    """

    strategy: Literal["count", "threshold", "overload"] = "threshold"
    interval_s: Seconds = 60.0
    threshold: Percent = 10
    history: Percent = 90
    overload: Percent = 85
    min_throughput: AnyBytes = 10 << 20
    difference: Percent = 10
    grace_s: Lifetime = 1800.0
    lower_boundary: bool = False
    memory_limit: AnyBytes = 0
    network_bytes: AnyBytes = 0
    weights: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RESOURCES, 1.0))

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        for name, weight in self.weights.items():
            if name not in RESOURCES:
                problem = f"there is no such resource; known: {', '.join(RESOURCES)}"
                yield ConfigError(f"balance.weights.{name}", problem)
            if not 0 <= weight <= 1000:
                yield ConfigError(f"balance.weights.{name}", f"{weight:g} is outside 0 to 1000")

    @property
    def by_load(self) -> bool:
        """Whether shards move for their load."""
        return self.strategy != "count"

    @property
    def options(self) -> Options:
        """How they do."""
        return Options(
            by_overload=self.strategy == "overload",
            threshold=self.threshold,
            history=self.history / 100,
            overload=self.overload,
            minimum=self.min_throughput,
            difference=self.difference,
            grace_s=self.grace_s,
            lower_boundary=self.lower_boundary,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSettings(Checked):
    """When a worker leaves a destination that fails it to others, and lets one queue at a time try it.

    `ratio` is the percentage of workers that do so after a bad window.
    """

    enabled: bool = True
    threshold: Annotated[int, Unit("count", 1, 1_000_000)] = 5
    interval_s: Seconds = 60.0
    time_s: Seconds = 1800.0
    ratio: Percent = 30
    connect_errors: bool = False
    early_release: bool = True

    @property
    def options(self) -> QuarantineOptions:
        """What it means."""
        return QuarantineOptions(
            self.enabled, self.threshold, self.time_s, self.ratio / 100, self.connect_errors, self.early_release
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings(Checked):
    """How much is read ahead and held, and how failures are retried.

    `max_unacked` and `destination_max_unacked` are entries, of which 0 stands for any number.
    `mode` is that of topics which name none themselves. So are `time_to_live_s`, `max_retries` and
    `retry_sleep_duration_s`, of which 0 stands for ever, without limit and without pause.
    """

    list_entries: Annotated[int, Unit("count", 1, 10_000)] = 1024
    shard_bytes: Bytes = 8 << 20
    worker_bytes: Bytes = 32 << 20
    endpoint_bytes: Bytes = 16 << 20
    max_unacked: Annotated[int, Unit("count", 0, 10_000_000)] = 0
    destination_max_unacked: Annotated[int, Unit("count", 0, 10_000_000)] = 0
    idle_min_s: Seconds = 0.05
    idle_max_s: Seconds = 1.0
    retry_base_s: Seconds = 0.1
    retry_cap_s: Seconds = 30.0
    configuration_recheck_s: Seconds = 5.0
    drain_timeout_s: Seconds = 30.0
    mode: Literal["at-least-once", "exactly-once"] = "at-least-once"
    transaction_records: Annotated[int, Unit("count", 1, 100_000)] = 5000
    transaction_time_s: Seconds = 0.25
    time_to_live_s: Lifetime = 0.0
    max_retries: Annotated[int, Unit("count", 0, 1_000_000)] = 0
    retry_sleep_duration_s: Lifetime = 0.0

    @property
    def limits(self) -> Limits:
        """How long and how often an entry is tried whose topic leaves that open."""
        return Limits(self.time_to_live_s, self.max_retries, self.retry_sleep_duration_s)

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        for small, large in (
            ("retry_base_s", "retry_cap_s"),
            ("idle_min_s", "idle_max_s"),
            ("shard_bytes", "worker_bytes"),
            ("endpoint_bytes", "worker_bytes"),
        ):
            if getattr(self, small) > getattr(self, large):
                other = f"delivery.{_key(large)}"
                yield ConfigError(f"delivery.{_key(small)}", f"must not be more than {other}", binds=(other,))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(Checked):
    """How records travel to Kafka brokers; where to is each topic's own affair."""

    delivery_timeout_s: Seconds = 10.0
    connect_timeout_s: Seconds = 5.0
    max_batch_bytes: Annotated[int, Unit("size", 1024, 64 << 20)] = 512 << 10
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "snappy"
    idle_timeout_s: Seconds = 300.0
    metadata_max_age_s: Seconds = 30.0
    producers_per_endpoint: Annotated[int, Unit("count", 1, 64)] = 1
    transaction_timeout_s: Seconds = 15.0
    exact_producers: Annotated[int, Unit("count", 1, 1024)] = 64
    client_id: str = "remora"
    ca_directories: str = (
        "/etc/ceph:/etc/pki:/etc/remora:/etc/ssl:/usr/local/share/ca-certificates:/usr/share/ca-certificates"
    )

    client_files: str = ""

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.client_id):
            yield ConfigError("kafka.client_id", "1 to 64 letters, digits, '.', '_' and '-'")
        for option, places in (("ca_directories", self.ca_places), ("client_files", self.client_places)):
            for each in places:
                if not each.startswith("/"):
                    yield ConfigError(f"kafka.{option}", f'expected absolute paths, ":" between them, not "{each}"')

    @property
    def ca_places(self) -> tuple[str, ...]:
        """`ca_directories`, taken apart."""
        return tuple(filter(None, self.ca_directories.split(":")))

    @property
    def client_places(self) -> tuple[str, ...]:
        """`client_files`, taken apart."""
        return tuple(filter(None, self.client_files.split(":")))


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpSettings(Checked):
    """How messages travel to AMQP brokers; where to is each topic's own affair."""

    delivery_timeout_s: Seconds = 10.0
    connect_timeout_s: Seconds = 5.0
    idle_timeout_s: Seconds = 300.0
    heartbeat_s: Seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings(Checked):
    """How records travel to HTTP receivers: connections of each receiver, and how long things may take."""

    connections: Annotated[int, Unit("count", 1, 4096)] = 1024
    connect_timeout_s: Seconds = 5.0
    request_timeout_s: Seconds = 10.0
    idle_timeout_s: Seconds = 60.0
    connection_age_s: Seconds = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationsSettings(Checked):
    """Where endpoints may lie. `deny` are networks; `allow`, when not empty, is the whole truth."""

    deny: tuple[str, ...] = DEFAULT_DENY
    allow: tuple[str, ...] = ()

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        for key in ("deny", "allow"):
            try:
                read_rules(**{"deny": (), "allow": (), key: getattr(self, key)}, listeners=())
            except ValueError as exc:
                yield ConfigError(f"destinations.{key}", str(exc))

    def rules(self, listeners: Iterable[tuple[str, int]]) -> DestinationRules:
        """The rules, with the hosts and ports that this daemon listens on itself."""
        return read_rules(self.deny, self.allow, listeners)


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsSettings(Checked):
    """Where the files of credentials lie that topics name; empty: nowhere."""

    directory: str = ""

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if self.directory and not self.directory.startswith("/"):
            yield ConfigError("credentials.directory", f'expected an absolute path, not "{self.directory}"')


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 takes any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may mean anything


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a socket."""

    path: str


def parse_listen(text: str) -> TcpAddress | UnixAddress:
    """The address of `host:port`, `[::1]:port` or `unix:/path`; ValueError for anything else."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        # 108 bytes with the terminating zero is all that a socket address has room for.
        if not path.startswith("/") or len(path.encode()) > 107:
            raise ValueError(f'expected an absolute path of at most 107 bytes after "unix:", not "{path}"')
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'an IPv6 address needs brackets, such as "[::1]:9750", not "{text}"')
    if not (host and colon and re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65535):
        raise ValueError(f'expected "host:port" or "unix:/path", not "{text}"')
    return TcpAddress(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """How many bytes and events per second the tokens, or the topics, that fit may send to a host together.

    `burst` and `burst_events` are how much of it may come at once.
    """

    name: str
    of: Literal["token", "topic"]
    match: tuple[str, ...] = ("*",)
    bytes: Rate | None = None
    burst: Rate | None = None
    events: Annotated[int, Unit("count", 0, 10**9)] | None = None
    burst_events: Annotated[int, Unit("count", 0, 10**9)] | None = None

    @property
    def limit(self) -> Limit:
        """What it means. Raises ConfigError for a rate without its burst, or a burst without its rate."""
        path = f"ingest.limit.{self.name}"
        return Limit(
            self.of,
            self.name,
            self.match,
            bytes=rate_from((self.bytes, self.burst), ("bytes", "burst"), path),
            events=rate_from((self.events, self.burst_events), ("events", "burst_events"), path),
        )

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break; `Checked` settings that contain it raise them."""
        yield from _raised(lambda: check_scopes([Scope(self.name, ScopeKind.TOPIC, self.match)], "ingest.limit"))
        yield from _raised(lambda: self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings(Checked):
    """Where events are taken in over HTTP, from whom, and within which bounds. An empty `listen` turns it off."""

    listen: str = "unix:/run/remora/ingest.sock"
    socket_mode: str = "0660"
    tls_certificate: str = ""
    tls_key: str = ""
    tokens: str = ""
    max_connections: Annotated[int, Unit("count", 1, 100_000)] = 1024
    max_request_bytes: Bytes = 16 << 20
    max_held_bytes: Bytes = 64 << 20
    max_events: Annotated[int, Unit("count", 1, 1_000_000)] = 10_000
    request_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds = 75.0
    limit: tuple[LimitSettings, ...] = ()

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        yield from _repeated([each.name for each in self.limit], "ingest.limit")
        for limit in self.limit:
            yield from limit.problems()
        if not re.fullmatch("0?[0-7]{3}", self.socket_mode):
            yield ConfigError(
                "ingest.socket_mode", f'expected three octal digits such as "0660", not "{self.socket_mode}"'
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            problem = "certificate and key belong together: set both or neither"
            yield ConfigError("ingest.tls_key", problem, binds=("ingest.tls_certificate",))
        if 2 * self.max_request_bytes > self.max_held_bytes:
            other = "ingest.max_held_bytes"
            yield ConfigError("ingest.max_request_bytes", f"must not be more than half of {other}", binds=(other,))
        try:
            address = self.address
        except ValueError as exc:
            yield ConfigError("ingest.listen", str(exc))
            return
        if isinstance(address, TcpAddress) and not address.is_loopback and not (self.tls_certificate and self.tokens):
            yield ConfigError(
                "ingest.listen",
                f"{self.listen} can be reached from other hosts: that needs ingest.tls_certificate, ingest.tls_key"
                " and ingest.tokens",
                binds=("ingest.tls_certificate", "ingest.tls_key", "ingest.tokens"),
            )

    @property
    def pause_at_bytes(self) -> int:
        """From this many bytes of bodies on new requests wait: one that was let in before may still be the largest."""
        return self.max_held_bytes - self.max_request_bytes

    @property
    def address(self) -> TcpAddress | UnixAddress | None:
        """`listen`, taken apart; None where events are not taken in."""
        return parse_listen(self.listen) if self.listen else None


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
    """What is metered together, and how. `match`, `each` and `across` mean nothing for a host.

    With `across` set to "cluster" the numbers are about what all hosts send together.
    """

    name: str
    of: Literal["host", "destination", "tenant", "topic"]
    match: tuple[str, ...] = ("*",)
    each: bool = True
    across: Literal["host", "cluster"] = "host"
    enabled: bool = False
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

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break; `Checked` settings that contain it raise them."""
        yield from _raised(lambda: check_scopes([self.scope], "shaping.scope"))
        if self.across == "cluster" and self.of == "host":
            yield ConfigError(f"shaping.scope.{self.name}.across", 'must be "host" where the scope is of a host')
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
        absent = [each for each in BUCKETS if each not in meters and each != PRIORITY_QUEUE]
        if absent:
            yield f"{path}: no credit for {', '.join(absent)}: no shard moves at these"
        for bucket, each in meters.items():
            if each.burst < workers * tick_s * each.meter.guaranteed:
                yield (
                    f"{path}.{bucket}.burst: {show_size(each.burst)} is less than {workers} workers take in a tick of"
                    f" {show_duration(tick_s)}, so one busy worker alone cannot take the whole rate"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalSettings:
    """Topics by their label, and the highest class that they may have."""

    name: str
    match: tuple[str, ...]
    max_class: Literal["realtime", "tail", "backlog", "replay", "idle"]

    @property
    def principal(self) -> Principal:
        """What it means."""
        return Principal(self.name, self.match, TrafficClass(self.max_class))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapingSettings(Checked):
    """How the traffic to Kafka is divided by priority, within which scopes; without an enabled scope, not at all."""

    tick_s: Annotated[float, Unit("duration", 0.001, 1)] = 0.01
    default_class: Literal["realtime", "tail", "backlog", "replay", "idle"] = "tail"
    backlog_age_s: Seconds = 5.0
    relief_at: Annotated[int, Unit("count", 1, 100)] = 80
    groups: Annotated[int, Unit("count", 1, 10_000)] = 256
    scope: tuple[ScopeSettings, ...] = ()
    principal: tuple[PrincipalSettings, ...] = ()

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        yield from _repeated([each.name for each in self.scope], "shaping.scope")
        yield from _repeated([each.name for each in self.principal], "shaping.principal")
        for scope in self.scope:
            yield from scope.problems()
        for each in self.principal:
            yield from _raised(functools.partial(check_principals, [each.principal], "shaping.principal"))

    @property
    def rules(self) -> Rules:
        """Which class and which groups a shard has by these settings."""
        return Rules(
            scopes=tuple(each.scope for each in self.scope),
            principals=tuple(each.principal for each in self.principal),
            default=TrafficClass(self.default_class),
            backlog_age_s=self.backlog_age_s,
            relief_at=self.relief_at,
            without_relief=frozenset(
                each.name for each in self.scope if each.enabled and Priority.MAX not in each.by_bucket
            ),
        )

    def remarks(self, workers: int) -> list[str]:
        """What is allowed, and may not be what is meant, on a host with `workers` workers."""
        return [remark for each in self.scope for remark in each.remarks(workers, self.tick_s)]


def _repeated(names: Iterable[str], path: str) -> Iterator[ConfigError]:
    """A problem for each name that stands for something before."""
    seen: set[str] = set()
    for each in names:
        if each in seen:
            yield ConfigError(f"{path}.{each}", "is there twice")
        seen.add(each)


def _raised(check: Callable[[], object]) -> Iterator[ConfigError]:
    """The problem that a check raises, if it does."""
    try:
        check()
    except ConfigError as exc:
        yield exc


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerSettings(Checked):
    """Where `remora sequencer` hands out positions of shared logs, to whom, and within which bounds.

    Its protocol knows no passwords: who connects can use positions up. `allow` are the networks that may do so from
    other hosts; a Unix socket and loopback need none. With `tls_certificate`, `tls_key` and `tls_client_ca` clients
    show a certificate of that authority, save for those of a Unix socket and of `allow`. `create` is the kind of log
    that is made when one is asked for which does not exist, of this `width`; empty makes none. `pools` are those that a
    client may name, all where empty. `admin_listen` is where metrics, health and status are served.
    """

    listen: str = "unix:/run/remora-sequencer/sequencer.sock"
    socket_mode: str = "0660"
    allow: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    lease_s: Seconds = 5.0
    create: Literal["", "counter", "log"] = ""
    width: Annotated[int, Unit("count", 1, 1024)] = 8
    pools: tuple[str, ...] = ()
    max_connections: Annotated[int, Unit("count", 1, 100_000)] = 1024
    max_logs: Annotated[int, Unit("count", 1, 1_000_000)] = 10_000
    max_range: Annotated[int, Unit("count", 1, 4096)] = 4096
    max_registrations: Annotated[int, Unit("count", 1, 1024)] = 32
    admin_listen: str = "127.0.0.1:9752"
    run_directory: str = "/run/remora-sequencer"

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not re.fullmatch("0?[0-7]{3}", self.socket_mode):
            problem = f'expected three octal digits such as "0660", not "{self.socket_mode}"'
            yield ConfigError("sequencer.socket_mode", problem)
        if not self.run_directory.startswith("/"):
            yield ConfigError("sequencer.run_directory", f'expected an absolute path, not "{self.run_directory}"')
        for each in self.allow:
            try:
                ipaddress.ip_network(each)
            except ValueError as exc:
                yield ConfigError("sequencer.allow", f"expected a network such as 10.0.0.0/8: {exc}")
        tls = {name: getattr(self, name) for name in ("tls_certificate", "tls_key", "tls_client_ca")}
        if any(tls.values()) and not all(tls.values()):
            missing = next(f"sequencer.{name}" for name, value in tls.items() if not value)
            others = tuple(f"sequencer.{name}" for name in tls if f"sequencer.{name}" != missing)
            yield ConfigError(missing, f"belongs together with {' and '.join(others)}", binds=others)
        try:
            parse_listen(self.admin_listen)
        except ValueError as exc:
            yield ConfigError("sequencer.admin_listen", str(exc))
        try:
            address = parse_listen(self.listen)
        except ValueError as exc:
            yield ConfigError("sequencer.listen", str(exc))
            return
        if isinstance(address, TcpAddress) and not address.is_loopback and not (self.allow or self.tls_certificate):
            yield ConfigError(
                "sequencer.listen",
                f"{self.listen} can be reached from other hosts: that needs sequencer.allow, or"
                " sequencer.tls_certificate, sequencer.tls_key and sequencer.tls_client_ca",
                binds=("sequencer.allow", "sequencer.tls_certificate"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(Checked):
    """Where metrics, health and status are served."""

    listen: str = "127.0.0.1:9750"
    metric_topics: Annotated[int, Unit("count", 0, 100_000)] = 500

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        try:
            parse_listen(self.listen)
        except ValueError as exc:
            yield ConfigError("admin.listen", str(exc))

    @property
    def address(self) -> TcpAddress | UnixAddress:
        """`listen`, taken apart."""
        return parse_listen(self.listen)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(Checked):
    """What is logged to standard error, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    repeat_interval_s: Seconds = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Checked):
    """Everything that can be configured; each part is handed to the one component that it is for."""

    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    sqlite: SqliteSettings = field(default_factory=SqliteSettings)
    rados: RadosSettings = field(default_factory=RadosSettings)
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    quarantine: QuarantineSettings = field(default_factory=QuarantineSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    amqp: AmqpSettings = field(default_factory=AmqpSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    destinations: DestinationsSettings = field(default_factory=DestinationsSettings)
    credentials: CredentialsSettings = field(default_factory=CredentialsSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    shaping: ShapingSettings = field(default_factory=ShapingSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    sequencer: SequencerSettings = field(default_factory=SequencerSettings)
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def amqp_within_drain(self) -> AmqpSettings:
        """How messages travel to AMQP brokers, each answered or given up before the time for a drain is over."""
        timeout_s = min(self.amqp.delivery_timeout_s, DRAIN_PART * self.delivery.drain_timeout_s)
        return replace(self.amqp, delivery_timeout_s=timeout_s)

    @property
    def http_within_drain(self) -> HttpSettings:
        """How records travel to HTTP receivers, each answered or given up before the time for a drain is over."""
        timeout_s = min(self.http.request_timeout_s, DRAIN_PART * self.delivery.drain_timeout_s)
        return replace(self.http, request_timeout_s=timeout_s)

    @property
    def destination_rules(self) -> DestinationRules:
        """Where endpoints may lie whose topics S3 users make, and never this daemon's own listeners."""
        listeners = [self.admin.address, self.ingest.address, parse_listen(self.sequencer.listen)]
        return self.destinations.rules([(each.host, each.port) for each in listeners if isinstance(each, TcpAddress)])

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if self.supervisor.watchdog_s >= self.ownership.lease_s - self.ownership.trust_margin_s:
            yield ConfigError(
                "supervisor.watchdog",
                "must be less than ownership.lease without ownership.trust_margin, so that a worker which hangs is"
                " killed before anybody else takes its queues",
                binds=("ownership.lease", "ownership.trust_margin"),
            )
        if self.store.kind == "rados" and self.rados.op_timeout_s > self.ownership.renew_interval_s:
            yield ConfigError(
                "rados.op_timeout",
                "must not be more than ownership.renew_interval, so that a renewal which times out"
                " can be repeated before the lease ends",
                binds=("store.kind", "ownership.renew_interval"),
            )
        if self.kafka.max_batch_bytes > self.delivery.shard_bytes:
            other = "delivery.shard_bytes"
            yield ConfigError("kafka.max_batch_bytes", f"must not be more than {other}", binds=(other,))
        if self.kafka.delivery_timeout_s >= self.kafka.transaction_timeout_s:
            yield ConfigError(
                "kafka.transaction_timeout",
                "must be more than kafka.delivery_timeout, so that no transaction is ended that is still waited for",
                binds=("kafka.delivery_timeout",),
            )
        if self.kafka.delivery_timeout_s >= self.delivery.drain_timeout_s:
            other = "kafka.delivery_timeout"
            yield ConfigError(
                "delivery.drain_timeout",
                f"must be more than {other}, so that what is in flight can still be answered",
                binds=(other,),
            )


LIVE = frozenset({
    "balance.difference", "balance.grace", "balance.history", "balance.interval", "balance.lower_boundary",
    "balance.memory_limit", "balance.min_throughput", "balance.network_bytes", "balance.overload",
    "balance.strategy", "balance.threshold", "balance.weights",
    "delivery.configuration_recheck", "delivery.drain_timeout", "delivery.idle_max", "delivery.idle_min",
    "delivery.destination_max_unacked", "delivery.list_entries", "delivery.max_retries", "delivery.max_unacked",
    "delivery.retry_base", "delivery.retry_cap",
    "delivery.retry_sleep_duration", "delivery.shard_bytes", "delivery.time_to_live",
    "delivery.transaction_records", "delivery.transaction_time",
    "ingest.limit", "ingest.max_held_bytes",
    "quarantine.connect_errors", "quarantine.early_release", "quarantine.enabled", "quarantine.interval",
    "quarantine.ratio", "quarantine.threshold", "quarantine.time",
    "log.format", "log.level", "log.repeat_interval", "ownership.schemes",
    "shaping.backlog_age", "shaping.default_class", "shaping.groups", "shaping.principal", "shaping.relief_at",
    "shaping.scope", "shaping.tick",
})  # fmt: skip
"""The options that a reload changes in the running daemon; all others wait for its next start."""

# --------------------------------------------------------------------------------------------- reading


PREFIX = "REMORA_"
"""`REMORA_<SECTION>_<OPTION>` in the environment stands over an option of the file."""


def load(path: Path | str | None, environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings that a file and the environment give; without a file, the environment over the defaults.

    Raises ConfigError with the key, or with the file where it has none.
    """
    if path is None:
        return from_document({}, environment)
    return from_document(read_toml(path, MOST_BYTES, "configuration file"), environment)


def read_toml(path: Path | str, most_bytes: int, what: str) -> dict[str, Any]:
    """A TOML file's content. Raises ConfigError with the file where it is none, or too large for `what` it is to be."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as exc:
        raise ConfigError("", f"cannot read {path}: {exc.strerror}") from exc
    if len(raw) > most_bytes:
        raise ConfigError("", f"{path} is larger than {show_size(most_bytes)}: not a {what}")
    try:
        return tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError("", f"{path} is not TOML: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError("", f"{path} is not TOML that can be read: nested too deeply") from exc


def from_document(document: Mapping[str, object], environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings that a parsed file and the environment give; what both leave out has its default.

    Raises ConfigError, with all problems of the file.
    """
    sections = {each.name: each.default_factory for each in fields(Settings)}
    problems: list[ConfigError] = []
    values: dict[str, dict[str, object]] = {}
    for name, table in document.items():
        if name not in sections:
            problems.append(ConfigError(name, f"there is no such section{_did_you_mean(name, sections)}"))
        elif not isinstance(table, Mapping):
            problems.append(ConfigError(name, f"expected a section [{name}], not {_toml_name(table)}"))
        else:
            values[name] = _values(name, sections[name], table, problems)
    for variable, key in from_environment(environment).items():
        _override(values, variable, key, environment[variable], problems)
    drafts = {name: _draft(sections[name], each) for name, each in values.items()}
    draft: Settings = _draft(Settings, drafts)
    wrong = {key for each in problems for key in (each.key, *each.binds)}
    for part in (*drafts.values(), draft):  # a rule says nothing of an option whose value is not known
        problems += (each for each in part.problems() if wrong.isdisjoint((each.key, *each.binds)))
    refuse(problems)
    return draft


def refuse(problems: Iterable[ConfigError]) -> None:
    """Raise the one problem, or all of them as one; nothing where there are none."""
    found = tuple(problems)
    if found:
        raise found[0] if len(found) == 1 else ConfigErrors(found)


def options() -> Iterator[tuple[str, object]]:
    """The dotted key and default of every option, as the file has them: durations and sizes are text."""
    defaults = Settings()
    for section in fields(Settings):
        part = getattr(defaults, section.name)
        for key, (name, hint) in _options_of(part.__class__).items():
            value = getattr(part, name)
            unit = _unit(hint)
            shown = list(value) if isinstance(value, tuple) else value
            yield f"{section.name}.{key}", unit.show(value) if unit and unit.kind != "count" else shown


@dataclass(frozen=True, slots=True)
class Changes:
    """Dotted keys whose values differ: those that a reload changes at once, and those that need a restart."""

    live: tuple[str, ...]
    restart: tuple[str, ...]


def changes(old: Settings, new: Settings) -> Changes:
    """What a reload from `old` to `new` would change."""
    differing = [
        f"{section.name}.{_key(option.name)}"
        for section in fields(Settings)
        for option in fields(getattr(old, section.name))
        if getattr(getattr(old, section.name), option.name) != getattr(getattr(new, section.name), option.name)
    ]
    return Changes(
        live=tuple(key for key in differing if key in LIVE),
        restart=tuple(key for key in differing if key not in LIVE),
    )


def applied(old: Settings, new: Settings) -> Settings:
    """The settings of a running daemon after a reload: `new` where that may change, `old` elsewhere."""
    sections = {
        section.name: replace(
            getattr(old, section.name),
            **{
                option.name: getattr(getattr(new, section.name), option.name)
                for option in fields(getattr(old, section.name))
                if f"{section.name}.{_key(option.name)}" in LIVE
            },
        )
        for section in fields(Settings)
    }
    return Settings(**sections)


@functools.cache
def own_host_id() -> str:
    """A name for this host that lasts: a digest of its machine id (which is not to be shown), else its name."""
    try:
        machine_id = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        machine_id = b""
    if machine_id:
        return hashlib.sha256(b"remora host id\0" + machine_id).hexdigest()[:16]
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "unknown"


def _values(name: str, cls: Any, table: Mapping[str, object], problems: list[ConfigError]) -> dict[str, object]:
    """The values of a section by their fields' names; what is wrong with the others joins `problems`."""
    known = _options_of(cls)
    values: dict[str, object] = {}
    for key, raw in table.items():
        if key not in known:
            problems.append(ConfigError(f"{name}.{key}", f"there is no such option{_elsewhere(key, known)}"))
            continue
        field_name, hint = known[key]
        path = f"{name}.{key}"
        try:
            if (part := _part_of(hint)) is None:
                values[field_name] = _value(hint, raw)
            elif get_origin(hint) is tuple:
                values[field_name] = _parts(path, part, raw, problems)
            else:
                values[field_name] = _part(path, part, raw, problems)
        except ValueError as exc:
            problems.append(ConfigError(path, str(exc)))
    return values


def _part_of(hint: Any) -> Any:
    """The class of settings that an option has one of, or a list; None for an option with a plain value."""
    return next((each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each)), None)


def _parts(path: str, cls: Any, raw: object, problems: list[ConfigError]) -> tuple[Any, ...]:
    """The settings of tables `[[path]]`, each of which goes by its name in refusals."""
    if not isinstance(raw, list) or not all(isinstance(each, Mapping) for each in raw):
        raise ValueError(f"expected tables [[{path}]], not {_toml_name(raw)}")
    names = [each.get("name") for each in raw]
    paths = [f"{path}.{name if isinstance(name, str) and name else place}" for place, name in enumerate(names)]
    found = [_part(each_path, cls, each, problems) for each_path, each in zip(paths, raw, strict=True)]
    return tuple(each for each in found if each is not None)


def _part(path: str, cls: Any, raw: object, problems: list[ConfigError]) -> Any:
    """The settings of a table within a section; None where something is wrong with them, which joins `problems`."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected a table, not {_toml_name(raw)}")
    found: list[ConfigError] = []
    values = _values(path, cls, raw, found)
    required = [each for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING]
    found += [ConfigError(f"{path}.{_key(each.name)}", "is missing") for each in required if _key(each.name) not in raw]
    problems += found
    return None if found else cls(**values)


_SERVICE_LINK = re.compile(
    r"(?:.*_)?(?:service_host|service_port(?:_.+)?|port_[0-9]{1,5}_(?:tcp|udp|sctp)(?:_(?:addr|port|proto))?)"
)
"""Ends of the names that Kubernetes gives variables of a Service, beside `_PORT`."""


def from_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that stand for an option of a section, with its dotted key, in the order of their names.

    `REMORA_CONFIG` and others whose second word is no section are something else, and so are the variables that
    Kubernetes sets for a Service, unless there is an option of that name.
    """
    sections = {each.name for each in fields(Settings)}
    found = {}
    for variable, text in sorted(environment.items()):
        section, _, option = variable.removeprefix(PREFIX).lower().partition("_")
        if not variable.startswith(PREFIX) or section not in sections or not option:
            continue
        if option in _options_of(_class_of(section)) or not _is_service_link(option, text):
            found[variable] = f"{section}.{option}"
    return found


def _is_service_link(option: str, text: str) -> bool:
    """Whether Kubernetes sets such a variable for a Service, here one whose name begins with `remora-<section>`."""
    is_url = re.match(r"(?:tcp|udp|sctp)://", text) is not None
    return _SERVICE_LINK.fullmatch(option) is not None or (option.split("_")[-1] == "port" and is_url)


def _override(
    values: dict[str, dict[str, object]], variable: str, key: str, text: str, problems: list[ConfigError]
) -> None:
    """Put the value of an environment variable over that of the file; what is wrong with it joins `problems`."""
    section, _, option = key.partition(".")
    known = _options_of(_class_of(section))
    if option not in known:
        problems.append(ConfigError(variable, f"there is no option {key}{_elsewhere(option, known)}"))
        return
    field_name, hint = known[option]
    unit = _unit(hint)
    is_count = unit is not None and unit.kind == "count" and re.fullmatch("-?[0-9]{1,18}", text)
    is_flag = hint is bool and text in ("true", "false")
    raw = int(text) if is_count else text == "true" if is_flag else text
    try:
        values.setdefault(section, {})[field_name] = _value(hint, raw)
    except ValueError as exc:
        problems.append(ConfigError(variable, str(exc), binds=(key,)))


def _class_of(section: str) -> Any:
    return next(each.default_factory for each in fields(Settings) if each.name == section)


def _draft(cls: Any, values: Mapping[str, object]) -> Any:
    """Settings of these values, else of the defaults, not checked yet."""
    draft = object.__new__(cls)
    for each in fields(cls):
        default = each.default_factory() if callable(each.default_factory) else each.default
        object.__setattr__(draft, each.name, values.get(each.name, default))
    return draft


@functools.cache
def _options_of(cls: Any) -> Mapping[str, tuple[str, Any]]:
    """Key of each option, with its field's name and type."""
    hints = get_type_hints(cls, include_extras=True)
    return MappingProxyType({_key(each.name): (each.name, hints[each.name]) for each in fields(cls)})


def _key(field_name: str) -> str:
    return field_name.removesuffix("_s")


def _unit(hint: Any) -> Unit | None:
    """The unit of an option, which may also be one that has no value where it is left out."""
    args = [arg for each in get_args(hint) for arg in (each, *get_args(each))]
    return next((arg for arg in args if isinstance(arg, Unit)), None)


def _value(hint: Any, raw: object) -> object:
    if unit := _unit(hint):
        return unit.read(raw)
    if part := _part_of(hint):
        raise ValueError(f"only the file can have it, as tables, and not one text: {part.__doc__.splitlines()[0]}")
    if get_origin(hint) is tuple:
        return _texts(raw)
    if get_origin(hint) is dict:
        return _numbers(raw)
    if hint is bool:
        if not isinstance(raw, bool):
            raise ValueError(f"expected true or false, not {_toml_name(raw)}")
        return raw
    if not isinstance(raw, str):
        raise ValueError(f"expected text in quotes, not {_toml_name(raw)}")
    if not raw.isprintable():
        raise ValueError("control characters are not allowed here")
    if get_origin(hint) is Literal and raw not in (allowed := get_args(hint)):
        raise ValueError(f'"{raw}" is not one of {", ".join(allowed)}{_did_you_mean(raw, allowed)}')
    return raw


def _texts(raw: object) -> tuple[str, ...]:
    """A list of texts; one text, as the environment has it, is taken apart at its commas."""
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(each, str) for each in items):
        raise ValueError(f'expected a list such as ["a", "b"], not {_toml_name(raw)}')
    if not all(each.isprintable() for each in items):
        raise ValueError("control characters are not allowed here")
    return tuple(filter(None, map(str.strip, items)))


def _numbers(raw: object) -> dict[str, float]:
    """A table of numbers by name."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"expected a table such as {{ cpu = 1.0 }}, not {_toml_name(raw)}")
    for name, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a number for {name}, not {_toml_name(value)}")
    return {str(name): float(value) for name, value in raw.items()}


def _elsewhere(key: str, known: Mapping[str, object]) -> str:
    """Where a misplaced option belongs, else the nearest name here."""
    for path, _ in options():
        section, _, option = path.partition(".")
        if option == key:
            return f"; it belongs into [{section}]"
    return _did_you_mean(key, known)


def _did_you_mean(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _toml_name(raw: object) -> str:
    """What a TOML value is called, for messages; its content may be a misplaced secret and is not shown."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return names.get(type(raw), "a date or time")
