"""A real one-host Ceph cluster: one monitor, one manager, OSDs on BlueStore, one radosgw. No service manager.

16 runs from the host's packages. 20 runs from a folder with Debian forky in it (ceph20-root): each process gets
a mount namespace in which /usr is forky's and everything else is the host's. So every path means the same inside
and outside, and the mounts end with the process.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from devkit.clusters import daemons
from devkit.clusters.state import DevError, State, cache_home
from devkit.paths import SCRIPTS

HERE = SCRIPTS / "dev"
RGW = "rgw"
POOLS = [".rgw.root"] + [
    f"default.rgw.{part}" for part in ("log", "control", "meta", "buckets.index", "buckets.data", "buckets.non-ec")
]
QUEUES = "default.rgw.log"

# The least that remora works with, and nothing more:
# * mon 'allow r': the maps.
# * namespace `notif`: radosgw's queues and their locks (x: the queue and lock classes; w: locks and removals).
# * namespace `remora`: its own topics, dead letters and registry.
# * the rest of that pool, read: topics as releases before 19 keep them (objects `pubsub.<tenant>`).
# * namespace `topics`, read: topics as later releases keep them.
# * .rgw.root, read and execute: `radosgw-admin zone get`, which names the pools and checks object versions.
OPERATOR = "client.operator"
"""May do everything; of a release whose own administrator has a key that an older librados does not know."""

OPERATOR_CAPS = {"mon": "allow *", "osd": "allow *", "mgr": "allow *"}

REMORA_CAPS = {
    "mon": "allow r",
    "osd": ", ".join(
        [
            f"allow rwx pool={QUEUES} namespace=notif",
            f"allow rwx pool={QUEUES} namespace=remora",
            f"allow r pool={QUEUES}",
            "allow r pool=default.rgw.meta namespace=topics",
            "allow rx pool=.rgw.root",
        ]
    ),
}

CONF = """\
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
keyring = {path}/keyring.$name
auth_allow_insecure_global_id_reclaim = false
# One copy on few small disks of one host is what is wanted, and HEALTH_OK.
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_warn_on_pool_no_redundancy = false
mon_max_pg_per_osd = 1000
mon_data_avail_warn = 1
mon_data_avail_crit = 1
{class_dir}
[mon]
{files}
mon_cluster_log_file = {path}/log/cluster.log
mon_data = {path}/data/$name
# A change is decided at once; the default is to wait a second for others.
paxos_propose_interval = 0.05
# An OSD that is killed is seen as down at once, and is never given up on.
mon_osd_min_down_reporters = 1
mon_osd_reporter_subtree_level = osd
mon_osd_down_out_interval = 604800

[mgr]
{files}
mgr_data = {path}/data/$name
mgr_stats_period = 1
mgr_tick_period = 1
mgr_initial_modules =
mgr/devicehealth/enable_monitoring = false

[osd]
{files}
osd_data = {path}/data/$name
osd_objectstore = bluestore
bluestore_block_size = 21474836480
osd_memory_target = 1073741824
osd_mclock_skip_benchmark = true

[client.rgw]
{files}
rgw_frontends = beast endpoint=127.0.0.1:{s3}
rgw_data = {path}/data/$name
rgw_allow_notification_secrets_in_cleartext = true
rgw_run_sync_thread = false
# Release 16 takes an endpoint with a password from a client that says "X-Forwarded-Proto: https" and no other.
rgw_trust_forwarded_https = true
# At level 1 a topic whose endpoint this build cannot serve writes thousands of lines a second.
debug_rgw = 0
debug_rgw_notification = 0

{extra}
"""

# For the daemons alone: a client with a log file or an admin socket would fight over it with the next one.
FILES = """\
run_dir = {path}/run
admin_socket = {path}/run/$name.asok
log_file = {path}/log/$name.log
crash_dir = {path}/crash
"""


class Cluster:
    """One named cluster. Its release is given when it is made, and read back from its folder later."""

    def __init__(self, state: State, release: int) -> None:
        self.state, self.release = state, release
        self.conf = state / "ceph.conf"

    # --- life ------------------------------------------------------------------------------------------

    def up(self, osds: int, with_rgw: bool, extra: dict[str, str]) -> None:
        """Make the cluster, or start what is not running of one that was made before."""
        if not self.state.is_complete():
            self.down(keep=False)
            self._create(osds, with_rgw, extra)
            return
        daemons.thaw(self.state)
        stopped = [name for name in self.state.env()["daemons"] if name not in daemons.running(self.state)]
        for name in stopped:
            self.start(name, wait=False)
        if stopped:
            self._wait_healthy()
            for name in stopped:
                self._wait_ready(name)

    def down(self, keep: bool) -> None:
        """Stop every daemon, politely when the data is to be used again, and remove the folder unless kept."""
        names = list(daemons.running(self.state))
        if keep:
            # radosgw keeps nothing, and takes half a minute to say good-bye; the others say it to the monitor.
            stores = [name for name in names if name not in (RGW, "mon.a")]
            daemons.stop(self.state, [RGW], signal.SIGKILL)
            daemons.stop(self.state, stores, signal.SIGTERM)
            daemons.stop(self.state, ["mon.a"], signal.SIGTERM)
        else:
            daemons.stop(self.state, names, signal.SIGKILL)
            self.state.remove()

    def start(self, name: str, wait: bool = True) -> None:
        """Start one daemon that was stopped; returns when it serves."""
        self._check_name(name)
        daemons.start(self.state, name, self.inside(self._argv(name)), self.environment())
        if wait:
            self._wait_ready(name)
        daemons.refresh_env(self.state)

    def stop(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to one daemon; the ones that end it are waited for."""
        self._check_name(name)
        daemons.hurt(self.state, name, signum)

    # --- running things in the cluster's release ---------------------------------------------------------

    def inside(self, argv: list[str]) -> list[str]:
        """The same command, run with the programs of this cluster's release."""
        return argv if self.release == 16 else [str(HERE / "ceph20-run"), *argv]

    def environment(self) -> dict[str, str]:
        """Ours, without settings for some other cluster, and with this one's configuration."""
        plain = {name: text for name, text in os.environ.items() if not name.startswith("CEPH_")}
        return plain | {"CEPH_CONF": str(self.conf), "PATH": f"{plain.get('PATH', '')}:/usr/sbin:/usr/bin"}

    def run(self, argv: list[str], stdin: str = "") -> str:
        """Run a command of this release to its end and return what it printed."""
        done = subprocess.run(
            self.inside(argv), env=self.environment(), input=stdin, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise DevError(f"{' '.join(argv[:4])} failed ({done.returncode}):\n{done.stderr.strip()[-2000:]}")
        return done.stdout

    def mon(self, *commands: dict[str, Any], patience_s: int = 30) -> list[Any]:
        """Send commands to the monitors and return their answers."""
        lines = "".join(json.dumps(command | {"format": "json"}) + "\n" for command in commands)
        argv = ["/usr/bin/python3", str(Path(__file__).with_name("mon_commands.py")), str(self.conf), str(patience_s)]
        return [json.loads(line) for line in self.run(argv, lines).splitlines()]

    # --- making ------------------------------------------------------------------------------------------

    def _create(self, osds: int, with_rgw: bool, extra: dict[str, str]) -> None:
        state = self.state
        if len(str(state / "run/client.remora.asok")) > 100:
            raise DevError(f"{state.path} is too long for a unix socket: set REMORA_DEV_HOME to a shorter folder")
        for part in ("data", "log", "run", "crash"):
            (state / part).mkdir(parents=True)
        state.path.chmod(0o700)
        ports = state.reserve_ports(["mon_v2", "mon_v1", "s3"])
        fsid = str(uuid.uuid4())
        self._write_conf(fsid, ports, extra)
        osd_ids = {f"osd.{n}": str(uuid.uuid4()) for n in range(osds)}
        names = ["mon.a", "mgr.x", *osd_ids, *([RGW] if with_rgw else [])]
        self._make_keys(osd_ids)

        self._make_mon(fsid, ports)
        making = [self._make_osd(name, osd, fsid) for name, osd in osd_ids.items()]
        self.start("mon.a", wait=False)
        self.mon(*({"prefix": "osd new", "uuid": osd, "id": int(name[4:])} for name, osd in osd_ids.items()))
        self._make_pools()
        for process in making:
            if process.wait() != 0:
                raise DevError(f"ceph-osd --mkfs failed; see {state / 'log'}")
        for name in names:
            self.start(name, wait=False)
        if self.release == 20:
            self._allow_old_keys()
        user = self._make_user() if with_rgw else {}
        self._wait_healthy()
        for name in names:
            self._wait_ready(name)
        state.write_env(self._describe(names, ports, user))

    def _write_conf(self, fsid: str, ports: dict[str, int], extra: dict[str, str]) -> None:
        # forky's default is a relative path, from which no object class loads.
        class_dir = ""
        if self.release == 20:
            (found,) = root20().glob("usr/lib/*/rados-classes")
            class_dir = f"osd_class_dir = /{found.relative_to(root20())}\n"
        lines = "\n".join(f"{key} = {value}" for key, value in extra.items())
        extra_lines = f"[global]\n{lines}" if lines else ""
        path, files = self.state.path, FILES.format(path=self.state.path)
        text = CONF.format(fsid=fsid, path=path, files=files, class_dir=class_dir, extra=extra_lines, **ports)
        self.conf.write_text(text)

    def _make_keys(self, osd_ids: Iterable[str]) -> None:
        """A key for everybody, of the release's own type; the monitor knows them all from its first second."""
        everything = {"mon": "allow *", "osd": "allow *", "mgr": "allow *", "mds": "allow *"}
        daemon = {"mon": "allow profile osd", "mgr": "allow profile osd", "osd": "allow *"}
        caps = {
            "mon.": {"mon": "allow *"},
            "client.admin": everything,
            "mgr.x": {"mon": "allow profile mgr", "osd": "allow *", "mds": "allow *"},
            **dict.fromkeys(osd_ids, daemon),
            "client.rgw": {"mon": "allow rw", "osd": "allow rwx", "mgr": "allow rw"},
            "client.remora" if self.release == 16 else "client.remora-native": REMORA_CAPS,
        }
        script = "".join(
            f"ceph-authtool --create-keyring '{self._keyring(name)}' --gen-key -n {name}"
            + "".join(f" --cap {part} '{cap}'" for part, cap in granted.items())
            + "\n"
            for name, granted in caps.items()
        )
        self.run(["sh", "-euc", script])
        joined = "".join(self._keyring(name).read_text() for name in caps)
        (self.state / "data/keyring").write_text(joined)
        shutil.copy(self._keyring("mon."), self._keyring("mon.a"))

    def _make_mon(self, fsid: str, ports: dict[str, int]) -> None:
        address = f"[v2:127.0.0.1:{ports['mon_v2']},v1:127.0.0.1:{ports['mon_v1']}]"
        monmap, keyring = self.state / "data/monmap", self.state / "data/keyring"
        self.run(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, str(monmap)])
        self.run(["ceph-mon", *self._who("mon", "a"), "--mkfs", "--monmap", str(monmap), "--keyring", str(keyring)])

    def _make_osd(self, name: str, osd: str, fsid: str) -> subprocess.Popen[bytes]:
        """Format an OSD in the background; it needs no monitor for that."""
        (self.state / "data" / name).mkdir()
        (self.state / f"data/{name}/keyring").write_text(self._keyring(name).read_text())
        argv = ["ceph-osd", *self._who("osd", name[4:]), "--mkfs", "--no-mon-config", "--osd-uuid", osd]
        argv += ["--fsid", fsid, "--monmap", str(self.state / "data/monmap")]
        with open(self.state / f"log/{name}.mkfs.out", "ab") as out:
            env = self.environment() | daemons.mark(self.state, f"{name}-mkfs")
            return subprocess.Popen(self.inside(argv), env=env, stdout=out, stderr=out)

    def _make_pools(self) -> None:
        """radosgw would make them itself, one after the other, and wait for each."""
        sure = {"yes_i_really_mean_it": True}  # 20 makes no pool whose name begins with a dot, and reports success
        self.mon(
            *({"prefix": "osd pool create", "pool": pool, "pg_num": 8} | sure for pool in POOLS),
            *({"prefix": "osd pool application enable", "pool": pool, "app": "rgw"} for pool in POOLS),
        )

    def _allow_old_keys(self) -> None:
        """Lets a librados before 20 in: it only knows keys of type `aes`, and 20.2 hands out `aes256k`."""
        self.mon(
            {"prefix": "mon set", "name": "auth_allowed_ciphers", "value": "aes,aes256k"},
            {"prefix": "mon set", "name": "auth_service_cipher", "value": "aes"},
            {"prefix": "config set", "who": "mon", "name": "mon_auth_allow_insecure_key", "value": "true"},
        )
        for client, allowed in (("client.remora", REMORA_CAPS), (OPERATOR, OPERATOR_CAPS)):
            caps = [text for pair in allowed.items() for text in pair]
            argv = ["ceph", "auth", "get-or-create", client, *caps, "--key-type", "aes"]
            self.run([*argv, "-o", str(self._keyring(client))])
        # The rotating keys are named only when the monitor has made one since the service's cipher was set.
        keys = ("CLIENT_KEY_TYPE", "KEYS_ALLOWED", "KEYS_CREATABLE")
        muted = (*keys, "SERVICE_TICKETS", "SERVICE_KEY_TYPE", "ROTATING_SERVICE_KEY_TYPE")
        mute = {"prefix": "health mute", "sticky": True}
        self.mon(*(mute | {"code": f"AUTH_INSECURE_{check}"} for check in muted))

    def _make_user(self) -> dict[str, str]:
        access, secret = secrets.token_hex(10), secrets.token_hex(20)
        argv = ["radosgw-admin", "user", "create", "--uid=dev", "--display-name=dev"]
        self.run([*argv, f"--access-key={access}", f"--secret-key={secret}"])
        return {"user": "dev", "access_key": access, "secret_key": secret}

    def _describe(self, names: list[str], ports: dict[str, int], user: dict[str, str]) -> dict[str, Any]:
        admin = "client.admin" if self.release == 16 else OPERATOR
        native = "client.remora" if self.release == 16 else "client.remora-native"
        return {
            "name": self.state.name,
            "release": self.release,
            "state": str(self.state.path),
            "conf": str(self.conf),
            "client": "client.remora",
            "keyring": str(self._keyring("client.remora")),
            "native_client": native,
            "native_keyring": str(self._keyring(native)),
            "admin_client": admin,
            "admin_keyring": str(self._keyring(admin)),
            "zone": "default",
            "region": "default",
            "queue_pool": QUEUES,
            "queue_namespace": "notif",
            "mon_host": f"127.0.0.1:{ports['mon_v2']}",
            "s3": {"endpoint": f"http://127.0.0.1:{ports['s3']}", **user} if user else None,
            "ports": ports,
            "logs": str(self.state / "log"),
            "daemons": names,
            "pids": daemons.running(self.state),
        }

    # --- one daemon ----------------------------------------------------------------------------------------

    def _argv(self, name: str) -> list[str]:
        if name == RGW:
            return ["radosgw", "--foreground", "--conf", str(self.conf), "--name", "client.rgw"]
        kind, _, which = name.partition(".")
        return [f"ceph-{kind}", "--foreground", *self._who(kind, which)]

    def _who(self, kind: str, which: str) -> list[str]:
        return ["--conf", str(self.conf), "--name", f"{kind}.{which}"]

    def _keyring(self, name: str) -> Path:
        return self.state / f"keyring.{name}"

    def _check_name(self, name: str) -> None:
        known = sorted([*self.state.env()["daemons"]]) if self.state.is_complete() else [name]
        if name not in known:
            raise DevError(f"cluster {self.state.name!r} has no daemon {name!r}; it has {', '.join(known)}")

    def _wait_ready(self, name: str) -> None:
        daemons.wait_for(f"answer from {name}", lambda: self._is_ready(name), 60, self.state, [name])

    def _is_ready(self, name: str) -> bool:
        with suppress(OSError, ValueError):
            if name == RGW:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.state.ports()['s3']}", timeout=5) as answer:
                    answer.read()
                    return True
            if name.startswith("osd."):
                return bool(self.ask(name, "status")["state"] == "active")
            if name.startswith("mon."):
                return self.ask(name, "mon_status")["state"] in ("leader", "peon")
            return bool(self.ask(name, "version"))
        return False

    def ask(self, name: str, command: str, patience_s: float = 5) -> Any:
        """A command to one daemon's admin socket. No monitor is involved, so it works while that is away."""
        with socket.socket(socket.AF_UNIX) as asok:
            asok.settimeout(patience_s)
            asok.connect(str(self.state / f"run/{'client.rgw' if name == RGW else name}.asok"))
            asok.sendall(json.dumps({"prefix": command, "format": "json"}).encode() + b"\0")
            with asok.makefile("rb") as answer:
                (size,) = struct.unpack(">I", answer.read(4))
                return json.loads(answer.read(size))

    def health(self) -> str:
        """The monitor's verdict, or that there is none."""
        try:
            (answer,) = self.mon({"prefix": "health"}, patience_s=5)
        except DevError:
            return "the monitor does not answer"
        return str(answer["status"])

    def _wait_healthy(self) -> None:
        health = ""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            answer, pgs = self.mon({"prefix": "health"}, {"prefix": "pg stat"})
            health = answer["status"]
            states = {state["name"] for state in pgs["pg_summary"]["num_pg_by_state"]}
            if health == "HEALTH_OK" and states == {"active+clean"}:
                return
            time.sleep(0.2)
        raise DevError(f"the cluster is {health}: {json.dumps(answer['checks'])[:1500]}")


def root20() -> Path:
    return cache_home() / "ceph20-root"
