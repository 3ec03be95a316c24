"""The two kinds of store under a chaos run of sequencers: what a configuration says of them, what hurts them, and what
they hold, read with SQLite's and Ceph's own libraries and nothing of remora."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from devkit.chaos.clusters import ChaosError, Cluster
from devkit.verdicts.log_checker import Stored

POOL = "default.rgw.log"
LAST = (1 << 64) - 1


class Place(Protocol):
    """A store, as the run and the checker see it."""

    sections: Mapping[str, Mapping[str, object]]
    daemons: Sequence[str]
    """What of the store itself can be frozen."""

    def read(self, log: str) -> Stored:
        """All of a log."""
        ...

    def epoch(self, log: str) -> int:
        """A log's epoch now."""
        ...

    def take_lock_away(self, log: str) -> None:
        """Delete a log's lock, whichever server has it."""
        ...

    async def freeze(self, daemon: str, seconds: float) -> None:
        """Have a part of the store answer nothing for a while."""
        ...


class SqlitePlace:
    """A directory of files; freezing one means to hold its write lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "store"
        self.sections: Mapping[str, Mapping[str, object]] = {
            "store": {"kind": "sqlite"},
            "sqlite": {"directory": str(self._folder), "files": 1},
        }
        self.daemons: Sequence[str] = ["the file"]

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(next(self._folder.glob("*.db")), timeout=60, isolation_level=None)) as connection:
            yield connection

    def read(self, log: str) -> Stored:
        with self._file() as file:
            find = "SELECT id, epoch, trimmed FROM logs WHERE name = ?"
            number, epoch, trimmed = file.execute(find, (log.encode(),)).fetchone()
            rows = file.execute("SELECT position, filled, data FROM log_entries WHERE log = ?", (number,)).fetchall()
        return Stored(epoch, trimmed, {at: None if filled else data.decode() for at, filled, data in rows})

    def epoch(self, log: str) -> int:
        with self._file() as file:
            found: int = file.execute("SELECT epoch FROM logs WHERE name = ?", (log.encode(),)).fetchone()[0]
        return found

    def take_lock_away(self, log: str) -> None:
        with self._file() as file:
            file.execute("UPDATE logs SET lock_entity = '', lock_until_ns = 0 WHERE name = ?", (log.encode(),))

    async def freeze(self, daemon: str, seconds: float) -> None:
        connection = await asyncio.to_thread(self._held)
        try:
            await asyncio.sleep(seconds)
        finally:
            connection.close()

    def _held(self) -> sqlite3.Connection:
        path = next(self._folder.glob("*.db"))
        connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        return connection


class RadosPlace:
    """A cluster, and its objects through Debian's binding; its OSDs are frozen with a signal."""

    def __init__(self, cluster: Cluster, ioctx: Any) -> None:
        self._cluster = cluster
        self._ioctx = ioctx
        self.daemons = cluster.daemons
        self.sections: Mapping[str, Mapping[str, object]] = {
            "store": {"kind": "rados"},
            "rados": {
                "conf": cluster.env["conf"],
                "name": cluster.env["admin_client"],
                "keyring": cluster.env["admin_keyring"],
                "pool": POOL,
                "namespace": "notif",
                "log_pool": POOL,
                "topics_pool": "default.rgw.meta:topics",
                "op_timeout": "3s",
                "mount_timeout": "5s",
            },
        }

    def read(self, log: str) -> Stored:
        projection = self._projection(log)
        entries: dict[int, str | None] = {}
        trimmed, epochs = 0, []
        for slot in range(projection["width"]):
            oid = f"remora.stripe.{projection['id']}.{slot}"
            xattrs = dict(self._ioctx.get_xattrs(oid))
            epochs.append(int(xattrs["remora.epoch"], 16))
            trimmed = max(trimmed, int(xattrs.get("remora.trimmed", b"0"), 16))
            for key, value in self._values(oid):
                position = LAST - int(key, 16)
                if position % projection["width"] != slot:
                    raise ChaosError(f"position {position} of {log} lies in stripe {slot}")
                entries[position] = value[1:].decode() if value[:1] == b"\1" else None
        return Stored(projection["epoch"], trimmed, entries, epochs)

    def _values(self, oid: str) -> Iterator[tuple[str, bytes]]:
        import rados

        last, more = "", True
        while more:
            with rados.ReadOpCtx() as operation:
                found, _ = self._ioctx.get_omap_vals(operation, last, "", 1000)
                self._ioctx.operate_read_op(operation, oid)
                page = list(found)
            yield from page
            more = bool(page)
            last = page[-1][0] if page else last

    def epoch(self, log: str) -> int:
        return int(self._projection(log)["epoch"])

    def _projection(self, log: str) -> Any:
        return json.loads(self._ioctx.get_xattr(f"remora.log.{log}", "remora.projection"))

    def take_lock_away(self, log: str) -> None:
        """The object class keeps a lock in an xattr."""
        self._ioctx.rm_xattr(f"remora.log.{log}", "lock.remora.sequencer")

    async def freeze(self, daemon: str, seconds: float) -> None:
        await self._cluster.hurt(daemon, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._cluster.hurt(daemon, signal.SIGCONT)

    async def kill(self, daemon: str, seconds: float) -> None:
        """Kill an OSD, and start it again after a while; returns when it serves."""
        await self._cluster.hurt(daemon, signal.SIGKILL)
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._cluster.start(daemon)


@asynccontextmanager
async def client(cluster: Cluster) -> AsyncIterator[Any]:
    """A client of its own in remora's namespace, through Debian's binding."""
    import rados

    keyring = {"keyring": cluster.env["admin_keyring"]}
    with (
        rados.Rados(conffile=cluster.env["conf"], name=cluster.env["admin_client"], conf=keyring) as administrator,
        administrator.open_ioctx(POOL) as ioctx,
    ):
        ioctx.set_namespace("remora")
        yield ioctx


def empty(ioctx: Any) -> None:
    """Remove what earlier runs left in remora's namespace."""
    for each in list(ioctx.list_objects()):
        ioctx.remove_object(each.key)
