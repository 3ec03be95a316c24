"""Which addresses the topics of S3 users may have remora connect to.

Every S3 user who may call CreateTopic makes topics, and their push-endpoints may name this host's own services or the
metadata service of a cloud. So the address that is about to be connected to is judged, not the name: a name may
mean another address at each look-up.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_DENY: Final = (
    "127.0.0.0/8", "::1/128",  # loopback
    "169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128",  # link-local, where clouds keep their metadata services
    "0.0.0.0/8", "::/128",  # unspecified: Linux takes these for loopback
    "224.0.0.0/4", "ff00::/8", "255.255.255.255/32",  # multicast, broadcast
)  # fmt: skip
"""Private networks are not among them: that is where consumers live."""

NAME = re.compile(r"\.?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = ipaddress.IPv6Network("::/96")


@dataclass(frozen=True, slots=True)
class Allowed:
    """One entry of `destinations.allow`: a network, a host name, or a suffix of names that begins with a dot.

    `network` is None for names, and `name` is empty for networks; both for any host. `port` 0 stands for every port.
    """

    name: str = ""
    network: Network | None = None
    port: int = 0

    def matches(self, host: str, address: Address, port: int) -> bool:
        """Whether this entry allows the address of a host of this name."""
        if self.port not in (0, port):
            return False
        if self.network is not None:
            return any(each in self.network for each in meanings(address))
        if not self.name:
            return True
        host = host.rstrip(".").lower()
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A port of this daemon's; `address` is None where it listens on all of the host's."""

    address: Address | None
    port: int


@dataclass(frozen=True, slots=True)
class DestinationRules:
    """What may be connected to. `allow`, when not empty, is the whole truth.

    `is_default` tells that the operator did not write `deny`: then it counts for topics of radosgw's only.
    """

    deny: Sequence[Network] = ()
    allow: Sequence[Allowed] = ()
    listeners: Sequence[ListeningPort] = ()
    is_default: bool = False

    def needs_own(self, port: int) -> bool:
        """Whether it matters if an address with this port is one of this host's."""
        return any(each.port == port for each in self.listeners)

    def admit_all(self, port: int, *, by_operator: bool) -> bool:
        """Whether no address with this port is refused, so that none has to be looked up; see `refusal`."""
        return not (self.allow or self.needs_own(port) or (self.deny and not (by_operator and self.is_default)))

    def refusal(self, host: str, address: Address, port: int, *, is_own: bool, by_operator: bool) -> str:
        """Why this address is not connected to; empty when it is.

        `is_own` tells that it is one of this host's, `by_operator` that the topic was not made by an S3 user. The text
        names the option, and not the address.
        """
        if self._is_listener(address, port, is_own=is_own):
            return "the endpoint is this daemon itself"
        if self.allow:
            if any(each.matches(host, address, port) for each in self.allow):
                return ""
            return "the endpoint is not among destinations.allow"
        if by_operator and self.is_default:
            return ""
        for network in self.deny:
            if any(each in network for each in meanings(address)):
                return f"the endpoint is denied by destinations.deny ({network})"
        return ""

    def _is_listener(self, address: Address, port: int, *, is_own: bool) -> bool:
        for listener in self.listeners:
            if listener.port != port:
                continue
            for each in meanings(address):
                is_local = is_own or each.is_loopback or each.is_unspecified
                if listener.address is None and is_local:
                    return True
                if listener.address is not None and (
                    listener.address in (each, address) or (listener.address.is_loopback and each.is_loopback)
                    or each.is_unspecified
                ):  # fmt: skip
                    return True
        return False


def meanings(address: Address) -> Iterator[Address]:
    """The address, and the IPv4 addresses inside it that a router or the kernel would deliver to."""
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    number = int(address)
    for inside in (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())):
        if inside is not None:
            yield inside
    if any(address in each for each in _NAT64) or (address in _COMPATIBLE and number > 1):
        yield ipaddress.IPv4Address(number & 0xFFFF_FFFF)


def read_rules(deny: Iterable[str], allow: Iterable[str], listeners: Iterable[tuple[str, int]]) -> DestinationRules:
    """The rules that an operator wrote, with the hosts and ports that this daemon listens on. ValueError says why not.

    A listener's host that is a name stands for all addresses of this host.
    """
    networks = tuple(deny)
    return DestinationRules(
        tuple(_network(each) for each in networks),
        tuple(read_allowed(each) for each in allow),
        tuple(ListeningPort(_specific(host), port) for host, port in listeners if port),
        networks == DEFAULT_DENY,
    )


def read_allowed(text: str) -> Allowed:
    """An entry of `destinations.allow`: `host`, `.suffix`, `10.0.0.0/8`, `[fd00::]/8` or `*`, each with `:port` or not.

    ValueError says what is wrong with it.
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\](?:/[0-9]{1,3})?|[^:]+)(?::([0-9]{1,5}))?", text)
    if not match:
        raise ValueError(f'expected a host, ".suffix", a network or "*", with ":port" or without, not "{text}"')
    place, port = match[1].replace("[", "").replace("]", ""), int(match[2] or 0)
    if match[2] and not 1 <= port <= 65535:
        raise ValueError(f'the port of "{text}" is not a number from 1 to 65535')
    if place == "*":
        return Allowed(port=port)
    if re.fullmatch(r"[0-9./]+", place) or ":" in place:
        return Allowed(network=_network(place), port=port)
    if not NAME.fullmatch(place):
        raise ValueError(f'"{text}" is no host name, network or suffix')
    return Allowed(name=place.rstrip(".").lower(), port=port)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as exc:
        raise ValueError(f"expected a network such as 10.0.0.0/8: {exc}") from None


def _specific(host: str) -> Address | None:
    if host == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return None if address.is_unspecified else address
