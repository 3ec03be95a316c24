"""Where a server listens: a Unix socket or a TCP address."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass


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
