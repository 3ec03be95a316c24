"""Credentials that a topic names and the operator's files hold.

Never a path in a topic's argument: an S3 user who may name a file beside an endpoint of his own has read it. So a
credential also says which hosts may get it.

Signatures are those of Standard Webhooks (standardwebhooks.com, version 1). Its Python library was weighed: it signs
with one secret, and this is twenty lines of hmac.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field

from remora.model.errors import EndpointMisconfigured

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


MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Credential:
    """A bearer token, or secrets to sign with, or both. `digest` stands for all of it in comparisons."""

    digest: str
    hosts: tuple[str, ...] = ()
    bearer: str = field(default="", repr=False, compare=False)
    secrets: tuple[bytes, ...] = field(default=(), repr=False, compare=False)


def read_credential(directory: str, name: str, host: str) -> Credential:
    """The credential of this name for this host; blocks on the file system. Raises EndpointMisconfigured."""
    what = f"remora-credential {name}"
    if not directory:
        raise EndpointMisconfigured(f"{what}: credentials.directory is not set")
    try:
        raw = _read(os.path.join(directory, name))
    except OSError:
        raise EndpointMisconfigured(f"{what}: missing or not readable in credentials.directory") from None
    try:
        found = parse_credential(raw)
    except ValueError as exc:
        raise EndpointMisconfigured(f"{what}: {exc}") from None
    if not any(_matches(each, host) for each in found.hosts):
        raise EndpointMisconfigured(f"{what}: the endpoint's host is not among its hosts")
    return found


def parse_credential(raw: bytes) -> Credential:
    """What a credential's file says. ValueError says what is wrong with it, and repeats nothing of it. Pure."""
    try:
        document = tomllib.loads(raw.decode())
    except (ValueError, RecursionError):  # no UTF-8, no TOML, or a number of very many digits
        raise ValueError("the file is not TOML") from None
    if unknown := document.keys() - {"hosts", "bearer", "secrets"}:
        raise ValueError(f"the file knows hosts, bearer and secrets, and has {len(unknown)} others")
    hosts, secrets = _texts(document, "hosts"), _texts(document, "secrets")
    bearer = document.get("bearer", "")
    if not hosts:
        raise ValueError("hosts names no host that may get it")
    if not isinstance(bearer, str) or not all("!" <= each <= "~" for each in bearer):
        raise ValueError("bearer is no text of printable ASCII without spaces")
    if not bearer and not secrets:
        raise ValueError("the file has neither bearer nor secrets")
    return Credential(hashlib.sha256(raw).hexdigest(), hosts, bearer, tuple(map(read_secret, secrets)))


def _texts(document: dict[str, object], name: str) -> tuple[str, ...]:
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise ValueError(f"{name} is no list of texts")
    return tuple(found)


def _matches(allowed: str, host: str) -> bool:
    allowed = allowed.lower()
    return host.endswith(allowed) if allowed.startswith(".") else host == allowed


def _read(path: str) -> bytes:
    # Neither a pipe nor a device holds this up: each opens at once, and is not read.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PermissionError
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise PermissionError
    return raw
