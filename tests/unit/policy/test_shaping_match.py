"""What patterns of scopes and principals fit: names with stars, domains, networks, and lists of brokers."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.errors import ConfigError
from remora.model.traffic import (
    Principal,
    PrincipalKind,
    Scope,
    ScopeKind,
    TrafficClass,
    check_principals,
    check_scopes,
)
from remora.policy.shaping.classes import (
    BehindFrom,
    Parties,
    Rules,
    fits_destination,
    groups_of,
    highest_class,
    is_like,
    names_in,
)


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_a_star_stands_for_any_text(pattern: str, key: str) -> None:
    """Any number of stars, anywhere, as in a shell's patterns of names."""
    assert is_like(pattern, key) == fnmatchcase(key, pattern)


@pytest.mark.parametrize(
    ("match", "destination", "expected"),
    [
        (["*"], "kafka-1:9092", True),
        (["kafka-1:9092"], "kafka-1:9092", True),
        (["kafka-1"], "kafka-1:9092", True),
        (["kafka-1"], "kafka-10:9092", False),
        (["*.eu.example.com"], "k1.eu.example.com:9092", True),
        (["*.eu.example.com"], "k1.us.example.com:9092", False),
        (["*.eu.example.com"], "k1.eu.example.com.evil.org:9092", False),
        (["*.eu.example.com:9093"], "k1.eu.example.com:9092", False),
        (["k*.eu.*.com"], "k1.eu.example.com", True),
        (["*.eu.example.com"], "k1.eu.example.com:9092,k2.eu.example.com:9092", True),
        (["*.eu.example.com"], "k1.eu.example.com:9092,k1.us.example.com:9092", False),
        (["eu-*"], "eu-1:9092,us-1:9092", False),
        (["eu-*", "us-1"], "eu-1:9092,us-1:9092", True),
        (["eu-1:9092,us-1:9092"], "eu-1:9092,us-1:9092", True),
        (["10.0.0.0/8"], "10.1.2.3:9092", True),
        (["10.0.0.0/8"], "11.1.2.3:9092", False),
        (["10.0.0.0/8"], "10.1.2.3:9092,10.1.2.4:9092", True),
        (["10.0.0.0/8"], "broker:9092", False),
        (["fd00::/8"], "[fd00::1]:9092", True),
        (["fd00::/8"], "[fe80::1]:9092", False),
        (["10.0.0.7/8"], "10.1.2.3", True),
    ],
)
def test_a_destination_fits_where_all_of_its_brokers_do(match: list[str], destination: str, expected: bool) -> None:
    """By name with or without the port, by domain, by an address in a network; a list also as a whole."""
    assert fits_destination(match, destination) is expected


@pytest.mark.parametrize(
    ("destination", "known", "expected"),
    [
        ("a:9092", {"a": ("10.1.2.3",)}, True),
        ("a", {"a": ("10.1.2.3", "10.1.2.4")}, True),
        ("a:9092", {}, False),
        ("a:9092", {"a": ()}, False),
        ("a:9092", {"a": ("11.1.2.3",)}, False),
        ("a:9092", {"a": ("10.1.2.3", "11.1.2.3")}, False),
        ("a:9092", {"a": ("10.1.2.3", "fd00::1")}, True),
        ("a:9092", {"a": ("10.1.2.3", "2001:db8::1")}, False),
        ("a:9092", {"a": ("fd00::1%eth0",)}, True),
        ("a:9092", {"a": ("::ffff:10.1.2.3",)}, True),
        ("a:9092", {"a": ("::ffff:11.1.2.3",)}, False),
        ("[::ffff:10.1.2.3]:9092", {}, True),
        ("a:9092,b:9093", {"a": ("10.1.2.3",), "b": ("fd00::1",)}, True),
        ("a:9092,b:9093", {"a": ("10.1.2.3",)}, False),
        ("a:9092,10.1.2.3:9092", {"a": ("10.1.2.4",)}, True),
        ("a:9092,11.1.2.3:9092", {"a": ("10.1.2.4",)}, False),
        ("a:9092,near-1:9092", {"a": ("10.1.2.4",)}, True),
        ("near-1:9092", {"near-1": ("11.1.2.3",)}, True),
    ],
)
def test_a_name_is_in_a_network_where_all_of_its_addresses_are(
    destination: str, known: dict[str, tuple[str, ...]], expected: bool
) -> None:
    """Each address of each broker lies in one of the networks; a name without known addresses is in none."""
    assert fits_destination(["10.0.0.0/8", "fd00::/8", "near-*"], destination, known) is expected


def test_names_are_what_has_to_be_looked_up() -> None:
    """Addresses need no look-up, with a port, in brackets or mapped; each name is looked up once."""
    assert names_in("a:9092,10.1.2.3:9092,[fd00::1]:9092,b.example.com,a:9093,[::ffff:10.0.0.1]") == (
        "a",
        "b.example.com",
    )
    assert names_in("") == ()


@pytest.mark.parametrize(
    ("scopes", "principals", "expected"),
    [
        ([Scope("n", ScopeKind.DESTINATION, ("a", "10.0.0.0/8"))], [], True),
        ([Scope("n", ScopeKind.DESTINATION, ("a", "b-*"))], [], False),
        ([Scope("n", ScopeKind.TOPIC, ("a/b",))], [], False),
        ([], [Principal("p", ("fd00::/8",), TrafficClass.TAIL, PrincipalKind.DESTINATION)], True),
        ([], [Principal("p", ("a/b",), TrafficClass.TAIL, PrincipalKind.CERTIFICATE)], False),
    ],
)
def test_names_are_looked_up_for_networks_only(
    scopes: list[Scope], principals: list[Principal], expected: bool
) -> None:
    """Addresses matter where a scope or a principal of destinations has a network."""
    assert Rules(scopes=tuple(scopes), principals=tuple(principals)).has_networks is expected


def test_a_destination_that_fits_in_part_belongs_to_the_next_scope() -> None:
    """A list of brokers is in one group at most: that of the first scope in which all of them are."""
    scopes = [
        Scope("eu", ScopeKind.DESTINATION, ("*.eu.example.com",), False, None),
        Scope("others", ScopeKind.DESTINATION, ("*",), True, None),
    ]

    def group(destination: str) -> tuple[str, ...]:
        return groups_of(scopes, Parties("t", destination=destination))

    assert group("a.eu.example.com:9092,b.eu.example.com:9092") == ("eu",)
    assert group("a.eu.example.com:9092,b.us.example.com:9092") == (
        "others/a.eu.example.com:9092,b.us.example.com:9092",
    )


@pytest.mark.parametrize(
    ("truncated", "newest_age_s", "waiting", "expected"),
    [
        (True, 5.1, 0, True),
        (True, 5.0, 20, False),
        (True, 0.0, 21, True),
        (True, None, 21, True),
        (True, None, 20, False),
        (False, 900.0, 1_000_000, False),
    ],
)
def test_behind_by_age_or_by_entries(truncated: bool, newest_age_s: float | None, waiting: int, expected: bool) -> None:
    """A shard with more behind its listing has a backlog from an age on and from a number on, whichever comes first."""
    behind = BehindFrom(5.0, 20)

    assert behind.has_backlog(truncated=truncated, newest_age_s=newest_age_s, waiting=waiting) == expected


WHO = Parties(
    "acme:orders",
    "acme",
    "k1.eu.example.com:9092,k2.eu.example.com:9092",
    "acme$amy",
    "CN=orders,OU=billing,O=Acme",
    ("gateway-1", "bulk"),
)


@pytest.mark.parametrize(
    ("of", "match", "fits"),
    [
        (PrincipalKind.TOPIC, "acme:*", True),
        (PrincipalKind.TOPIC, "orders", False),
        (PrincipalKind.TENANT, "acme", True),
        (PrincipalKind.OWNER, "acme$amy", True),
        (PrincipalKind.OWNER, "amy", False),
        (PrincipalKind.DESTINATION, "*.eu.example.com", True),
        (PrincipalKind.DESTINATION, "k1.*", False),
        (PrincipalKind.CERTIFICATE, "*OU=billing*", True),
        (PrincipalKind.CERTIFICATE, "CN=orders", False),
        (PrincipalKind.TOKEN, "gateway-*", True),
        (PrincipalKind.TOKEN, "acme:*", False),
    ],
)
def test_a_principal_is_who_sends_or_receives(of: PrincipalKind, match: str, fits: bool) -> None:
    """Each kind of principal looks at its own name of a topic, of its senders or of its receiver."""
    principal = Principal("p", (match,), TrafficClass.REALTIME, of)

    found = highest_class(WHO, [principal], TrafficClass.TAIL)

    assert found is (TrafficClass.REALTIME if fits else TrafficClass.TAIL)


@pytest.mark.parametrize(
    "of", [each for each in PrincipalKind if each not in (PrincipalKind.TOPIC, PrincipalKind.TENANT)]
)
def test_who_is_unknown_fits_no_principal(of: PrincipalKind) -> None:
    """A star stands for any name, and not for none: a topic whose sender is unknown has the default class."""
    principal = Principal("p", ("*",), TrafficClass.IDLE, of)

    assert highest_class(Parties("t"), [principal], TrafficClass.TAIL) is TrafficClass.TAIL


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("bulk",), TrafficClass.REPLAY),
        (("bulk", "live"), TrafficClass.REALTIME),
        (("live", "bulk"), TrafficClass.REALTIME),
        (("bulk", "unnamed"), TrafficClass.TAIL),
        ((), TrafficClass.TAIL),
    ],
)
def test_the_most_urgent_token_of_a_topic_counts(tokens: tuple[str, ...], expected: TrafficClass) -> None:
    """Events of all tokens share the queues of a topic: none of them waits behind a less urgent one's class."""
    principals = [
        Principal("bulk", ("bulk",), TrafficClass.REPLAY, PrincipalKind.TOKEN),
        Principal("live", ("live",), TrafficClass.REALTIME, PrincipalKind.TOKEN),
    ]

    assert highest_class(Parties("t", tokens=tokens), principals, TrafficClass.TAIL) is expected


def test_the_first_principal_counts_whatever_its_kind() -> None:
    """Principals of several kinds are one list: the first that fits decides, and a topic lowers what it gives."""
    principals = [
        Principal("logs", ("logs",), TrafficClass.IDLE),
        Principal("live", ("live",), TrafficClass.REALTIME, PrincipalKind.TOKEN),
    ]
    logs, other = (Parties(label, tokens=("live",)) for label in ("logs", "other"))

    assert highest_class(logs, principals, TrafficClass.TAIL) is TrafficClass.IDLE
    assert highest_class(other, principals, TrafficClass.TAIL) is TrafficClass.REALTIME
    assert highest_class(other, principals, TrafficClass.TAIL, "replay") is TrafficClass.REPLAY


def test_the_store_is_the_widest_scope() -> None:
    """A listing passes the group of its store last, which is one for the host, whatever it matches or has of each."""
    scopes = [
        Scope("osds", ScopeKind.STORE, ("nothing",)),
        Scope("uplink", ScopeKind.HOST),
        Scope("topics", ScopeKind.TOPIC),
        Scope("further", ScopeKind.STORE),
    ]

    assert groups_of(scopes, Parties("t")) == ("topics/t", "uplink", "osds")


@pytest.mark.parametrize("match", ["*.eu.example.com", "eu-*-prod-*", "10.0.0.0/8", "fd00::/8", "10.0.0.7/8"])
def test_what_may_be_configured(match: str) -> None:
    """Every form of pattern that fits something can be configured, for scopes and for principals."""
    check_scopes([Scope("eu", ScopeKind.DESTINATION, (match,))], "shaping.scope")
    check_principals([Principal("eu", (match,), TrafficClass.TAIL, PrincipalKind.DESTINATION)], "shaping.principal")


@pytest.mark.parametrize("match", ["10.0.0.0/99", "fd00::/129", "eu/8", "10.0.0/8"])
def test_a_network_that_is_none_is_refused(match: str) -> None:
    """A mistyped network would fit nothing, and nobody would notice."""
    with pytest.raises(ConfigError, match="expected a network"):
        check_scopes([Scope("eu", ScopeKind.DESTINATION, (match,))], "shaping.scope")
    with pytest.raises(ConfigError, match="expected a network"):
        check_principals([Principal("eu", (match,), TrafficClass.TAIL, PrincipalKind.DESTINATION)], "shaping.principal")
