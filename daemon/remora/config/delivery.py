"""Sections about delivery and endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from remora.config.checked import Checked
from remora.config.units import Bytes, Lifetime, Percent, Seconds, Unit, option_key
from remora.model.errors import ConfigError
from remora.policy.delivery.destinations import DEFAULT_DENY, DestinationRules, read_rules
from remora.policy.delivery.lifetime import LifetimeLimits
from remora.policy.delivery.tokens import OPTION, parse_place

DRAIN_PART = 0.8
"""The part of `delivery.drain_timeout` that one request to an endpoint takes at most, whatever its own timeout says."""


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
    read_ahead_watermark: Percent = 90
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
    def limits(self) -> LifetimeLimits:
        """How long and how often an entry is tried whose topic leaves that open."""
        return LifetimeLimits(self.time_to_live_s, self.max_retries, self.retry_sleep_duration_s)

    def usual_pause_s(self, pace_s: float | None) -> float:
        """The longest usual pause between two attempts at an entry; `pace_s` is a topic's own where it has one."""
        pace_s = self.retry_sleep_duration_s if pace_s is None else pace_s
        return pace_s or max(self.retry_cap_s, self.configuration_recheck_s)

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        for small, large in (
            ("retry_base_s", "retry_cap_s"),
            ("idle_min_s", "idle_max_s"),
            ("shard_bytes", "worker_bytes"),
            ("endpoint_bytes", "worker_bytes"),
        ):
            if getattr(self, small) > getattr(self, large):
                other = f"delivery.{option_key(large)}"
                yield ConfigError(f"delivery.{option_key(small)}", f"must not be more than {other}", binds=(other,))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(Checked):
    """How records travel to Kafka brokers; where to is each topic's own affair."""

    delivery_timeout_s: Seconds = 10.0
    connect_timeout_s: Seconds = 5.0
    max_batch_bytes: Annotated[int, Unit("size", 1024, 64 << 20)] = 512 << 10
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "snappy"
    idle_timeout_s: Seconds = 300.0
    metadata_max_age_s: Seconds = 30.0
    transaction_timeout_s: Seconds = 15.0
    exact_producers: Annotated[int, Unit("count", 1, 1024)] = 64
    client_id: str = "remora"
    ca_directories: str = (
        "/etc/ceph:/etc/pki:/etc/remora:/etc/ssl:/usr/local/share/ca-certificates:/usr/share/ca-certificates"
    )

    client_files: str = ""
    kerberos_keytab: str = ""
    kerberos_principal: str = ""
    kerberos_service_name: str = "kafka"
    token_endpoints: tuple[str, ...] = ()

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.client_id):
            yield ConfigError("kafka.client_id", "1 to 64 letters, digits, '.', '_' and '-'")
        for option, places in (("ca_directories", self.ca_places), ("client_files", self.client_places)):
            for each in places:
                if not each.startswith("/"):
                    yield ConfigError(f"kafka.{option}", f'expected absolute paths, ":" between them, not "{each}"')
        if self.kerberos_keytab and not self.kerberos_keytab.startswith("/"):
            yield ConfigError("kafka.kerberos_keytab", f'expected an absolute path, not "{self.kerberos_keytab}"')
        if self.kerberos_principal and not self.kerberos_keytab:
            yield ConfigError("kafka.kerberos_principal", "needs kafka.kerberos_keytab, where its key is")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.kerberos_service_name):
            yield ConfigError("kafka.kerberos_service_name", "1 to 64 letters, digits, '.', '_' and '-'")
        for each in self.token_endpoints:
            try:
                parse_place(each)
            except ValueError as exc:
                yield ConfigError(OPTION, f'"{each}": {exc}')

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
class NatsSettings(Checked):
    """How messages travel to NATS servers; where to is each topic's own affair."""

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
