"""The section of the ingest API, with its limits by token and topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from remora.config.addresses import TcpAddress, UnixAddress, parse_listen
from remora.config.checked import Checked, raised, repeated, too_many, wrong_mode
from remora.config.units import Bytes, Rate, Seconds, Unit
from remora.model.errors import ConfigError
from remora.model.traffic import (
    Scope,
    ScopeKind,
    check_scopes,
)
from remora.policy.shaping.rates import Limit, rate_from


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
        yield from raised(lambda: check_scopes([Scope(self.name, ScopeKind.TOPIC, self.match)], "ingest.limit"))
        yield from raised(lambda: self.limit)


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
    unmatched: Literal["accept", "refuse"] = "accept"
    limit: tuple[LimitSettings, ...] = ()

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        yield from too_many(len(self.limit), "ingest.limit")
        yield from repeated([each.name for each in self.limit], "ingest.limit")
        for limit in self.limit:
            yield from limit.problems()
        yield from wrong_mode("ingest.socket_mode", self.socket_mode)
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
