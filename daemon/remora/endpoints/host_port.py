"""The host and port of an endpoint's URI, read into values. Pure.

No message made here repeats any part of the text: a forgotten '@' turns a password into a port.
"""

from __future__ import annotations

import ipaddress
import re

from remora.model.errors import EndpointMisconfigured

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
