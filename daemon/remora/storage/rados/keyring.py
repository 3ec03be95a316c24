"""Finds reasons why a client can never authenticate, from files alone."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from pathlib import Path

from remora.model.errors import StoreMisconfigured
from remora.storage.librados import Cluster

_AES = 1  # the only key type that every release knows; Tentacle's new clusters make others

_NEW_KEY = (
    "the key of {user} in {keyring} is of a type that this librados cannot use (a cluster installed with Ceph 20 or "
    "later makes aes256k keys). Run remora with librados 20.2 or newer, or have the cluster accept an aes key: "
    "`ceph mon set auth_allowed_ciphers aes,aes256k`, `ceph mon set auth_service_cipher aes`, `ceph config set mon "
    "mon_auth_allow_insecure_key true`, then `ceph auth get-or-create {user} ... --key-type aes`"
)


def check_keyring(cluster: Cluster, user: str) -> None:
    """Raise StoreMisconfigured when the configured keyring is missing, unreadable or has no key for this user."""
    if not _needs_keyring(cluster):
        return
    keyring = _existing_keyring(cluster, user)
    try:
        text = keyring.read_text(errors="replace")
    except OSError as exc:
        raise StoreMisconfigured(f"keyring {keyring} of {user} cannot be read: {exc.strerror}") from exc
    key = _key(text, user)
    if key is None:
        raise StoreMisconfigured(f"keyring {keyring} has no key for {user}")
    if _key_type(key) is None:
        raise StoreMisconfigured(f"the key of {user} in keyring {keyring} is no cephx key")


def unusable_key(cluster: Cluster, user: str) -> str | None:
    """The reason why librados refused to connect before it asked a monitor: a key of a newer type. None for others."""
    if not _needs_keyring(cluster):
        return None
    keyring = _existing_keyring(cluster, user)
    key = _key(keyring.read_text(errors="replace"), user)
    if key is None or _key_type(key) == _AES:
        return None
    return _NEW_KEY.format(user=user, keyring=keyring)


def _needs_keyring(cluster: Cluster) -> bool:
    methods = cluster.option("auth_supported") or cluster.option("auth_client_required")
    return "cephx" in methods and not cluster.option("key") and not cluster.option("keyfile")


def _existing_keyring(cluster: Cluster, user: str) -> Path:
    candidates = [Path(name) for name in re.split(r"[,;\s]+", cluster.option("keyring")) if name]
    for path in candidates:
        try:
            if path.exists():
                return path
        except PermissionError as exc:
            raise StoreMisconfigured(f"keyring {path} of {user} cannot be read: {exc.strerror}") from exc
    raise StoreMisconfigured(f"no keyring for {user}: there is no {' or '.join(map(str, candidates))}")


def _key(text: str, user: str) -> str | None:
    section = None
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        name, _, value = line.partition("=")
        if section == user and name.strip() == "key":
            return value.strip().strip('"')
    return None


def _key_type(key: str) -> int | None:
    """The type that a base64 key begins with; None when it is no key."""
    try:
        raw = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return None
    number: int | None = struct.unpack_from("<H", raw)[0] if len(raw) > 12 else None
    return number
