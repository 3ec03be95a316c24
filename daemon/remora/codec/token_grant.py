"""OAuth 2's client-credentials grant (RFC 6749, 4.4) and SASL's OAUTHBEARER (RFC 7628) as bytes. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

from remora.codec.json_pieces import NotJson, Repeating, parse

MECHANISM = "OAUTHBEARER"

FORM = "application/x-www-form-urlencoded"

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,32768}=*")
_CODE = re.compile(r"[a-z_]{1,40}")
MOST_LIFE_S = 10 * 365 * 86400


class GrantRefused(Exception):
    """The answer grants no token; the text says why, and repeats nothing but an error's code."""


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """A token, and how many seconds it lasts from its answer on."""

    token: str = field(repr=False)
    lasts_s: float


def grant_request(client_id: str, client_secret: str, scope: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request for a token. Who asks stands in a header, which each server must take (RFC 6749,
    2.3.1)."""
    asked = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
    headers = {
        "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
        "Content-Type": FORM,
        "Accept": "application/json",
    }
    return headers, urlencode(asked).encode()


def read_grant(body: bytes) -> TokenGrant:
    """What an answer of status 200 grants. Raises GrantRefused."""
    found = _object(body)
    if found is None:
        raise GrantRefused("its answer is no JSON object")
    if isinstance(found, Repeating):
        raise GrantRefused("its answer has a name that stands twice")
    kind, token, lasts = found.get("token_type"), found.get("access_token"), found.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise GrantRefused("its answer has no access_token that a header could carry")
    if kind is not None and str(kind).lower() != "bearer":
        raise GrantRefused("its answer has a token of another type than Bearer")
    seconds = _seconds(lasts)
    if seconds is None:
        raise GrantRefused("its answer does not say in expires_in how many seconds the token lasts")
    return TokenGrant(token, seconds)


def _seconds(lasts: object) -> float | None:
    """A number from 1 on; some servers write it in quotes."""
    if isinstance(lasts, str) and re.fullmatch(r"[0-9]{1,12}", lasts):
        lasts = int(lasts)
    if isinstance(lasts, bool) or not isinstance(lasts, int | float) or not lasts >= 1:
        return None
    return float(min(lasts, MOST_LIFE_S))


def error_code(body: bytes, member: str = "error") -> str:
    """The code of an error, such as invalid_client; empty where there is none that can be shown.

    A token server has it in `error` (RFC 6749, 5.2), a broker's challenge in `status` (RFC 7628, 3.2.2).
    """
    code = (_object(body) or {}).get(member)
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _object(text: bytes) -> dict[str, object] | None:
    try:
        found = parse(text)
    except NotJson:
        return None
    return found if isinstance(found, dict) else None
