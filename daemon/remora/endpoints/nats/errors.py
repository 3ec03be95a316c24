"""What servers say against a message, a question or a connection, sorted by what helps; decided here and nowhere else.

The classes are those of `remora.model.errors`; a code that stands in no list is transient, so that it is tried again
rather than given up. No text of the server's is quoted: it names users and subjects.
"""

from __future__ import annotations

import re
from typing import Any

from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.policy.ownership.quarantine import ANSWERED

TOO_LARGE = frozenset({10054, 10097})
"""The stream takes no message of so many bytes, or no headers."""

STOPS: dict[int, str] = {
    10035: "JetStream is not enabled for this account",
    10039: "JetStream is not enabled for this account",
    10059: "there is no such stream",
    10060: "another stream takes the subject",
    10076: "JetStream is not enabled on this server",
    10109: "the stream is sealed and takes no messages",
}
"""Why nothing can be stored until an operator acts."""

FULL: dict[int, str] = {
    10002: "the account has no room for more",
    10023: "the server has no room for more",
    10028: "the server has no memory for more",
    10047: "the server's disk has no room for more",
    10077: "the stream did not store the message; it may be full",
}
"""Why a message was not stored; there may be room later."""


def why_refused(error: Any, what: str) -> EndpointError:
    """The error for an answer with one; `what` names the stream. It is about this stream alone."""
    code = error.get("err_code", 0) if isinstance(error, dict) else 0
    if code in TOO_LARGE:
        return EntryRefused(f"{what}: the stream takes no message of this size (error {code})")
    if code in STOPS:
        return EndpointMisconfigured(f"{what}: {STOPS[code]} (error {code})")
    return EndpointUnavailable(f"{what}: {FULL.get(code, 'the server did not do it')} (error {code})", ANSWERED)


NOBODY = "no stream takes the subject, or JetStream is not enabled"

LOGIN: tuple[tuple[str, str], ...] = (
    ("authorization violation", "the server refused the log-in"),
    ("user authentication", "the server does not accept the credentials any longer: they expired or were revoked"),
    ("account authentication", "the server does not accept the account any longer: it expired"),
    ("authentication timeout", ""),
    ("secure connection", "the server asks for TLS, but the endpoint is nats and not nats+tls"),
)
"""What ends a connection, by how it begins, where an operator has to act; without words it passes by itself."""

_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "?((?:[^"\\]|\\.)*)', re.I)


def why_ended(text: str, name: str) -> EndpointError:
    """The error for what a server says before it ends a connection."""
    said = text.lower()
    for begins, meant in LOGIN:
        if said.startswith(begins) and meant:
            return EndpointMisconfigured(f"{name}: {meant}")
    known = re.fullmatch(r"[a-z' -]{1,60}", said)  # no subject, no user
    return EndpointUnavailable(f"{name}: the server ended the connection" + (f": {said}" if known else ""))


def violation(text: str) -> tuple[str, str] | None:
    """What a user may not do (publish or subscription), and at which subject; None for another text."""
    found = _VIOLATION.match(text)
    if found is None:
        return None
    return found[1].lower(), re.sub(r"\\(.)", r"\1", found[2])  # as Go quotes it
