"""The real Ceph and Kafka that a benchmark runs on."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rados

from devkit.paths import ROOT
from remora.config import KafkaSettings, RadosSettings

WARM_UP = "warm-up"
WARM_UP_RECORDS = 1_000_000

_RATE = re.compile(r"^\d+ records sent, ([\d.]+) records/sec", re.MULTILINE)


class BenchError(Exception):
    """Something a person can act on; printed as one line."""


@dataclass(frozen=True)
class Clusters:
    """The clusters of this name; `env` is read anew where process ids may have changed."""

    name: str

    @property
    def ceph(self) -> dict[str, Any]:
        env: dict[str, Any] = json.loads(_dev("ceph", "env", "--json", "--name", self.name))
        return env

    @property
    def kafka(self) -> dict[str, Any]:
        env: dict[str, Any] = json.loads(_dev("kafka", "env", "--json", "--name", self.name))
        return env

    def start(self, kind: str, daemon: str) -> None:
        """Start a daemon; returns when it serves."""
        _dev(kind, "start", daemon, "--name", self.name)

    def restart(self, kind: str, daemon: str, environment: Mapping[str, str]) -> None:
        """Start a daemon anew that has this in its environment, too; returns when it serves."""
        _dev(kind, "restart", daemon, "--name", self.name, environment=environment)

    def stop(self, kind: str, daemon: str, signal: str = "TERM") -> None:
        """Send a signal to a daemon; the ones that end it are waited for."""
        _dev(kind, "stop", daemon, "--signal", signal, "--name", self.name)

    def producer_performance(self, topic: str, records: int, *payload: str) -> float:
        """Have Kafka's own ProducerPerformance send as fast as it can, in batches as the daemon has them.

        `payload` are its options for that: a file of bodies, one a line, or a size. Returns records a second, its own
        start left out.
        """
        ours = KafkaSettings()
        properties = {
            "bootstrap.servers": self.kafka["bootstrap"],
            "acks": "all",
            "compression.type": ours.compression,
            "batch.size": ours.max_batch_bytes,
            "linger.ms": 5,
        }
        argv = [
            *("java", "-Xmx512m", "-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.ProducerPerformance"),
            *("--topic", topic, "--num-records", str(records), "--throughput", "-1", *payload, "--producer-props"),
            *(f"{name}={value}" for name, value in properties.items()),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        found = _RATE.findall(done.stdout)
        if done.returncode or not found:
            raise BenchError(f"ProducerPerformance failed: {done.stderr.strip()[-500:]}")
        return float(found[-1])

    @property
    def administrator(self) -> RadosSettings:
        """Store settings that may do everything."""
        env = self.ceph
        client, keyring = env["admin_client"], env["admin_keyring"]
        return RadosSettings(
            conf=env["conf"],
            name=client,
            keyring=keyring,
            pool=env["queue_pool"],
            namespace=env["queue_namespace"],
            log_pool=env["queue_pool"],
            topics_pool="default.rgw.meta:topics",
        )

    def place_of_its_own(self, name: str) -> RadosSettings:
        """Store settings that may do everything, for a daemon that sees nothing of radosgw's."""
        pool = f"{self.ceph['queue_pool']}:{name}"
        return replace(
            self.administrator, namespace=name, log_pool=pool, topics_pool=pool, op_timeout_s=1.0, mount_timeout_s=10.0
        )

    @contextmanager
    def queue_objects(self) -> Iterator[rados.Ioctx]:
        """The namespace in which radosgw keeps its queues."""
        env = self.ceph
        client, keyring = env["admin_client"], env["admin_keyring"]
        with (
            rados.Rados(conffile=env["conf"], name=client, conf={"keyring": keyring}) as cluster,
            cluster.open_ioctx(env["queue_pool"]) as ioctx,
        ):
            ioctx.set_namespace(env["queue_namespace"])
            yield ioctx


def kafka_jars(*options: str) -> Path:
    """The folder with Kafka's jars, fetched where they are not there; `options` are those of the script."""
    done = subprocess.run([ROOT / "scripts/dev/kafka-jars", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"no Kafka to run: {' '.join(done.stderr.split())[-500:]}")
    return Path(done.stdout.strip().splitlines()[-1])


@contextmanager
def running_clusters(
    name: str,
    keep: bool,
    kinds: Sequence[str] = ("ceph", "kafka"),
    kafka: Sequence[str] = (),
    ceph: Sequence[str] = (),
    release: int = 16,
) -> Iterator[Clusters]:
    """Clusters that run; those that were made for this are removed again, unless they are to be kept.

    `kafka` and `ceph` are further options of a cluster of that kind that is made, `release` is Ceph's.
    """
    options = {"ceph": ["--release", str(release), *ceph], "kafka": ["--heap", "1g", *kafka]}
    with ExitStack() as stack:
        for kind in kinds:
            is_new = not _is_running(kind, name)
            if not keep and is_new:
                stack.callback(_dev, kind, "down", "--name", name)
            _dev(kind, "up", "--name", name, *options[kind])
            if kind == "kafka" and is_new:
                _warm_up(name)
        clusters = Clusters(name)
        if "ceph" in kinds and not clusters.ceph["s3"]:
            raise BenchError(f"the Ceph cluster {name!r} has no radosgw: use another --name")
        yield clusters


def _warm_up(name: str) -> None:
    """Have a new broker take records until Java has compiled what that needs: before, each costs it ten times more."""
    _dev("kafka", "topic", WARM_UP, "--partitions", "11", "--name", name)
    Clusters(name).producer_performance(WARM_UP, WARM_UP_RECORDS, "--record-size", "1000")


def _is_running(kind: str, name: str) -> bool:
    argv = [str(ROOT / f"scripts/dev-{kind}"), "status", "--name", name]
    return subprocess.run(argv, capture_output=True, check=False).returncode in (0, 3)


def _dev(kind: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [ROOT / f"scripts/dev-{kind}", *arguments],
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"dev-{kind} {' '.join(arguments)} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
