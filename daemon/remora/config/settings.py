"""All sections together, and which options a reload changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

from remora.config.addresses import TcpAddress, parse_listen
from remora.config.checked import Checked
from remora.config.delivery import (
    DRAIN_PART,
    AmqpSettings,
    CredentialsSettings,
    DeliverySettings,
    DestinationsSettings,
    HttpSettings,
    KafkaSettings,
    NatsSettings,
)
from remora.config.ingest import IngestSettings
from remora.config.sequencer import SequencerSettings
from remora.config.stores import RadosSettings, SqliteSettings, StoreSettings
from remora.config.traffic import ShapingSettings
from remora.config.units import AnyBytes, Bytes, Percent, Unit
from remora.config.workers import (
    AdminSettings,
    BalanceSettings,
    LogSettings,
    OwnershipSettings,
    QuarantineSettings,
    SupervisorSettings,
    TracesSettings,
)
from remora.model.errors import ConfigError
from remora.model.topic import MOST_SHARDS
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.queues.spill import SpillRules


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSettings(Checked):
    """What a new topic gets where the command that makes it does not say: `default_shards` queues."""

    default_shards: Annotated[int, Unit("count", 1, MOST_SHARDS)] = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSettings(Checked):
    """What the advice on a topic's shards goes by: the `events` and `bytes` a second that one shard should have at
    most, and how long a commit to one object takes on RADOS."""

    events: Annotated[int, Unit("count", 1, 10_000_000)] = 30_000
    bytes: Bytes = 100_000_000
    commit_latency_s: Annotated[float, Unit("duration", 0.0, 10.0)] = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillSettings(Checked):
    """`start` and `stop` are percentages of a queue's ring; `pool` is empty for the pool of the queues."""

    enabled: bool = False
    start: Percent = 50
    stop: Percent = 25
    topic_bytes: AnyBytes = 10_000_000_000
    total_bytes: AnyBytes = 100_000_000_000
    pool: str = ""

    @property
    def rules(self) -> SpillRules:
        """What they mean."""
        return SpillRules(self.enabled, self.start / 100, self.stop / 100, self.topic_bytes, self.total_bytes)

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if self.stop >= self.start:
            yield ConfigError("spill.stop", "must be less than spill.start", binds=("spill.start",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Checked):
    """Everything that can be configured; each part is handed to the one component that it is for."""

    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    sqlite: SqliteSettings = field(default_factory=SqliteSettings)
    rados: RadosSettings = field(default_factory=RadosSettings)
    spill: SpillSettings = field(default_factory=SpillSettings)
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    quarantine: QuarantineSettings = field(default_factory=QuarantineSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    amqp: AmqpSettings = field(default_factory=AmqpSettings)
    nats: NatsSettings = field(default_factory=NatsSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    destinations: DestinationsSettings = field(default_factory=DestinationsSettings)
    credentials: CredentialsSettings = field(default_factory=CredentialsSettings)
    topics: TopicsSettings = field(default_factory=TopicsSettings)
    advice: AdviceSettings = field(default_factory=AdviceSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    shaping: ShapingSettings = field(default_factory=ShapingSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    sequencer: SequencerSettings = field(default_factory=SequencerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    traces: TracesSettings = field(default_factory=TracesSettings)

    @property
    def amqp_within_drain(self) -> AmqpSettings:
        """How messages travel to AMQP brokers, each answered or given up before the time for a drain is over."""
        timeout_s = min(self.amqp.delivery_timeout_s, DRAIN_PART * self.delivery.drain_timeout_s)
        return replace(self.amqp, delivery_timeout_s=timeout_s)

    @property
    def nats_within_drain(self) -> NatsSettings:
        """How messages travel to NATS servers, each answered or given up before the time for a drain is over."""
        timeout_s = min(self.nats.delivery_timeout_s, DRAIN_PART * self.delivery.drain_timeout_s)
        return replace(self.nats, delivery_timeout_s=timeout_s)

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

    @property
    def store_name(self) -> str:
        """What tells this store from others, for processes of a host that share a folder."""
        if self.store.kind == "sqlite":
            return f"sqlite {self.sqlite.first}"
        rados = self.rados
        return f"rados {rados.conf} {rados.cluster} {rados.zone} {rados.pool} {rados.namespace}"

    @property
    def control_socket(self) -> str:
        """The path of the socket over which commands change the daemon."""
        return self.admin.control_socket or f"{self.supervisor.run_directory}/control.sock"

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if self.admin.control_tokens and self.admin.control_tokens == self.ingest.tokens:
            other = "ingest.tokens"
            yield ConfigError("admin.control_tokens", f"must not be the file of {other}: senders are in it", (other,))
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
        for each in self.shaping.scope:
            if each.of == "store" and self.store.kind != "rados":
                path = f"shaping.scope.{each.name}.of"
                yield ConfigError(path, 'must not be "store" unless store.kind is "rados"', binds=("store.kind",))
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
    "advice.bytes", "advice.commit_latency", "advice.events",
    "balance.difference", "balance.grace", "balance.history", "balance.interval",
    "balance.memory_limit", "balance.min_throughput", "balance.network_bytes", "balance.overload",
    "balance.strategy", "balance.threshold", "balance.weights",
    "delivery.configuration_recheck", "delivery.drain_timeout", "delivery.idle_max", "delivery.idle_min",
    "delivery.destination_max_unacked", "delivery.list_entries", "delivery.max_retries", "delivery.max_unacked",
    "delivery.read_ahead_watermark", "delivery.retry_base", "delivery.retry_cap",
    "delivery.retry_sleep_duration", "delivery.shard_bytes", "delivery.time_to_live",
    "delivery.transaction_records", "delivery.transaction_time",
    "ingest.limit", "ingest.max_held_bytes",
    "quarantine.connect_errors", "quarantine.early_release", "quarantine.enabled", "quarantine.interval",
    "quarantine.ratio", "quarantine.threshold", "quarantine.time",
    "log.format", "log.level", "log.repeat_interval", "ownership.schemes",
    "shaping.backlog_age", "shaping.backlog_entries", "shaping.default_class",
    "shaping.groups", "shaping.principal", "shaping.relief_at",
    "shaping.scope", "shaping.tick", "topics.default_shards",
})  # fmt: skip
"""The options that a reload changes in the running daemon; all others wait for its next start."""
