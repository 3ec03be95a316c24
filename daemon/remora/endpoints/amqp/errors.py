"""What brokers say when they close a channel or a connection, sorted by what helps; decided here and nowhere else.

The classes are those of `remora.model.errors`; a code that stands in no list is transient, so that it is tried again
rather than given up. No text of the broker's is quoted: it names users, and may repeat what was sent.
"""

from __future__ import annotations

import re

from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.policy.ownership.quarantine import ANSWERED

PRECONDITION_FAILED = 406
NO_ROUTE = 312

CHANNEL: dict[int, str] = {
    403: "the user may not write to this exchange, or it is an internal one",
    404: "there is no such exchange",
    406: "the broker does not take messages like this one",
    530: "the broker does not allow it",
    540: "the broker does not know a method that remora needs",
}
"""Why a channel was closed, where an operator has to act."""

CONNECTION: dict[int, str] = {
    402: "the virtual host is not a name that the broker knows",
    403: "the broker refused user and password",
    503: "the broker does not know a method that remora needs",
    530: "there is no such virtual host, the user may not use it, or a limit of connections is reached",
    540: "the broker does not know a method that remora needs",
}
"""Why a connection was closed, where an operator has to act."""

TRANSIENT: dict[int, str] = {
    311: "the message is larger than the broker takes now",
    320: "an operator closed the connection, or the broker stops",
    405: "another connection has locked it",
    501: "the broker could not read a frame",
    502: "the broker could not read a frame",
    504: "the broker does not know the channel",
    505: "the broker did not expect a frame",
    506: "the broker has too few resources",
    541: "an error inside the broker",
}

_TOO_LARGE = re.compile(r"message size (\d{1,18}) (?:is )?larger than (?:configured )?max size (\d{1,18})")


def why_closed(code: int, what: str, *, channel: bool) -> EndpointError:
    """The error for a reply code; `what` names the topic or the broker.

    Each topic has a channel of its own, so what closed that is about the topic alone.
    """
    stops = (CHANNEL if channel else CONNECTION).get(code)
    if stops is not None:
        return EndpointMisconfigured(f"{what}: {stops} (reply {code})")
    text = f"{what}: {TRANSIENT.get(code, 'the broker closed it')} (reply {code})"
    return EndpointUnavailable(text, ANSWERED if channel else "unavailable")


def too_large(code: int, text: str) -> tuple[int, int] | None:
    """How many bytes a message has that the broker does not take, and how many it takes; None for other reasons."""
    found = _TOO_LARGE.search(text) if code == PRECONDITION_FAILED else None
    return (int(found[1]), int(found[2])) if found else None
