"""The section of the sequencer."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from remora.config.addresses import TcpAddress, parse_listen
from remora.config.checked import Checked, wrong_mode
from remora.config.units import Seconds, Unit
from remora.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerSettings(Checked):
    """Where `remora sequencer` hands out positions of shared logs, to whom, and within which bounds.

    Its protocol knows no passwords: who connects can use positions up. `allow` are the networks that may do so from
    other hosts; a Unix socket and loopback need none. With `tls_certificate`, `tls_key` and `tls_client_ca` clients
    show a certificate of that authority, save for those of a Unix socket and of `allow`. `create` is the kind of log
    that is made when one is asked for which does not exist, of this `width`; empty makes none. `pools` are those that a
    client may name, all where empty. `workers` is how many processes hand positions out, 0 one for each processor; each
    has `max_connections`. `admin_listen` is where metrics, health and status are served.
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
    workers: Annotated[int, Unit("count", 0, 64)] = 1
    max_connections: Annotated[int, Unit("count", 1, 100_000)] = 1024
    max_logs: Annotated[int, Unit("count", 1, 1_000_000)] = 10_000
    max_range: Annotated[int, Unit("count", 1, 4096)] = 4096
    admin_listen: str = "127.0.0.1:9752"
    run_directory: str = "/run/remora-sequencer"

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        yield from wrong_mode("sequencer.socket_mode", self.socket_mode)
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
