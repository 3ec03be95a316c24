"""Sections about stores: which holds the queues, where an embedded one keeps its files, how a cluster is reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from remora.config.checked import Checked
from remora.config.units import Bytes, Seconds, Unit, show_size
from remora.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings(Checked):
    """Which store holds the queues."""

    kind: Literal["sqlite", "rados"] = "sqlite"


_LEAST_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings(Checked):
    """Where the embedded store keeps its files, and how much a queue and all files may hold.

    `directories` are all of a store that is made, the first one first, or empty where `directory` is the only one; and
    `files` are those of each. Later the store itself tells. `if_missing` says whether a store is
    made where there is none, or waited for: its disk may not be mounted.
    """

    directory: str = "/var/lib/remora"
    directories: tuple[str, ...] = ()
    if_missing: Literal["make", "wait"] = "make"
    files: Annotated[int, Unit("count", 1, 256)] = 16
    queue_bytes: Bytes = 128_000_000
    directory_bytes: Annotated[int, Unit("size", 0, 1 << 50)] = 0

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if not self.directory.startswith("/"):
            yield ConfigError("sqlite.directory", f'expected an absolute path, not "{self.directory}"')
        for each in self.directories:
            if not each.startswith("/"):
                yield ConfigError("sqlite.directories", f'expected absolute paths, not "{each}"')
        if len(set(self.directories)) < len(self.directories):
            yield ConfigError("sqlite.directories", "each directory is named once")
        if self.directories and self.directory not in ("/var/lib/remora", self.directories[0]):
            problem = "the first of them is the store's first directory: leave sqlite.directory out"
            yield ConfigError("sqlite.directories", problem, binds=("sqlite.directory",))
        if 0 < self.directory_bytes < self.files * _LEAST_FILE_BYTES:
            least = show_size(self.files * _LEAST_FILE_BYTES)
            problem = f"{self.files} files need {least} at least; 0B is for no bound"
            yield ConfigError("sqlite.directory_bytes", problem, binds=("sqlite.files",))

    @property
    def first(self) -> str:
        """The directory that has what concerns the whole store."""
        return self.directories[0] if self.directories else self.directory

    @property
    def places(self) -> Sequence[str]:
        """All directories that the settings name."""
        return self.directories or (self.directory,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadosSettings(Checked):
    """How to reach the cluster, and where a zone keeps its queues and topics.

    Empty names are looked up: in ceph.conf, then from the zone by `radosgw-admin zone get`, then the defaults
    of a zone named `default`. Pools are written as radosgw does, `pool` or `pool:namespace`.
    """

    conf: str = "/etc/ceph/ceph.conf"
    name: str = "client.remora"
    keyring: str = ""
    cluster: str = "ceph"
    zone: str = ""
    pool: str = ""
    namespace: str = ""
    log_pool: str = ""
    topics_pool: str = ""
    op_timeout_s: Seconds = 10.0
    mount_timeout_s: Seconds = 10.0
    heal: Literal["off", "full", "calm"] = "full"

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if self.namespace and not self.pool:
            yield ConfigError(
                "rados.namespace", "a namespace needs its pool: set rados.pool too", binds=("rados.pool",)
            )
        kind, dot, name = self.name.partition(".")
        if not (kind and dot and name):
            yield ConfigError("rados.name", f'expected a type and an id such as "client.remora", not "{self.name}"')
