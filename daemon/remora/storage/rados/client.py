"""Makes a connected client, or an error in an operator's words. Every function here may block."""

from __future__ import annotations

import errno
import math
import os

from remora.config.workers import RadosSettings
from remora.model.errors import StoreError, StoreMisconfigured, StoreUnavailable
from remora.storage.librados import Cluster, LibradosError
from remora.storage.rados.keyring import check_keyring, unusable_key


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
