"""The client-credentials grant and OAUTHBEARER as bytes."""

from __future__ import annotations

import base64
import json

import pytest

from remora.codec.token_grant import (
    GrantRefused,
    error_code,
    grant_request,
    read_grant,
)


def test_a_request() -> None:
    """Client and secret are shown as RFC 6749 has them, so that a colon in one of them divides nothing."""
    headers, body = grant_request("re:mora", "a b&ö", "kafka openid")
    shown = headers["Authorization"].removeprefix("Basic ")

    assert base64.b64decode(shown) == b"re%3Amora:a+b%26%C3%B6"
    assert grant_request("a", "b", "")[1] == b"grant_type=client_credentials"
    assert body == b"grant_type=client_credentials&scope=kafka+openid"


@pytest.mark.parametrize("lasts", [300, 300.0, "300"])
def test_a_grant(lasts: object) -> None:
    """A token has a life, which some servers write in quotes."""
    granted = read_grant(json.dumps({"access_token": "a.b-c", "token_type": "bearer", "expires_in": lasts}).encode())

    assert (granted.token, granted.lasts_s) == ("a.b-c", 300.0)
    assert "a.b-c" not in repr(granted)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no JSON object"),
        (b"<html>", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"expires_in": 1}', "no access_token"),
        (b'{"access_token": 1, "expires_in": 1}', "no access_token"),
        (b'{"access_token": "", "expires_in": 1}', "no access_token"),
        (b'{"access_token": "a\\r\\nb", "expires_in": 1}', "no access_token"),
        (b'{"access_token": "a\\u0001auth=Bearer b", "expires_in": 1}', "no access_token"),
        (b'{"access_token": "a"}', "expires_in"),
        (b'{"access_token": "a", "expires_in": 0}', "expires_in"),
        (b'{"access_token": "a", "expires_in": -5}', "expires_in"),
        (b'{"access_token": "a", "expires_in": true}', "expires_in"),
        (b'{"access_token": "a", "expires_in": NaN}', "no JSON object"),
        (b'{"access_token": "a", "expires_in": "soon"}', "expires_in"),
        (b'{"access_token": "a", "token_type": "mac", "expires_in": 1}', "another type"),
        (b'{"access_token": "a", "access_token": "b", "expires_in": 1}', "stands twice"),
    ],
)
def test_no_grant(body: bytes, why: str) -> None:
    """What grants no token that can be shown and renewed is refused, and nothing of it is repeated."""
    with pytest.raises(GrantRefused, match=why) as caught:
        read_grant(body)

    assert "html" not in str(caught.value)


def test_codes() -> None:
    """Of an error its code is shown where it has the form of one, and nothing else."""
    assert error_code(b'{"error": "invalid_client", "error_description": "x"}') == "invalid_client"
    assert error_code(b'{"error": "<script>"}') == error_code(b"no") == error_code(b'{"error": 1}') == ""
    assert error_code(b'{"status": "invalid_token"}', "status") == "invalid_token"
