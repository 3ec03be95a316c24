"""A real standalone Spark cluster on this host: a master and two workers, from the PySpark package."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyspark
import pytest

from devkit.clusters.spark import QUICK_JVM, of_a_small_job
from devkit.processes.programs import program

_HOME = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
_WORKER = re.compile(r"Registering worker (\S+)")
_DEADLINE_S = 600

T = TypeVar("T")


@dataclass(frozen=True)
class SparkCluster:
    """`master` is its address; `env` is what a process that sends jobs to it needs."""

    master: str
    env: dict[str, str]


@contextlib.contextmanager
def running_spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Two workers of one core each, removed afterwards; what they wrote and said is in the folder."""
    program("java", "openjdk-17-jre-headless")
    env = of_a_small_job(**{"spark.executor.extraJavaOptions": QUICK_JVM}) | {
        "SPARK_HOME": str(_HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }
    with contextlib.ExitStack() as stack:
        said = folder / "master.log"
        stack.enter_context(_daemon(said, env, "master.Master", "--port", "0", "--webui-port", "0"))
        address = _until(lambda: _MASTER.search(said.read_text()), "the master starts", said)[1]
        for number in (1, 2):
            log = folder / f"worker-{number}.log"
            options = [
                "--cores",
                "1",
                "--memory",
                "1200m",
                "--webui-port",
                "0",
                "--work-dir",
                str(folder / f"w{number}"),
            ]
            stack.enter_context(_daemon(log, env, "worker.Worker", address, *options))
        _until(lambda: len(set(_WORKER.findall(said.read_text()))) == 2 or None, "two workers register", said)
        yield SparkCluster(address, env)


@contextlib.contextmanager
def _daemon(said: Path, env: dict[str, str], name: str, *options: str) -> Iterator[None]:
    command = [str(_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *options, "--host", "127.0.0.1"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until(found: Callable[[], T | None], what: str, said: Path) -> T:
    deadline = time.monotonic() + _DEADLINE_S
    while (value := found()) is None:
        assert time.monotonic() < deadline, f"{what}: not within {_DEADLINE_S} s\n{said.read_text()[-3000:]}"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster for the tests of a module."""
    with running_spark_cluster(tmp_path_factory.mktemp("spark-cluster")) as running:
        yield running
