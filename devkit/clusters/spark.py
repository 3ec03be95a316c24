"""One Spark session for all tests of a process, started when the first one asks for it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage, JVMView
from pyspark.sql import SparkSession

from devkit.paths import SCRIPTS
from remora_pipeline.replay.session import JARS, ONCE

QUICK_JVM = os.environ.get("SPARK_SUBMIT_OPTS") or "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of a JVM that lives for seconds."""

_SMALL_JOBS = {
    # Compiling a query takes a third of the processor time that a query of 60 rows does.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}

_SETTINGS = {
    **ONCE,
    **_SMALL_JOBS,
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two tasks at a time, with the Kafka connector; jobs that open one get it."""
    if not (shutil.which("java") and shutil.which("mvn")):
        if os.environ.get("CI"):
            pytest.fail("Spark needs java and mvn: run scripts/setup")
        pytest.skip("Spark needs java and mvn: run scripts/setup")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.jars", ",".join(connector_jars()))
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    session = builder.getOrCreate()
    with pytest.MonkeyPatch.context() as patch:
        for names in (JVMView, JavaPackage):
            patch.setattr(names, "__getattr__", _asking_once(names.__getattr__))
        yield session
    session.stop()


def _asking_once(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Returns what Java knows by a name, and remembers it.

    PySpark asks for the class `functions` with each column that it makes, and Java looks into 300 jars to find that a
    dozen packages have none of that name: a tenth of the processor time of a small job.
    """

    def known(names: Any, name: str) -> Any:
        found = ask(names, name)
        names.__dict__[name] = found
        return found

    return known


def of_a_small_job(**more: str) -> dict[str, str]:
    """The environment of a process that runs a job of a few hundred rows in a Spark of its own; `more` are settings.

    What the job itself sets stays.
    """
    settings = _SMALL_JOBS | more
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return os.environ | {
        JARS: str(Path(connector_jars()[0]).parent),
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
    }


def connector_jars() -> list[str]:
    """Spark's Kafka connector, as `scripts/dev/spark-jars` brings it."""
    folder = os.environ.get(JARS)
    if not folder:
        done = subprocess.run([SCRIPTS / "dev/spark-jars"], capture_output=True, text=True, check=True)
        folder = os.environ[JARS] = done.stdout.strip().splitlines()[-1]
    return [str(jar) for jar in sorted(Path(folder).glob("*.jar"))]
