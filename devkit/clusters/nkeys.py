"""NATS's keys and tokens, made for tests. Shares no code with what reads them in the daemon."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KINDS = {"O": 14 << 3, "A": 0, "U": 20 << 3}
SEED = 18 << 3


def _encoded(whole: bytes) -> str:
    crc = binascii.crc_hqx(whole, 0)
    return base64.b32encode(whole + crc.to_bytes(2, "little")).decode().rstrip("=")


def public_key(key: Ed25519PrivateKey, kind: str) -> str:
    """As configurations and tokens name it; `kind` is O, A or U."""
    return _encoded(bytes([KINDS[kind]]) + key.public_key().public_bytes_raw())


def seed_of(key: Ed25519PrivateKey) -> str:
    """A user's seed."""
    kind = KINDS["U"]
    return _encoded(bytes([SEED | kind >> 5, (kind & 31) << 3]) + key.private_bytes_raw())


def token(subject: str, issuer: Ed25519PrivateKey, kind: str, claims: dict[str, Any], name: str) -> str:
    """A token that the issuer, of this kind, gives out."""
    body = {
        "jti": hashlib.sha256(subject.encode()).hexdigest(), "iat": int(time.time()), "iss": public_key(issuer, kind),
        "name": name, "sub": subject, "nats": {"version": 2, **claims},
    }  # fmt: skip
    parts = [_text(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
    return ".".join([*parts, _text(issuer.sign(".".join(parts).encode()))])


def credentials(user_token: str, key: Ed25519PrivateKey) -> str:
    """A credentials file, as nsc writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed_of(key)}\n------END USER NKEY SEED------\n"
    )


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
