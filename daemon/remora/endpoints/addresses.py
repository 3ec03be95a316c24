"""Looking up where a topic's endpoint lies, and whether the operator lets topics connect to it."""

from __future__ import annotations

import ipaddress
import socket

from remora.endpoints.threads import run_blocking
from remora.model.errors import EndpointDenied, EndpointUnavailable
from remora.policy.destinations import DestinationRules
from remora.policy.quarantine import CONNECT


async def look_up(host: str, port: int, rules: DestinationRules, timeout_s: float, *, by_operator: bool) -> list[str]:
    """Returns the addresses of a host after the rules have allowed each; connect to one of these, not to the name.

    `by_operator` tells that no S3 user made the topic. Raises EndpointDenied where an address is denied, and
    EndpointUnavailable where there is none.
    """
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = await run_blocking(
            ("addresses", host, port),
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
            f"{name}: its address",
            timeout_s,
        )
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "no name"
        raise EndpointUnavailable(f"{name}: its name cannot be looked up ({why})", CONNECT) from exc
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    for each in addresses:
        if why := refusal(host, each, port, rules, by_operator=by_operator):
            raise EndpointDenied(why)
    return addresses


def refusal(host: str, address: str, port: int, rules: DestinationRules, *, by_operator: bool) -> str:
    """Why the rules do not allow this address of a host; empty when they do. See DestinationRules.refusal."""
    is_own = rules.needs_own(port) and _is_own(address, port)
    plain = ipaddress.ip_address(address.partition("%")[0])
    return rules.refusal(host, plain, port, is_own=is_own, by_operator=by_operator)


def _is_own(address: str, port: int) -> bool:
    """Whether an address is one of this host's: then a datagram's socket to it has it as its own. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            return bool(probe.getsockname()[0] == address.partition("%")[0])
    except OSError:
        return False
