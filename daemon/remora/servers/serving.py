"""What a worker process and a server in it ask of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from remora.config import Settings
from remora.metrics import Telemetry
from remora.ports.store import ShardStore
from remora.process.host_load import HostLoad


class Server(Protocol):
    """A server of a worker process, which takes requests until it is told to finish."""

    @property
    def address(self) -> str:
        """Where it listens, for people."""
        ...

    def reload(self) -> None:
        """Use what has changed in its files."""
        ...

    def finish(self) -> None:
        """Take no more connections and requests; what is under way goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """What a worker process gives to each of its servers. `host` counts what the servers of all workers hold."""

    settings: Settings
    store: ShardStore
    telemetry: Telemetry
    host: HostLoad
