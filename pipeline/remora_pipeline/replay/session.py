"""The Spark session of a job: the caller's where there is one, else a local one with settings that replay needs."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from subprocess import TimeoutExpired

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from remora_pipeline.replay.chatter import kept_back
from remora_pipeline.replay.errors import ReplayError, ReplayRefused

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's own Kafka connector, as `spark.jars.packages` names it."""

JARS = "REMORA_SPARK_JARS"
"""A folder with the connector's jars, for hosts that cannot fetch packages."""

ONCE = {"spark.task.maxFailures": "1", "spark.stage.maxConsecutiveAttempts": "1", "spark.speculation": "false"}
"""For the job that sends: nothing is sent a second time behind the journal's back. `refuse_retries` sees to it."""

AGAIN = ONCE | {"spark.task.maxFailures": "4", "spark.stage.maxConsecutiveAttempts": "4"}
"""For all others, which only read, and write files: a cluster may lose an executor. What a failed task has written is
in no table."""

_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that has little to compute: no optimising compiler and no collector run beside the tasks."""

_RAISED = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(\S.*)", re.MULTILINE)
"""What stands behind the indented lines of a traceback of Python's."""

_CAUSED = re.compile(r"^Caused by: (?:\w+\.)*(\S.*)", re.MULTILINE)
_JAVA_ENDS_S = 30.0


class _NotOfPy4J(logging.Filter):
    """Drops what Py4J writes to the root logger, with a traceback, of a signal or of a Java that goes away."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = ("KeyboardInterrupt while sending command.", "Exception while sending command.")
        return record.msg not in said


_NOT_OF_PY4J = _NotOfPy4J()

_NO_ANSWER = "Answer from Java side is empty"

_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # More partitions than slots are refused at once, and not after ten minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2",
}

_EVERYWHERE = {
    "spark.ui.showConsoleProgress": "false",
    # `run` needs exactly its parts as tasks. Jobs that write tables switch it on (pipeline/spark.py).
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # On a cluster a minute goes by first, since workers come one after the other.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "60",
    "spark.barrier.sync.timeout": "60",
}


@contextmanager
def session(
    name: str,
    *,
    master: str | None = None,
    kafka: bool = False,
    light: bool = False,
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session for one job, stopped at the end unless it was there before.

    `master` is Spark's, by default what spark-submit gave, else all processors of this host. With `kafka`, Spark's
    connector is brought along: from the folder that REMORA_SPARK_JARS names, else by Spark itself as a package.
    `memory` is what a local Spark may take. `light` is for a job that has little to compute: Java compiles less, which
    suits what must be punctual, and what would end before its compilers do. A task that fails is tried again, unless
    `settings` have `ONCE`.
    """
    if (running := _running()) is not None:
        with in_one_line():
            yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"remora {name}")
    local = master is None and "SPARK_ENV_LOADED" not in os.environ
    wanted = dict(_EVERYWHERE)
    if local or (master or "").startswith("local"):
        cores = str(os.cpu_count() or 1)
        builder = builder.master(master or f"local[{cores}]")
        wanted |= _LOCAL | {"spark.sql.shuffle.partitions": cores, "spark.default.parallelism": cores}
        wanted["spark.driver.extraJavaOptions"] = f"{_LOGGING} {_LIGHT}" if light else _LOGGING
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif master:
        builder = builder.master(master)
    if memory is not None:
        wanted["spark.driver.memory"] = memory
    for key, value in (wanted | AGAIN | (_connector() if kafka else {}) | dict(settings or {})).items():
        builder = builder.config(key, value)
    _hush_the_accumulators()
    with in_one_line(), kept_back():
        spark = builder.getOrCreate()
    try:
        with in_one_line():
            yield spark
    except (Exception, KeyboardInterrupt) as exc:
        if isinstance(exc, KeyboardInterrupt) or isinstance(exc.__context__, KeyboardInterrupt):
            _end_java()
        raise
    finally:
        with suppress(Py4JError, ConnectionError):  # the Java may have gone
            spark.stop()


def _end_java() -> None:
    """End Spark's Java by a signal: it stops its jobs and removes its files.

    A signal that interrupts a call leaves its answer in the connection, and the next call would take that for its own.
    """
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001  # the only way; None where Java started us
    if process is not None:
        process.terminate()
        with suppress(TimeoutExpired):
            process.wait(_JAVA_ENDS_S)


@contextmanager
def in_one_line() -> Iterator[None]:
    """Make a ReplayError of whatever Spark raises: what went wrong, without the way there."""
    PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True
    # It writes tracebacks of what is raised as well, and of each try to reach a Java that has gone.
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_NOT_OF_PY4J)  # once, however often this is entered
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as exc:
        raise ReplayError(reason(exc)) from exc


def reason(exc: Exception) -> str:
    """What went wrong, in one line: of Spark, of its Java, or of a file."""
    if isinstance(exc, Py4JNetworkError | ConnectionError) or _NO_ANSWER in str(exc):
        return "Spark's Java has gone: it was killed or ended by itself; what it did can be done again"
    if isinstance(exc, OSError):
        return f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc)
    return _told(str(exc))


def _told(text: str) -> str:
    """What a task of ours had to say, without more; else what Spark says of it."""
    if ours := re.search(r"^remora(?:_pipeline)?\.[\w.]+: (.+)$", text, re.MULTILINE):
        return ours[1]
    if "SPARK-24819" in text:
        return "there are more parts than Spark can run tasks side by side: give less with --parts"
    return f"Spark: {_last_words(text)}"


def _last_words(text: str) -> str:
    """What a task of Python raised, else what Java gives as the last cause, else the first line."""
    raised = [each for each in _RAISED.findall(text) if not each.startswith("py4j.")]
    if raised:
        return str(raised[-1])
    if causes := _CAUSED.findall(text):
        return str(causes[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        return lines[1].removeprefix(": ")
    return lines[0] if lines else "failed without a word"


def _hush_the_accumulators() -> None:
    """Keep PySpark's server of accumulators from writing a traceback when Java goes away: that is told once."""

    def say_nothing(_server: BaseServer, _request: object, _client: object) -> None:
        return

    for server in (AccumulatorTCPServer, AccumulatorUnixServer):
        server.handle_error = say_nothing  # type: ignore[assignment, method-assign]  # there is no setting


def refuse_retries(spark: SparkSession) -> None:
    """Raise ReplayRefused for a session that would send again what a failed task has sent already."""
    for key, needed in ONCE.items():
        found = spark.conf.get(key, None)
        if found != needed:
            raise ReplayRefused(
                f"{key} is {found or 'not set'}, and must be {needed}: Spark would send again what was sent already"
            )


def _running() -> SparkSession | None:
    """The session of this process; of any thread, so that a job in another one does not stop it for all."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _connector() -> dict[str, str]:
    folder = os.environ.get(JARS)
    if not folder:
        return {"spark.jars.packages": CONNECTOR}
    jars = sorted(map(str, Path(folder).glob("*.jar")))
    if not jars:
        raise ReplayRefused(f"{JARS}: there are no jars in {folder}")
    return {"spark.jars": ",".join(jars)}
