"""Which addresses may be connected to."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.delivery.destinations import DEFAULT_DENY, DestinationRules, read_allowed, read_rules

DEFAULT = read_rules(DEFAULT_DENY, (), [("127.0.0.1", 9750)])


def refused(
    rules: DestinationRules, address: str, port: int = 80, *, host: str = "host", by_operator: bool = False
) -> str:
    return rules.refusal(host, ip_address(address), port, is_own=False, by_operator=by_operator)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "127.0.0.0/8"),
        ("127.255.255.254", "127.0.0.0/8"),
        ("::1", "::1/128"),
        ("169.254.169.254", "169.254.0.0/16"),
        ("fe80::1", "fe80::/10"),
        ("fd00:ec2::254", "fd00:ec2::254/128"),
        ("0.0.0.0", "0.0.0.0/8"),
        ("::", "::/128"),
        ("224.0.0.1", "224.0.0.0/4"),
        ("255.255.255.255", "255.255.255.255/32"),
        ("ff02::1", "ff00::/8"),
        ("::ffff:127.0.0.1", "127.0.0.0/8"),
        ("::127.0.0.1", "127.0.0.0/8"),
        ("2002:7f00:1::", "127.0.0.0/8"),
        ("2002:a9fe:a9fe::", "169.254.0.0/16"),
        ("64:ff9b::127.0.0.1", "127.0.0.0/8"),
        ("64:ff9b::169.254.169.254", "169.254.0.0/16"),
    ],
)
def test_denied_by_default(address: str, network: str) -> None:
    """Loopback, link-local, metadata services and their embeddings are denied, naming the network, not the address."""
    why = refused(DEFAULT, address)

    assert why == f"the endpoint is denied by destinations.deny ({network})"


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.1.1", "172.16.3.4", "fd00::1", "93.184.216.34", "2001:db8::1"]
)
def test_allowed_by_default(address: str) -> None:
    """Private networks, where consumers live, and public addresses are allowed."""
    assert refused(DEFAULT, address) == ""


@given(
    st.ip_addresses(),
    st.sampled_from([0, 80, 9092, 9750]),
    st.sampled_from([(), DEFAULT_DENY, ("10.0.0.0/8",)]),
    st.sampled_from([(), ("host",)]),
    st.booleans(),
)
def test_where_all_are_admitted_none_is_refused(
    address: IPv4Address | IPv6Address, port: int, deny: tuple[str, ...], allow: tuple[str, ...], by_operator: bool
) -> None:
    """No address is refused that need not be looked up; and the default rules leave Kafka's port to the operator."""
    rules = read_rules(deny, allow, [("127.0.0.1", 9750)])

    if rules.admit_all(port, by_operator=by_operator):
        assert rules.refusal("other", address, port, is_own=True, by_operator=by_operator) == ""
    assert DEFAULT.admit_all(9092, by_operator=True)
    assert not DEFAULT.admit_all(9092, by_operator=False)


@given(st.integers(0, 2**32 - 1))
def test_an_embedded_address_is_judged_as_itself(number: int) -> None:
    """What is denied as IPv4 is denied in every IPv6 form that leads there."""
    inside = IPv4Address(number)
    plain = refused(DEFAULT, str(inside))
    forms = [0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80]

    assert all(bool(refused(DEFAULT, str(IPv6Address(form)))) >= bool(plain) for form in forms)


def test_what_the_default_counts_for() -> None:
    """The default binds topics of S3 users only; what the operator wrote binds all topics."""
    assert refused(DEFAULT, "127.0.0.1", by_operator=True) == ""
    assert "destinations.deny" in refused(read_rules(("10.0.0.0/8",), (), ()), "10.0.0.1", by_operator=True)
    assert refused(read_rules((), (), ()), "127.0.0.1") == ""


@pytest.mark.parametrize("deny", [DEFAULT_DENY, ()])
@pytest.mark.parametrize("allow", [(), ("*",), ("127.0.0.0/8",)])
@pytest.mark.parametrize(
    ("listener", "address", "is_own", "is_denied"),
    [
        ("127.0.0.1", "127.0.0.1", True, True),
        ("127.0.0.1", "127.0.0.2", True, True),
        ("127.0.0.1", "::ffff:127.0.0.1", True, True),
        ("127.0.0.1", "0.0.0.0", False, True),
        ("localhost", "::1", True, True),
        ("0.0.0.0", "10.0.0.5", True, True),
        ("::", "10.0.0.5", True, True),
        ("a-name", "10.0.0.5", True, True),
        ("10.0.0.5", "10.0.0.5", True, True),
        ("0.0.0.0", "10.0.0.6", False, False),
        ("10.0.0.5", "10.0.0.6", False, False),
    ],
)
def test_the_daemon_itself(
    deny: tuple[str, ...], allow: tuple[str, ...], listener: str, address: str, is_own: bool, is_denied: bool
) -> None:
    """The daemon's own ports are denied whatever the lists say, and other hosts with such a port are not."""
    rules = read_rules(deny, allow, [(listener, 9750)])

    said = rules.refusal("h", ip_address(address), 9750, is_own=is_own, by_operator=True)

    assert (said == "the endpoint is this daemon itself") is is_denied
    assert "itself" not in rules.refusal("h", ip_address(address), 9751, is_own=is_own, by_operator=True)


@pytest.mark.parametrize(
    ("allow", "host", "address", "port", "passes"),
    [
        ("hooks.example.com", "hooks.example.com", "93.0.0.1", 443, True),
        ("hooks.example.com", "HOOKS.example.com.", "93.0.0.1", 443, True),
        ("hooks.example.com", "a.hooks.example.com", "93.0.0.1", 443, False),
        (".example.com", "hooks.example.com", "93.0.0.1", 443, True),
        (".example.com", "example.com", "93.0.0.1", 443, False),
        (".example.com", "evilexample.com", "93.0.0.1", 443, False),
        ("hooks.example.com:443", "hooks.example.com", "93.0.0.1", 80, False),
        ("10.0.0.0/8", "any", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "any", "11.1.2.3", 80, False),
        ("10.0.0.0/8:8080", "any", "10.1.2.3", 80, False),
        ("[fd00::]/8", "any", "fd00::1", 80, True),
        ("[fd00::1]:80", "any", "fd00::1", 80, True),
        ("*:443", "any", "93.0.0.1", 443, True),
        ("*:443", "any", "93.0.0.1", 80, False),
        ("127.0.0.1", "any", "127.0.0.1", 80, True),
    ],
)
def test_allowed(allow: str, host: str, address: str, port: int, passes: bool) -> None:
    """A list of allowed places is the whole truth: hosts, suffixes and networks, with a port or without."""
    rules = read_rules(DEFAULT_DENY, (allow,), ())

    assert (refused(rules, address, port, host=host) == "") is passes


@pytest.mark.parametrize(
    "text", ["", "a b", "host:0", "host:70000", "10.0.0.0/33", "10.0.0.1/8", "[::1", "http://x", "a/b"]
)
def test_entries_that_make_no_sense(text: str) -> None:
    """An entry that is neither host, suffix nor network is refused."""
    with pytest.raises(ValueError):
        read_allowed(text)
