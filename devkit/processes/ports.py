"""Ports for servers that are told their port, and that take it some seconds later."""

from __future__ import annotations

import contextlib
import os
import random
import socket

_PORTS = range(30_000, 32_768)
"""Below those that Linux gives to sockets without a port of their own, and above those of scripts/dev-*."""

_SHARES = 8
"""Test runs side by side mostly draw from different ports: a port is free until its server takes it."""


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback that nothing listens on, and that the kernel gives to nobody meanwhile."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        own = _PORTS[os.getpid() % _SHARES :: _SHARES]
        for port in random.sample(own, len(own)):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
            if len(found) == count:
                return found
    raise AssertionError("no port is free")


def free_port() -> int:
    """One of them."""
    (port,) = free_ports(1)
    return port
