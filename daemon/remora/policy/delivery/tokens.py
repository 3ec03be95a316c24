"""Tokens: which URLs this host asks for them, when they are asked for anew, and what rests on one renewed. Pure.

A topic's author writes the URL, and this host, inside the operator's network, asks for it. So a URL is read by one
strict form, which leaves two readers nothing to differ in: no user, no query, no fragment, no percent sign, no
backslash, no path that another reader would shorten. What the form does not have is refused, whatever it would mean.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from remora.policy.delivery.retry import Backoff

OPTION = "kafka.token_endpoints"

_FORM = re.compile(
    r"https://(?P<host>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<path>(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?)(?P<any>\*?)"
)

RENEWED_AT = 0.8
"""Of a token's life: what is left is for a server that is away."""

REFRESHED_AT = 0.85
"""Of a session's life, as Kafka's own client has it."""

LEAST_SESSION_S = 1.0
"""A broker refuses to begin a session anew that is younger."""

PAUSES = Backoff(1.0, 60.0)
"""Between requests for a token that failed, one after the other."""


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """Where a token is asked for, or which places may be asked: with `any_below` all paths that begin with this one."""

    host: str
    port: int
    path: str
    any_below: bool = False

    def __str__(self) -> str:
        """The URL in one form."""
        return f"https://{self.authority}{self.path}{'*' if self.any_below else ''}"

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 443 else f"{host}:{self.port}"

    def has(self, other: TokenPlace) -> bool:
        """Whether another place is one of these."""
        is_there = (self.host, self.port) == (other.host, other.port)
        return is_there and (other.path.startswith(self.path) if self.any_below else other.path == self.path)


def parse_place(text: str) -> TokenPlace:
    """A URL, or a pattern with `*` behind its last `/`. Raises ValueError, which repeats nothing of the text."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("expected https://HOST[:PORT]/PATH in lower case, without user, query, fragment or escapes")
    host, port, path, star = found.group("host", "port", "path", "any")
    if star and not path.endswith("/"):
        raise ValueError("a * stands behind the last / only")
    if int(port or 443) > 65535:
        raise ValueError("the port is not a number from 1 to 65535")
    return TokenPlace(_host(host), int(port or 443), path or "/", bool(star))


def _host(text: str) -> str:
    """A name, or an address in its one form: 0x7f.1 and 2130706433 are addresses for some readers."""
    if text.startswith("["):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            raise ValueError("what stands in brackets is not an IPv6 address") from None
    labels = text.split(".")
    if "" in labels:
        raise ValueError("a host's name has no two dots in a row")
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise ValueError("the host is a number, and no IPv4 address as people write it") from None
    return text


def why_not(url: str, allowed: Iterable[TokenPlace]) -> str:
    """Why no token may be asked for at a URL; empty where it may."""
    try:
        place = parse_place(url)
    except ValueError as exc:
        return str(exc)
    if place.any_below:
        return "a URL has no *"
    if not any(each.has(place) for each in allowed):
        return f"{OPTION} does not name this URL"
    return ""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Of one token, on one clock."""

    renew_at: float
    ends_at: float

    @classmethod
    def of(cls, asked_at: float, lasts_s: float) -> TokenTimes:
        """Counted from before the request: a slow answer only makes it shorter."""
        return cls(asked_at + RENEWED_AT * lasts_s, asked_at + lasts_s)


def renewal_s(session_s: float) -> float | None:
    """Seconds until a session is renewed; None where it ends by itself, since there is none or it is too short."""
    after_s = max(REFRESHED_AT * session_s, LEAST_SESSION_S)
    return after_s if after_s < session_s else None
