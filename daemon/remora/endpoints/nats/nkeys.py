"""Log-ins by key, from an nkey's seed or a credentials file with a user's token and seed. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field

from remora.model.errors import EndpointMisconfigured

SEED, USER = 18 << 3, 20 << 3
"""The first letters of an encoded key, S and U."""

_TOKEN = re.compile(rb"-----BEGIN NATS USER JWT-----\s*([A-Za-z0-9_.=-]+)\s*-+END NATS USER JWT-+")
_SEED = re.compile(rb"-----BEGIN USER NKEY SEED-----\s*([A-Z2-7]+)\s*-+END USER NKEY SEED-+")
_BARE_SEED = re.compile(rb"^\s*(SU[A-Z2-7]{56})\s*$", re.M)


@dataclass(frozen=True, slots=True)
class UserKey:
    """What shows who a client is: an ed25519 key, and the token that an account gave out for it, if one did."""

    public: str
    seed: bytes = field(repr=False)
    token: str = field(default="", repr=False)

    def sign(self, nonce: bytes) -> str:
        """The signature of a server's nonce, as CONNECT has it."""
        return base64.urlsafe_b64encode(_private(self.seed).sign(nonce)).rstrip(b"=").decode()


def _private(seed: bytes):  # type: ignore[no-untyped-def]  # of cryptography, which is an extra
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise EndpointMisconfigured("log-ins by key need the package cryptography: install remorad[nkeys]") from None
    return Ed25519PrivateKey.from_private_bytes(seed)


def read_key(content: bytes, argument: str) -> UserKey:
    """The key in a credentials file, or in a file with a seed alone. Raises EndpointMisconfigured."""
    token, seed = _TOKEN.search(content), _SEED.search(content) or _BARE_SEED.search(content)
    if b"BEGIN NATS USER JWT" in content and not token:
        raise EndpointMisconfigured(f"{argument}: the file's token is damaged")
    if not seed:
        raise EndpointMisconfigured(f"{argument}: the file has no seed of a user's nkey")
    raw = _decoded(seed[1], argument)
    private = _private(raw)
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # `_private` has found it

    from_seed = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return UserKey(encode_key(bytes([USER]), from_seed), raw, token[1].decode() if token else "")


def _decoded(text: bytes, argument: str) -> bytes:
    try:
        found = base64.b32decode(text + b"=" * (-len(text) % 8))
    except ValueError:
        found = b""
    kind = (found[0] & 0xF8, (found[0] & 7) << 5 | found[1] >> 3) if len(found) == 36 else (0, 0)
    if kind != (SEED, USER) or _crc16(found[:-2]) != int.from_bytes(found[-2:], "little"):
        raise EndpointMisconfigured(f"{argument}: the file's seed is damaged, or not a user's")
    return found[2:-2]


def encode_key(prefix: bytes, raw: bytes) -> str:
    """A key as NATS writes it: prefix, key and checksum in base 32."""
    whole = prefix + raw
    return base64.b32encode(whole + _crc16(whole).to_bytes(2, "little")).rstrip(b"=").decode()


def _crc16(data: bytes) -> int:
    """CRC-16/XMODEM."""
    crc = 0
    for each in data:
        crc ^= each << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc
