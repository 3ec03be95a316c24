"""A real Ceph cluster for tests, and what a radosgw does to it, through Debian's own binding.

The clusters are called `store16` and `store20`. One that runs already is used as it is; all are left running for the
next run, and `scripts/test --down` removes them.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from devkit.paths import SCRIPTS
from devkit.waits import until
from remora.codec.lock_ops import Locker, decode_lock_info
from remora.config import RadosSettings
from remora.storage.rados import RadosLogStore, RadosStore

try:
    import rados
except ImportError:  # a host without Ceph: the fixture skips, and everything else can be imported
    rados = None

_DEV_CEPH = SCRIPTS / "dev-ceph"
_POOL = "default.rgw.log"
_REGISTRY = "queues_list_object"

LEASES_LOOK_EVERY_S = 10.0
"""Leases last for 8 s and are renewed long before their end: a group that is laggy twice stays so."""


@dataclass(frozen=True)
class Ceph:
    """A running cluster, as `scripts/dev-ceph` made it."""

    name: str
    env: dict[str, Any]

    @property
    def admin(self) -> RadosSettings:
        """Settings that may do everything, and that ask nobody where the queues are."""
        return RadosSettings(
            conf=self.env["conf"],
            name=self.env["admin_client"],
            keyring=self.env["admin_keyring"],
            pool=_POOL,
            namespace="notif",
            log_pool=_POOL,
            topics_pool="default.rgw.meta:topics",
        )

    @property
    def least(self) -> RadosSettings:
        """Settings with the permissions that an operator is told to give, and nothing else."""
        return replace(self.admin, name=self.env["client"], keyring=self.env["keyring"])

    @contextmanager
    def client(self, pool: str = _POOL, namespace: str = "") -> Iterator[rados.Ioctx]:
        """A second client, independent of the code under test."""
        with self._administrator() as cluster, cluster.open_ioctx(pool) as ioctx:
            ioctx.set_namespace(namespace)
            yield ioctx

    def command(self, **command: object) -> Any:
        """What the monitors answer to a command."""
        with self._administrator() as cluster:
            code, out, remark = cluster.mon_command(json.dumps(command | {"format": "json"}), b"")
        assert code == 0, remark
        return json.loads(out or "null")

    def watchers(self, oid: str, namespace: str) -> set[str]:
        """The clients that watch an object, such as `client.4123`; none where there is no such object."""
        who = ["--conf", self.env["conf"], "--name", self.env["admin_client"], "--keyring", self.env["admin_keyring"]]
        command = ["rados", *who, "--pool", _POOL, "--namespace", namespace, "listwatchers", oid]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return {line.split()[1] for line in done.stdout.splitlines()} if done.returncode == 0 else set()

    def _administrator(self) -> rados.Rados:
        keyring = {"keyring": self.env["admin_keyring"]}
        return rados.Rados(conffile=self.env["conf"], name=self.env["admin_client"], conf=keyring)

    def send(self, daemon: str, signal: str) -> None:
        """Send a signal to a daemon; TERM and KILL return when it has ended."""
        if signal == "STOP":
            _standing_still.add((self.name, daemon))
        _dev_ceph("stop", daemon, "--signal", signal, "--name", self.name)
        if signal == "CONT":
            _standing_still.discard((self.name, daemon))
            _see_to(self.name, daemon)

    def start(self, daemon: str) -> None:
        """Start a daemon again; returns when it serves."""
        _standing_still.discard((self.name, daemon))
        _dev_ceph("start", daemon, "--name", self.name)
        _see_to(self.name, daemon)

    @contextmanager
    def frozen(self, *daemons: str) -> Iterator[None]:
        """Daemons that hold their connections and answer nothing."""
        for daemon in daemons:
            self.send(daemon, "STOP")
        try:
            yield
        finally:
            for daemon in daemons:
                self.send(daemon, "CONT")


_standing_still: set[tuple[str, str]] = set()
"""Clusters and their daemons that were stopped by a signal."""


def _see_to(name: str, daemon: str) -> None:
    """Free the placement groups of an OSD that works again from a lease that nobody renews.

    In the tests' clusters an OSD is the only one of its placement groups. Ceph 16.2 leaves such a group `laggy` now and
    then, all operations waiting for it to be readable, until the OSD is marked down and comes up again by itself.
    """
    if daemon.startswith("osd."):
        threading.Thread(target=_free_from_leases, args=(name,), name=f"leases of {name}", daemon=True).start()


def _free_from_leases(name: str) -> None:
    before: Mapping[str, int] = {}
    while True:
        time.sleep(LEASES_LOOK_EVERY_S)
        if any(cluster == name for cluster, _ in _standing_still):
            return  # who lets it go on has this done again
        found = _ceph(name, "pg", "ls", "laggy", "--format", "json")
        laggy = {each["pgid"]: each["acting_primary"] for each in json.loads(found or "{}").get("pg_stats", [])}
        for osd in {osd for group, osd in laggy.items() if before.get(group) == osd}:
            _ceph(name, "osd", "down", f"osd.{osd}")
        if not laggy:
            return
        before = laggy


def _ceph(name: str, *words: str) -> str:
    """What `ceph` prints; empty where it fails, as while the cluster is taken down."""
    command = [str(_DEV_CEPH), "exec", "--name", name, "--", "ceph", "--connect-timeout", "20", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


class Gateway:
    """What a radosgw does to queues: makes and deletes them, registers them, and takes their lock."""

    def __init__(self, ioctx: rados.Ioctx) -> None:
        self.ioctx = ioctx

    def make_queue(self, queue: str, ring_bytes: int = 1 << 20) -> None:
        """An object that is created, made a queue, and registered, in radosgw's order."""
        with rados.WriteOpCtx() as op:
            op.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
            self.ioctx.operate_write_op(op, queue)
        request = struct.pack("<BBIQQI", 1, 1, 20, ring_bytes, 0, 0)
        self.ioctx.execute(queue, "2pc_queue", "2pc_queue_init", request)
        self.register(queue)

    def register(self, *queues: str) -> None:
        with rados.WriteOpCtx() as op:
            self.ioctx.set_omap(op, queues, (b"",) * len(queues))
            self.ioctx.operate_write_op(op, _REGISTRY)

    @contextmanager
    def beside(self, namespace: str) -> Iterator[rados.Ioctx]:
        """Another namespace of the pool, for as long as it is asked for."""
        own = self.ioctx.nspace
        self.ioctx.set_namespace(namespace)
        try:
            yield self.ioctx
        finally:
            self.ioctx.set_namespace(own)

    def delete_queue(self, queue: str) -> None:
        """The object first, then its registry key."""
        self.ioctx.remove_object(queue)
        with rados.WriteOpCtx() as op:
            self.ioctx.remove_omap_keys(op, (queue,))
            self.ioctx.operate_write_op(op, _REGISTRY)

    def exists(self, oid: str) -> bool:
        try:
            self.ioctx.stat(oid)
        except rados.ObjectNotFound:
            return False
        return True

    def lock(self, queue: str, cookie: str = "gatewaycookie016", seconds: int = 90) -> bool:
        """Take or renew the queue's lock as a gateway with this cookie; False when somebody else has it."""
        try:
            self.ioctx.lock_exclusive(queue, f"{queue}_lock", cookie, duration=seconds, flags=1)
        except rados.ObjectBusy:
            return False
        return True

    def unlock(self, queue: str, cookie: str = "gatewaycookie016") -> None:
        """Give the lock back."""
        self.ioctx.unlock(queue, f"{queue}_lock", cookie)

    def lockers(self, queue: str) -> tuple[Locker, ...]:
        """The state of the lock, as the OSD keeps it in the object."""
        return decode_lock_info(self.ioctx.get_xattr(queue, f"lock.{queue}_lock")).lockers

    def empty(self) -> None:
        """Delete every object of the namespace."""
        for each in list(self.ioctx.list_objects()):
            with suppress(rados.ObjectNotFound):
                self.ioctx.remove_object(each.key)


@asynccontextmanager
async def reached(
    settings: RadosSettings, on_state: Callable[[bool, str], None] = lambda _there, _text: None, **options: Any
) -> AsyncIterator[RadosStore]:
    """An open store that has found its cluster, however busy this machine is."""
    async with RadosStore(settings, on_state, **options) as store:
        await until(partial(_is_connected, store))
        yield store


@asynccontextmanager
async def reached_logs(settings: RadosSettings, **options: Any) -> AsyncIterator[RadosLogStore]:
    """As `reached`: the shared logs by themselves."""
    async with RadosLogStore(settings, **options) as store:
        await until(partial(_is_connected, store))
        yield store


async def _is_connected(store: RadosStore | RadosLogStore) -> bool:
    return store.connected


@pytest.fixture(scope="session")
def ceph(request: pytest.FixtureRequest) -> Ceph:
    """A running cluster; skips where Ceph is not installed, except in CI."""
    if (rados is None or shutil.which("ceph-osd") is None) and not os.environ.get("CI"):
        pytest.skip("Ceph is not installed; see scripts/setup")
    release = request.config.getoption("--ceph") or "20"
    name = f"store{release}"
    _dev_ceph("up", "--name", name, "--release", release, "--no-rgw")
    return Ceph(name, json.loads(_dev_ceph("env", "--json", "--name", name)))


@pytest.fixture
def namespace(ceph: Ceph) -> Iterator[str]:
    """A namespace of the queues' pool for one test alone."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    for each in (name, "remora"):
        with ceph.client(namespace=each) as ioctx:
            Gateway(ioctx).empty()


@pytest.fixture
def gateway(ceph: Ceph, namespace: str) -> Iterator[Gateway]:
    """A second client in the test's namespace."""
    with ceph.client(namespace=namespace) as ioctx:
        yield Gateway(ioctx)


@pytest.fixture
def settings(ceph: Ceph, namespace: str) -> RadosSettings:
    """Settings of a store that keeps its queues in the test's namespace, and of which no call is given up.

    It tries to connect as often as a busy cluster may need.
    """
    return replace(ceph.admin, namespace=namespace, op_timeout_s=30.0, mount_timeout_s=5.0)


def _dev_ceph(*arguments: str) -> str:
    done = subprocess.run([_DEV_CEPH, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"dev-ceph {' '.join(arguments)} failed: {done.stderr}")
    return done.stdout
