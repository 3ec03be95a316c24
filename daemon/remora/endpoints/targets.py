"""What targets have in common: their host and port, read into values, and all that is wrong in one refusal. Pure.

No message made here repeats any part of the text: a forgotten '@' turns a password into a port.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from remora.model.errors import EndpointMisconfigured

P = ParamSpec("P")
T = TypeVar("T")

HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def read_host_port(text: str, default_port: int) -> tuple[str, int]:
    """A host in lower case and a port, as `host`, `host:port` or `[address]:port`. Raises EndpointMisconfigured."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise EndpointMisconfigured("expected an IPv6 address as [address]:port")
        try:
            return str(ipaddress.IPv6Address(host)), _port(port[1:] if port else None, default_port)
        except ipaddress.AddressValueError:
            raise EndpointMisconfigured("what stands in brackets is not an IPv6 address") from None
    host, colon, port = text.partition(":")
    if ":" in port:
        raise EndpointMisconfigured("more than one ':'; an IPv6 address needs brackets, [address]:port")
    if not host:
        raise EndpointMisconfigured("the endpoint names no host")
    if not HOST_NAME.fullmatch(host):
        raise EndpointMisconfigured("the endpoint's host is not a host name or address")
    return host.lower(), _port(port if colon else None, default_port)


def _port(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise EndpointMisconfigured("the port is not a number from 1 to 65535")
    return int(text)


class Reasons:
    """Gathers the reasons while the parts of a target are read."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def read(self, otherwise: T, reading: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a part of the target means; `otherwise` where it is wrong, with the reason kept."""
        try:
            return reading(*args, **kwargs)
        except EndpointMisconfigured as exc:
            self.add(str(exc))
            return otherwise

    def add(self, reason: str) -> None:
        """One more."""
        self._found[reason] = None

    def refuse(self) -> None:
        """Raise EndpointMisconfigured with all of them, each once; nothing where there are none."""
        if self._found:
            raise EndpointMisconfigured("; ".join(self._found))
