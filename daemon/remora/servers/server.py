"""What a worker process and a server in it ask of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from remora.config.settings import Settings
from remora.metrics import Telemetry
from remora.ports.credit import Bank, NoBank
from remora.ports.store import ShardStore
from remora.ports.tracing import NO_TRACER, Tracer
from remora.process.host_load import HostLoad

if TYPE_CHECKING:
    from remora.servers.tokens import Tokens


class Server(Protocol):
    """A server of a worker process, which takes requests until it is asked to end."""

    @property
    def address(self) -> str:
        """Where it listens, for people."""
        ...

    def reload(self, settings: Settings) -> None:
        """Use these settings, as far as they may change in a running daemon, and what has changed in its files."""
        ...

    def end(self) -> None:
        """Take no more connections and requests; what is under way goes on."""
        ...


@dataclass(frozen=True, slots=True)
class OfHost:
    """What the workers of a host share: their load, the buckets of limits, and who gets their spans.

    Without buckets there are no limits, without a tracer no spans. `on_tokens` is told which tokens let senders in.
    """

    load: HostLoad
    bank: Bank = field(default_factory=NoBank)
    tracer: Tracer = NO_TRACER
    on_tokens: Callable[[Tokens | None], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Serving:
    """What a worker process gives to each of its servers."""

    settings: Settings
    store: ShardStore
    telemetry: Telemetry
    host: OfHost
