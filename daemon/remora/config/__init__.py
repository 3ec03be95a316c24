"""The settings tree: what the TOML file says, checked once, frozen, in seconds and bytes.

A file is refused rather than repaired, and the refusal names all of its problems, each with the dotted path of its key.
A rule that binds several options stands in `problems` of the settings that it binds, which are checked when they are
built: no settings that break a rule can exist.

An option's key is its field's name; durations lose the `_s` of their field, because the text carries the unit:
`lease = "90s"` is `lease_s = 90.0`.
"""

from remora.config.addresses import TcpAddress, UnixAddress, parse_listen
from remora.config.checked import Checked, refuse
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
from remora.config.document import (
    BUILT_IN,
    DEFAULT_FILE,
    MOST_BYTES,
    Changes,
    applied,
    changes,
    file_of,
    from_document,
    load,
    loaded,
    read_toml,
)
from remora.config.environment import PREFIX, from_environment, strangers
from remora.config.ingest import IngestSettings, LimitSettings
from remora.config.known import options
from remora.config.places import line_of, lines_of
from remora.config.sequencer import SequencerSettings
from remora.config.settings import LIVE, Settings
from remora.config.stores import RadosSettings, SqliteSettings, StoreSettings
from remora.config.traffic import MeterSettings, MetersSettings, PrincipalSettings, ScopeSettings, ShapingSettings
from remora.config.units import (
    AUTO,
    AnyBytes,
    Bytes,
    Lifetime,
    Percent,
    Rate,
    Seconds,
    Unit,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
    toml_name,
)
from remora.config.workers import (
    TAKEN_OVER,
    AdminSettings,
    BalanceSettings,
    LogSettings,
    OwnershipSettings,
    QuarantineSettings,
    SupervisorSettings,
    TracesSettings,
    own_host_id,
)

__all__ = [
    "AUTO",
    "BUILT_IN",
    "DEFAULT_FILE",
    "DRAIN_PART",
    "LIVE",
    "MOST_BYTES",
    "PREFIX",
    "TAKEN_OVER",
    "AdminSettings",
    "AmqpSettings",
    "AnyBytes",
    "BalanceSettings",
    "Bytes",
    "Changes",
    "Checked",
    "CredentialsSettings",
    "DeliverySettings",
    "DestinationsSettings",
    "HttpSettings",
    "IngestSettings",
    "KafkaSettings",
    "Lifetime",
    "LimitSettings",
    "LogSettings",
    "MeterSettings",
    "MetersSettings",
    "NatsSettings",
    "OwnershipSettings",
    "Percent",
    "PrincipalSettings",
    "QuarantineSettings",
    "RadosSettings",
    "Rate",
    "ScopeSettings",
    "Seconds",
    "SequencerSettings",
    "Settings",
    "ShapingSettings",
    "SqliteSettings",
    "StoreSettings",
    "SupervisorSettings",
    "TcpAddress",
    "TracesSettings",
    "Unit",
    "UnixAddress",
    "applied",
    "changes",
    "file_of",
    "from_document",
    "from_environment",
    "line_of",
    "lines_of",
    "load",
    "loaded",
    "options",
    "own_host_id",
    "parse_duration",
    "parse_listen",
    "parse_size",
    "read_toml",
    "refuse",
    "show_duration",
    "show_size",
    "strangers",
    "toml_name",
]
