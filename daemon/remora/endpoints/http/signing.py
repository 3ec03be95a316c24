"""Signatures as Standard Webhooks has them (standardwebhooks.com, version 1). Pure.

Its Python library was weighed: it signs with one secret, and these are twenty lines of hmac.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 24, 64


def read_secret(text: str) -> bytes:
    """The bytes of a secret, `whsec_` and base64. ValueError, without the secret, where it is none."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a secret is whsec_ and base64") from None
    if not LEAST_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        raise ValueError(f"a secret has {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes, not {len(secret)}")
    return secret


def message_id(shard: bytes, position: bytes) -> str:
    """The id of a message, the same at each try. Queues are called `t.1`, and the id must hold no dot: so a hash."""
    return "msg_" + hashlib.sha256(shard + b"\0" + position).hexdigest()[:32]


def signature(secrets: Sequence[bytes], message: str, timestamp: int, body: bytes) -> str:
    """The webhook-signature header: one signature for each secret, so that receivers can change theirs in between."""
    signed = b"%b.%d." % (message.encode("ascii"), timestamp) + body
    return " ".join(
        "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode("ascii") for secret in secrets
    )
