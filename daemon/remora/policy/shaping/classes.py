"""Which class a shard has, and which groups its listings are metered in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from types import MappingProxyType

from remora.model.traffic import CONFIGURABLE, Principal, PrincipalKind, Scope, ScopeKind, TrafficClass

NO_TENANT = "-"

OTHER = "other"
"""The key of the group that a scope has for all further ones, where there are too many."""


def fits(patterns: Iterable[str], key: str) -> bool:
    """Whether a key is one of the names, or like one of those with stars. A star stands for any text."""
    return any(is_like(each, key) for each in patterns)


def is_like(pattern: str, key: str) -> bool:
    """Whether a key is a pattern's text with anything in the places of its stars."""
    first, *others = pattern.split("*")
    if not others:
        return pattern == key
    *middle, last = others
    at, end = len(first), len(key) - len(last)
    if at > end or not (key.startswith(first) and key.endswith(last)):
        return False
    for part in middle:
        found = key.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


Addresses = Mapping[str, tuple[str, ...]]
"""The addresses of hosts, by name, as far as they are known."""

NO_ADDRESSES: Addresses = MappingProxyType({})


def fits_destination(patterns: Collection[str], destination: str, known: Addresses = NO_ADDRESSES) -> bool:
    """Whether a list of brokers is named, or each of them is like a pattern: with its port or without, or by its
    address in a network such as 10.0.0.0/8. Where only some are, it does not fit.

    A broker that is named by a host's name is in the networks where each of the host's known addresses is.
    """
    if destination in patterns:
        return True
    networks = networks_of(patterns)
    return all(
        fits(patterns, broker) or fits(patterns, host) or are_inside(networks, known.get(host, (host,)))
        for broker in destination.split(",")
        for host in (_host_of(broker),)
    )


def networks_of(patterns: Iterable[str]) -> tuple[str, ...]:
    """The networks among patterns of destinations."""
    return tuple(each for each in patterns if "/" in each)


def are_inside(networks: Sequence[str], addresses: Collection[str]) -> bool:
    """Whether there are addresses and each lies in one of the networks: a connection may go to any of them."""
    found = [ip_network(each, strict=False) for each in networks]
    return bool(addresses) and all(
        any(it in each for it in _meanings(address) for each in found) for address in addresses
    )


def names_in(destination: str) -> tuple[str, ...]:
    """The hosts of a list of brokers that are names, and no addresses, each once."""
    hosts = dict.fromkeys(map(_host_of, destination.split(",")))
    return tuple(each for each in hosts if each and not _meanings(each))


def _host_of(broker: str) -> str:
    name, colon, port = broker.rpartition(":")
    return (name if colon and port.isdecimal() else broker).strip("[]")


def _meanings(text: str) -> tuple[IPv4Address | IPv6Address, ...]:
    """An address, with the IPv4 one that it stands for as ::ffff:10.0.0.1 does; nothing where the text is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return ()
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (address,) if mapped is None else (address, mapped)


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who sends to a topic by the tokens that may, as whom its endpoint is opened by its certificate's subject, and
    where its brokers are by their addresses."""

    tokens: tuple[str, ...] = ()
    certificate: str = ""
    addresses: Addresses = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parties:
    """A topic's names, and who sends to it and receives from it. What is empty is not known, and fits nothing.

    `tokens` are the names of all tokens that may send to it, `certificate` the subject as which its endpoint is opened,
    `addresses` those of the brokers that its destination names.
    """

    label: str
    tenant: str = ""
    destination: str = ""
    owner: str = ""
    certificate: str = ""
    tokens: tuple[str, ...] = ()
    addresses: Addresses = field(default_factory=dict)

    def are(self, principal: Principal, token: str) -> bool:
        """Whether a principal is one of these, where this token sends."""
        if principal.of is PrincipalKind.DESTINATION:
            return bool(self.destination) and self.receive_at(principal.match)
        names = {
            PrincipalKind.TOPIC: self.label,
            PrincipalKind.TENANT: self.tenant or NO_TENANT,
            PrincipalKind.OWNER: self.owner,
            PrincipalKind.TOKEN: token,
            PrincipalKind.CERTIFICATE: self.certificate,
        }
        name = names[principal.of]
        return bool(name) and fits(principal.match, name)

    def receive_at(self, patterns: Collection[str]) -> bool:
        """Whether these patterns fit the destination."""
        return fits_destination(patterns, self.destination, self.addresses)


def highest_class(
    parties: Parties, principals: Sequence[Principal], default: TrafficClass, asked: str = ""
) -> TrafficClass:
    """The highest class that a topic may have: its first principal's, else the default.

    Events of all tokens that may send to it lie in the same queues, and are delivered in order: the most urgent token
    counts. What the topic itself asks for lowers it and never raises it; a word that is no class counts as nothing.
    """
    highest, *others = (
        next((each.max_class for each in principals if parties.are(each, token)), default)
        for token in parties.tokens or ("",)
    )
    for each in others:
        highest = each if each.is_at_least(highest) else highest
    return highest.lower_of(TrafficClass(asked)) if asked in CONFIGURABLE else highest


def class_of(
    highest: TrafficClass, *, at_tail: bool, full: float, relief_at: float, may_relieve: bool = True
) -> TrafficClass:
    """The class of a shard's next listing.

    `at_tail` is False with a backlog, and where nothing is known yet. `full` is how full its queue is, in percent: one
    that is to be emptied first is relieved, unless its topic is meant to wait. `may_relieve` is False where a group of
    its path has no credit for relief: there the fullest queue would stand still for ever.
    """
    if may_relieve and full >= relief_at and highest.is_at_least(TrafficClass.TAIL):
        return TrafficClass.RELIEF
    return highest if at_tail else highest.lower_of(TrafficClass.BACKLOG)


@dataclass(frozen=True, slots=True)
class BehindFrom:
    """From where on a shard with more behind its listing is catching up: age or entries, whichever is passed first."""

    age_s: float = 5.0
    entries: int = 1000

    def has_backlog(self, *, truncated: bool, newest_age_s: float | None, waiting: int) -> bool:
        """Whether a listing shows that its shard is catching up: there is more behind it, and its newest entry is old
        or very many wait. Of an empty queue, and of one whose end was listed, neither is asked."""
        is_old = newest_age_s is not None and newest_age_s > self.age_s
        return truncated and (is_old or waiting > self.entries)


def groups_of(scopes: Sequence[Scope], parties: Parties) -> tuple[str, ...]:
    """The groups of a topic's listings, narrow to wide: for each kind that of the first scope that fits."""
    keys = {
        ScopeKind.TOPIC: parties.label,
        ScopeKind.TENANT: parties.tenant or NO_TENANT,
        ScopeKind.DESTINATION: parties.destination,
        ScopeKind.HOST: None,
        ScopeKind.STORE: None,
    }
    found: list[str] = []
    for kind, key in keys.items():
        scope = next((each for each in scopes if each.of is kind and _covers(each, key, parties)), None)
        if scope is not None:
            found.append(scope.name if key is None or not scope.each else f"{scope.name}/{key}")
    return tuple(found)


def _covers(scope: Scope, key: str | None, parties: Parties) -> bool:
    if scope.of is ScopeKind.DESTINATION:
        return parties.receive_at(scope.match)
    return key is None or fits(scope.match, key)


@dataclass(frozen=True, slots=True)
class Rules:
    """What is configured of classes and groups. `without_relief` are the enabled scopes that have no credit for it."""

    scopes: tuple[Scope, ...] = ()
    principals: tuple[Principal, ...] = ()
    default: TrafficClass = TrafficClass.TAIL
    behind: BehindFrom = BehindFrom()
    relief_at: float = 80
    without_relief: frozenset[str] = frozenset()

    @property
    def has_networks(self) -> bool:
        """Whether any pattern of destinations is a network, so that it matters which addresses hosts have."""
        scopes = (each.match for each in self.scopes if each.of is ScopeKind.DESTINATION)
        principals = (each.match for each in self.principals if each.of is PrincipalKind.DESTINATION)
        return any(networks_of(each) for each in (*scopes, *principals))

    def highest_class(self, parties: Parties, asked: str) -> TrafficClass:
        """The highest class of a topic that asks for this one."""
        return highest_class(parties, self.principals, self.default, asked)

    def groups_of(self, parties: Parties) -> tuple[str, ...]:
        """The groups of a topic's listings, narrow to wide."""
        return groups_of(self.scopes, parties)

    def class_of(
        self, highest: TrafficClass, groups: Iterable[str], *, at_tail: bool, full_percent: float
    ) -> TrafficClass:
        """The class of a shard's next listing; at most `highest`, save for relief."""
        may_relieve = not any(scope_of(each) in self.without_relief for each in groups)
        return class_of(highest, at_tail=at_tail, full=full_percent, relief_at=self.relief_at, may_relieve=may_relieve)


def scope_of(group: str) -> str:
    """The name of a group's scope."""
    return group.partition("/")[0]
