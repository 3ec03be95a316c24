"""Makes a connected client, or an error in an operator's words; finds in files why a client can never authenticate.

Every function that makes a client may block.
"""

from __future__ import annotations

import base64
import binascii
import errno
import math
import os
import re
import struct
from pathlib import Path

from remora.config.stores import RadosSettings
from remora.model.errors import StoreError, StoreMisconfigured, StoreUnavailable
from remora.storage.librados import Cluster, LibradosError

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


def check_client(settings: RadosSettings) -> None:
    """Raise StoreMisconfigured for a configuration that can never work; does not connect to the cluster."""
    cluster = _configured(settings)
    try:
        check_keyring(cluster, settings.name)
    finally:
        cluster.shutdown()


def connected_client(settings: RadosSettings) -> Cluster:
    """A client that is connected to the cluster. Raises StoreMisconfigured and StoreUnavailable."""
    cluster = _configured(settings)
    try:
        cluster.connect()
    except LibradosError as exc:
        problem = _connect_problem(exc, cluster, settings)
        cluster.shutdown()
        raise problem from exc
    return cluster


def _configured(settings: RadosSettings) -> Cluster:
    try:
        cluster = Cluster(settings.cluster, settings.name)
    except OSError as exc:
        raise StoreMisconfigured(f"librados cannot be loaded (Debian: apt install librados2): {exc}") from exc
    except LibradosError as exc:
        raise StoreMisconfigured(f"librados refuses the client name {settings.name}: {os.strerror(exc.code)}") from exc
    try:
        _read_conf(cluster, settings.conf)
        cluster.set_options(_options(settings))
    except LibradosError as exc:
        raise StoreMisconfigured(f"{settings.conf or 'ceph.conf'}: {exc}") from exc
    return cluster


def _read_conf(cluster: Cluster, path: str) -> None:
    try:
        cluster.read_conf(path or None)
    except LibradosError as exc:
        name = path or "ceph.conf (in none of Ceph's usual places)"
        raise StoreMisconfigured(f"the configuration file {name} cannot be used: {os.strerror(exc.code)}") from exc


def _options(settings: RadosSettings) -> dict[str, str]:
    # Librados takes whole seconds only, and 0 would be no time-out at all.
    op_timeout, mount_timeout = (str(math.ceil(s)) for s in (settings.op_timeout_s, settings.mount_timeout_s))
    # A client learns that an OSD has come back at another address by asking for a new map, and it asks when it finds
    # an operation that is this old. The defaults (10 s, checked every 5 s) come after our time-out: each operation
    # would time out first, and a client without other traffic would keep the old map for ever.
    laggy_s = f"{settings.op_timeout_s / 4:g}"
    options = {
        "objecter_timeout": laggy_s,
        "objecter_tick_interval": laggy_s,
        "rados_osd_op_timeout": op_timeout,
        "rados_mon_op_timeout": mount_timeout,
        "client_mount_timeout": mount_timeout,
        # Beyond these limits librados blocks the submitting thread, which is the event loop.
        "objecter_inflight_ops": "1000000",
        "objecter_inflight_op_bytes": str(16 << 30),
    }
    if settings.keyring:
        options["keyring"] = settings.keyring
    return options


def _connect_problem(exc: LibradosError, cluster: Cluster, settings: RadosSettings) -> StoreError:
    user = settings.name
    if exc.code == errno.ETIMEDOUT:
        return StoreUnavailable(f"no monitor answered within {settings.mount_timeout_s:g} s")
    try:
        new_key = unusable_key(cluster, user)
    except StoreMisconfigured as problem:
        return problem
    except OSError as problem:
        return StoreMisconfigured(f"the keyring of {user} cannot be read: {problem}")
    if new_key is not None:
        return StoreMisconfigured(new_key)
    if exc.code in (errno.EACCES, errno.EPERM):
        return StoreMisconfigured(f"the cluster refuses {user}: it does not know that user, or the key is another one")
    if not (cluster.option("mon_host") or exc.code != errno.ENOENT):
        return StoreMisconfigured(f"{settings.conf or 'ceph.conf'} names no monitor: mon_host is missing")
    return StoreUnavailable(f"connecting to the cluster failed: {os.strerror(exc.code)}")
