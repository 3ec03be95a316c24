"""Sections about processes, ownership and balance, and how a worker shows what it does."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from remora.config.addresses import TcpAddress, UnixAddress, parse_listen
from remora.config.checked import Checked, wrong_mode
from remora.config.units import AUTO, AnyBytes, AutoBytes, Lifetime, Percent, Seconds, Unit
from remora.model.errors import ConfigError
from remora.policy.ownership.lease import LeaseTimes
from remora.policy.ownership.quarantine import QuarantineOptions
from remora.policy.ownership.shedding import RESOURCES, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings(Checked):
    """How many worker processes there are, when one counts as hung, and where they show that they live.

    `workers` 0 means one for each core that this process may use, at most four.
    """

    workers: Annotated[int, Unit("count", 0, 256)] = 0
    watchdog_s: Seconds = 20.0
    run_directory: str = "/run/remora"

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not self.run_directory.startswith("/"):
            yield ConfigError("supervisor.run_directory", f'expected an absolute path, not "{self.run_directory}"')


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings(Checked):
    """When shards move from busy workers to others; `strategy` "count" evens out their numbers only.

    Thresholds are points of usage, up to 100. A limit that is `AUTO` is the host's own. One of 0 is not known: its
    resource counts as unused, but for memory, where that of the control group stands in.
    """

    strategy: Literal["count", "threshold", "overload"] = "threshold"
    interval_s: Seconds = 60.0
    threshold: Percent = 10
    history: Percent = 90
    overload: Percent = 85
    min_throughput: AnyBytes = 10 << 20
    difference: Percent = 10
    grace_s: Lifetime = 1800.0
    memory_limit: AutoBytes = AUTO
    network_bytes: AutoBytes = AUTO
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
class AdminSettings(Checked):
    """Where metrics, health and status are served, and who may change something.

    Commands change a daemon over `control_socket`; where that is empty it lies in `supervisor.run_directory`. Over
    `listen` only holders of a token of the file `control_tokens` do.
    """

    listen: str = "127.0.0.1:9750"
    socket_mode: str = "0660"
    control_socket: str = ""
    control_mode: Literal["0600", "0660"] = "0660"
    control_tokens: str = ""
    metric_topics: Annotated[int, Unit("count", 0, 100_000)] = 500

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        try:
            parse_listen(self.listen)
        except ValueError as exc:
            yield ConfigError("admin.listen", str(exc))
        yield from wrong_mode("admin.socket_mode", self.socket_mode)
        if self.control_socket:
            try:
                parse_listen(f"unix:{self.control_socket}")
            except ValueError:
                problem = f'expected an absolute path of at most 107 bytes, not "{self.control_socket}"'
                yield ConfigError("admin.control_socket", problem)

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
class TracesSettings(Checked):
    """Where spans are exported to over OTLP/HTTP; nowhere where `endpoint` is empty.

    `sample` is the percentage of work that is sampled though no request asks for it.
    """

    endpoint: str = ""
    sample: Percent = 1
    timeout_s: Seconds = 5.0

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not self.endpoint:
            return
        try:
            parts = urlsplit(self.endpoint)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of an address in brackets that is none, or of a port that there is not
            is_url = False
        if not is_url:
            yield ConfigError(
                "traces.endpoint", f'expected a URL such as http://localhost:4318/v1/traces, not "{self.endpoint}"'
            )
        if not _has_exporter():
            yield ConfigError("traces.endpoint", "needs the extra remorad[traces], which is not installed here")


def _has_exporter() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a package around it
        return False


@functools.cache
def own_host_id(file: Path = Path("/etc/machine-id")) -> str:
    """A name for this host that lasts: a digest of its machine id (which is not to be shown), else its name."""
    try:
        machine_id = file.read_bytes().strip()
    except OSError:
        machine_id = b""
    if machine_id not in (b"", b"uninitialized"):  # so in images whose first boot is to make it
        return hashlib.sha256(b"remora host id\0" + machine_id).hexdigest()[:16]
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "unknown"
