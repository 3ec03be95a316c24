"""A real Ceph cluster of two OSDs and two copies, a commit of which takes as long as is asked."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rados

from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.clusters.ceph_daemons import Cluster
from devkit.clusters.slow_syncs import SlowSyncs
from devkit.clusters.state import DevError, State
from devkit.paths import ROOT
from devkit.processes.processes import preferred

SYNCS_OF_A_COMMIT = 2.4
"""Where a first guess begins: BlueStore syncs its log twice, and a replica does it, too."""

CLOSE_ENOUGH = 0.05
TRIES = 6
ONE_WRITE_BYTES = 4096
PATIENCE_S = 120
ONE_WRITE_S = 1.5
"""How long one write after the other is timed."""

_OPTIONS = {
    "osd_pool_default_size": "2",
    "osd_pool_default_min_size": "1",
    # What each OSD remembers of operations that have ended, the slowest of these seconds.
    "osd_op_history_size": "2000",
    "osd_op_history_duration": "20",
}
_OBJECT = re.compile(r"::([^:\s]+):head ")
_HELD = "waiting for rw locks"
_MEAN = re.compile(r"^Average Latency\(s\):\s+([\d.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Latency:
    """A commit latency: what was asked for, how long a sync waits for it, and what one write then takes.

    `one_write_s` is the median of writes to one object, `rados_bench_s` the mean that `rados bench -t 1` says.
    """

    asked_s: float
    sync_s: float
    one_write_s: float
    rados_bench_s: float


def next_sync_s(asked_s: float, idle_s: float, sync_s: float, took_s: float) -> float:
    """How long a sync is to wait so that a write takes what is asked for, by what one took without and with a wait.

    Where a write takes as long without any wait, there is nothing to wait for.
    """
    syncs = (took_s - idle_s) / sync_s if sync_s and took_s > idle_s else SYNCS_OF_A_COMMIT
    return max(0.0, asked_s - idle_s) / syncs


def share_waited(operations: Iterable[Mapping[str, Any]], objects: Collection[str]) -> float:
    """The part of their time in which operations on these objects waited for one that held the object."""
    took_s = waited_s = 0.0
    for each in operations:
        found = _OBJECT.search(each["description"])
        if found and found[1] in objects:
            took_s += each["duration"]
            waited_s += sum(step["duration"] for step in each["type_data"]["events"] if step["event"] == _HELD)
    return waited_s / took_s if took_s else 0.0


class SlowCluster:
    """The running cluster, and what its OSDs wait for."""

    def __init__(self, clusters: Clusters, ioctx: rados.Ioctx, syncs: SlowSyncs) -> None:
        self.env: Mapping[str, Any] = clusters.ceph
        self.ioctx, self.syncs = ioctx, syncs
        self.settings = replace(clusters.place_of_its_own("bench-topics"), op_timeout_s=60.0)
        """Of a store that has this cluster to itself."""
        self._name, self._release = clusters.name, self.env["release"]

    @property
    def pids(self) -> Mapping[str, int]:
        """Of OSDs and gateway."""
        return {name: pid for name, pid in self.env["pids"].items() if name.startswith(("osd.", "rgw"))}

    def waited(self, queues: Collection[str]) -> float:
        """The part of the time of all operations on queues in which these waited for the object, as OSDs remember."""
        daemons = Cluster(State("ceph", self._name), self._release)
        osds = [name for name in self.env["daemons"] if name.startswith("osd.")]
        return share_waited(
            [each for osd in osds for each in daemons.ask(osd, "dump_historic_ops", PATIENCE_S)["ops"]], queues
        )

    def latency(self, asked_s: float) -> Latency:
        """Find out how long a sync must wait so that one write takes this long."""
        idle_s = took_s = self._one_write_s()
        sync_s = 0.0
        for _ in range(TRIES):
            if abs(took_s - asked_s) <= CLOSE_ENOUGH * asked_s:
                break
            sync_s = next_sync_s(asked_s, idle_s, sync_s, took_s)
            with self.syncs.waiting(sync_s):
                took_s = self._one_write_s()
        with self.syncs.waiting(sync_s):
            found = Latency(asked_s, sync_s, took_s, self._rados_bench_s())
        print(
            f"L = {asked_s * 1e3:g} ms: a sync waits {sync_s * 1e6:,.0f} us; one write takes {took_s * 1e3:.2f} ms in "
            f"the median ({idle_s * 1e3:.2f} without a wait), {found.rados_bench_s * 1e3:.2f} in the mean of "
            "`rados bench -t 1`",
            flush=True,
        )
        return found

    def _one_write_s(self) -> float:
        """The median of writes to one object, one after the other."""
        self.ioctx.set_namespace("bench")
        body, took_s = os.urandom(ONE_WRITE_BYTES), []
        until = time.monotonic() + ONE_WRITE_S
        while (began := time.monotonic()) < until:
            self.ioctx.write_full("one-write", body)
            took_s.append(time.monotonic() - began)
        return statistics.median(took_s)

    def _rados_bench_s(self) -> float:
        bench = ["rados", "-p", self.env["queue_pool"], "bench", "2", "write", "-t", "1", "-b", str(ONE_WRITE_BYTES)]
        argv = [str(ROOT / "scripts/dev-ceph"), "exec", "--name", self._name, "--", *bench]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        said = _MEAN.search(done.stdout)
        if said is None:
            raise BenchError(f"rados bench failed: {done.stderr.strip()[-500:]}")
        return float(said[1])


@contextmanager
def slow_cluster(name: str, keep: bool, niceness: int) -> Iterator[SlowCluster]:
    """A cluster of its own beside the one of this name; `niceness` is that of all processes that are measured."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        try:
            syncs = SlowSyncs(Path(folder))
        except DevError as error:
            raise BenchError(str(error)) from error
        options = [word for pair in _OPTIONS.items() for word in ("--config", "=".join(pair))]
        with running_clusters(f"{name}-slow", keep, ["ceph"], ceph=options) as clusters:
            for osd in (each for each in clusters.ceph["daemons"] if each.startswith("osd.")):
                clusters.restart("ceph", osd, syncs.environment)
            with clusters.queue_objects() as ioctx:
                cluster = SlowCluster(clusters, ioctx, syncs)
                with preferred([*cluster.pids.values(), os.getpid()], niceness):
                    yield cluster
