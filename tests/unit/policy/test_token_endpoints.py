"""Which URLs a topic's author may have this host ask for tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.delivery.tokens import TokenPlace, parse_place, why_not

ALLOWED = [
    parse_place(each)
    for each in (
        "https://sso.example.org/realms/remora/*", "https://sso.example.org:8443/token", "https://192.0.2.7/token",
        "https://[2001:db8::1]/token",
    )
]  # fmt: skip

REACHED = [
    "https://sso.example.org/realms/remora/protocol/openid-connect/token",
    "https://sso.example.org:443/realms/remora/token",
    "https://sso.example.org:8443/token",
    "https://192.0.2.7/token",
    "https://[2001:db8:0:0::1]/token",
]

NOT_REACHED = [
    # another scheme
    "http://sso.example.org/realms/remora/token", "HTTPS://sso.example.org/realms/remora/token",
    "file:///etc/remora/remora.toml", "ftp://sso.example.org/realms/remora/token",
    "//sso.example.org/realms/remora/token",
    "https:/sso.example.org/realms/remora/token", "https:sso.example.org/realms/remora/token", "",
    # another host behind a user, or one that looks like it
    "https://sso.example.org@evil.example/realms/remora/token",
    "https://sso.example.org:x@evil.example/realms/remora/token",
    "https://evil.example#@sso.example.org/realms/remora/token",
    "https://evil.example?@sso.example.org/realms/remora/token",
    "https://evil.example\\@sso.example.org/realms/remora/token", "https://user@sso.example.org/realms/remora/token",
    "https://sso.example.org.evil.example/realms/remora/token", "https://evil-sso.example.org/realms/remora/token",
    "https://sso.example.org./realms/remora/token", "https://sso..example.org/realms/remora/token",
    "https://sso.example.or\u212a/realms/remora/token", "https://sso\u3002example.org/realms/remora/token",
    "https://SSO.example.org/realms/remora/token", "https://sso.example.org%00.evil.example/realms/remora/token",
    # another port
    "https://sso.example.org:444/realms/remora/token", "https://sso.example.org:8443/realms/remora/token",
    "https://sso.example.org:0443/realms/remora/token", "https://sso.example.org:/realms/remora/token",
    "https://sso.example.org:99999/realms/remora/token", "https://sso.example.org:443:80/realms/remora/token",
    # another path, as some reader would have it
    "https://sso.example.org/realms/remora", "https://sso.example.org/realms/remorae/token",
    "https://sso.example.org/realms/remora/../admin/token", "https://sso.example.org/realms/remora/./token",
    "https://sso.example.org/realms/remora/%2e%2e/admin/token", "https://sso.example.org/realms/remora/..%2fadmin",
    "https://sso.example.org/realms/remora/.%2e/admin", "https://sso.example.org/realms//remora/token",
    "https://sso.example.org/realms/remora/\\..\\admin", "https://sso.example.org/realms/remora/;/../admin",
    "https://sso.example.org/realms/remora/token?to=1", "https://sso.example.org/realms/remora/token#x",
    "https://sso.example.org/realms/remora/*", "https://sso.example.org:8443/token/more",
    # addresses in other forms, and of the host itself
    "https://127.0.0.1/token", "https://127.1/token", "https://2130706433/token", "https://0x7f000001/token",
    "https://0300.0.2.7/token", "https://192.0.2.07/token", "https://169.254.169.254/latest/meta-data",
    "https://[::1]/token", "https://[::ffff:192.0.2.7]/token", "https://[2001:db8::1%25eth0]/token",
    "https://[2001:db8::2]/token", "https://localhost/token",
    # what ends or splits a line
    "https://sso.example.org/realms/remora/token\r\nHost: evil.example", "https://sso.example.org/realms/remora/to\tken",
    " https://sso.example.org/realms/remora/token", "https://sso.example.org/realms/remora/token\n",
]  # fmt: skip


@pytest.mark.parametrize("url", REACHED)
def test_what_the_operator_names_is_reached(url: str) -> None:
    """A URL that one of the patterns names may be asked for, also where the port or address is written otherwise."""
    assert why_not(url, ALLOWED) == ""


@pytest.mark.parametrize("url", NOT_REACHED)
def test_what_only_looks_like_it_is_not(url: str) -> None:
    """Whatever a reader of URLs may make of it, it is refused, and nothing of it is repeated."""
    why = why_not(url, ALLOWED)

    assert why != ""
    assert "evil" not in why


@pytest.mark.parametrize("url", [*REACHED, *NOT_REACHED])
def test_nothing_is_reached_by_default(url: str) -> None:
    """Without a pattern no URL may be asked for."""
    assert why_not(url, []) != ""


@pytest.mark.parametrize(
    "pattern",
    ["https://*/token", "https://sso.example.org/re*", "https://sso.example.org*", "https://*.example.org/token", "*"],
)
def test_a_star_stands_behind_a_path_only(pattern: str) -> None:
    """A pattern names one host; a star anywhere else is refused."""
    with pytest.raises(ValueError, match=r"expected|behind the last"):
        parse_place(pattern)


@given(st.text(st.sampled_from("htps:/.@?#%\\[]*ab1\u212a \n"), max_size=40))
def test_what_is_reached_is_what_was_named(tail: str) -> None:
    """Whatever follows a pattern's beginning, what may be asked for has the pattern's host and port, and its path in
    front."""
    url = "https://a.b/p/" + tail
    if why_not(url, [parse_place("https://a.b/p/*")]) == "":
        place = parse_place(url)
        assert (place.host, place.port) == ("a.b", 443)
        assert place.path.startswith("/p/")
        assert ".." not in place.path.split("/")
        assert isinstance(place, TokenPlace)
