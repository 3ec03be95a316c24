"""Sessions of jobs, and what the small files say of wrong contents."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from remora.cli import group
from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayError, ReplayRefused, named_by_path
from remora_pipeline.replay.pipeline.directory import LandedDirectory
from remora_pipeline.replay.session import ONCE, in_one_line, reason, refuse_retries, session
from remora_pipeline.replay.topic_identity import TopicIdentity

pytestmark = pytest.mark.spark


def test_a_session_that_is_there_is_used_and_left(spark: SparkSession) -> None:
    """A job within somebody's session uses that one, and does not stop it."""
    with session("test") as found:
        assert found is spark
    assert spark.range(3).count() == 3


async def test_a_session_of_another_thread_is_used_and_left(spark: SparkSession) -> None:
    """A job that runs in a thread of its own uses the session of this process too, and does not stop it."""

    def job() -> int:
        with session("test") as found:
            assert found is spark
            return found.range(3).count()

    assert await asyncio.to_thread(job) == 3
    assert spark.range(3).count() == 3


def test_tasks_run_python_over_arrow(spark: SparkSession) -> None:
    """A barrier stage hands Arrow batches to Python, one partition to each task, without pandas."""

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([2 * n for n in batch.column(0).to_pylist()])], names=["id"])

    found = spark.range(0, 10, numPartitions=2).mapInArrow(doubled, "id long", barrier=True)

    assert sorted(row.id for row in found.collect()) == list(range(0, 20, 2))


@pytest.mark.parametrize("key", ONCE)
def test_a_session_that_sends_again_is_refused(spark: SparkSession, key: str) -> None:
    """A session in which Spark repeats failed tasks or stages by itself is refused by the name of the setting."""

    class Conf:
        def get(self, name: str, default: str | None = None) -> str | None:
            return "4" if name == key else spark.conf.get(name, default)

    class Session:
        conf = Conf()

    refuse_retries(spark)
    with pytest.raises(ReplayRefused, match=key):
        refuse_retries(Session())  # type: ignore[arg-type]  # a session with other settings would need a process


def test_a_java_that_goes_away_within_a_call_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A Java that resets its connection before it answers makes an error, and no traceback in the log."""
    with socket.create_server(("127.0.0.1", 0)) as java:

        def reset() -> None:
            connection, _ = java.accept()
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        thread = threading.Thread(target=reset)
        thread.start()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=java.getsockname()[1]))
        with caplog.at_level(logging.ERROR), in_one_line(), pytest.raises(Py4JError):
            gateway.jvm.java.lang.System.nanoTime()
        thread.join()

    assert caplog.text == ""


@pytest.mark.parametrize("text", [b"", b"{", b'{"name": "f"}', b'[{"name": "f", "from_us": "1", "to_us": 2}]'])
def test_a_small_file_that_is_wrong_is_named(tmp_path: Path, text: bytes) -> None:
    """A file that is not what it should be is refused by its name, and so is one that is missing."""
    path = tmp_path / "faults.json"
    path.write_bytes(text)

    with pytest.raises(ReplayRefused, match=r"faults\.json"):
        layout.read(path, list[layout.Fault])
    with pytest.raises(ReplayRefused, match=r"run\.json"):
        layout.read(layout.RunDirectory(tmp_path).run, layout.ReplayRun)


def test_small_files_come_back_as_they_were_written(tmp_path: Path) -> None:
    """What is written is read as the same value, and twice the same value gives the same bytes."""
    faults = [layout.Fault("broker killed", 1, 5), layout.Fault("worker killed", 7, 7)]
    for name in ("a", "b"):
        layout.write(tmp_path / name, faults)

    assert layout.read(tmp_path / "a", list[layout.Fault]) == faults
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


TASK = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
KeyError: 'k: v'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "records.py", line 186, in _time
ValueError: invalid literal: 'abc'

	at org.apache.spark.api.python.BasePythonRunner
	at java.base/java.lang.Thread.run(Thread.java:840)

=== Streaming Query ===
Identifier: remora-land [id = 1, runId = 2]
Current Committed Offsets: {}
"""
DISK = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "java_gateway.py", line 1362, in __call__
py4j.protocol.Py4JJavaError: An error occurred while calling o1280.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure
	at org.apache.spark.Some.thing(Some.scala:1)
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows
	... 17 more
Caused by: java.io.IOException: No space left on device
	at java.base/java.io.FileOutputStream.writeBytes(Native Method)

=== Streaming Query ===
Identifier: remora-land [id = 1, runId = 2]
"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (Py4JError(TASK), "Spark: ValueError: invalid literal: 'abc'"),
        (Py4JError(DISK), "Spark: IOException: No space left on device"),
        (Py4JError("remora_pipeline.replay.errors.ReplayError: x.json: is torn\nmore"), "x.json: is torn"),
        (Py4JError("An error occurred while calling o1.x. Trace:\n: some.Cause\n"), "Spark: some.Cause"),
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's Java has gone"),
        (Py4JError("... Py4JNetworkError: Answer from Java side is empty"), "Spark's Java has gone"),
        (ConnectionRefusedError(111, "Connection refused"), "Spark's Java has gone"),
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(raised: Exception, said: str) -> None:
    """Whatever Spark adds to it, the last cause is told: that of a task, of Java, of a file, or that Java has gone."""
    assert reason(raised).startswith(said)
    assert "\n" not in reason(raised)


def test_what_the_file_system_refuses_is_named(tmp_path: Path) -> None:
    """An error with a file names it, one without names what was asked for, and one that is of no file passes."""
    (tmp_path / "file").touch()
    with pytest.raises(ReplayError, match=r"file/x: Not a directory"), named_by_path("other"):
        (tmp_path / "file" / "x").mkdir()
    with pytest.raises(ReplayError, match="other: No space left on device"), named_by_path("other"):
        raise OSError(28, "No space left on device")
    for passing in (BrokenPipeError(32, "Broken pipe"), TimeoutError()):
        with pytest.raises(type(passing)), named_by_path("other"):
            raise passing


@pytest.mark.parametrize(
    "options",
    [
        ["pipeline", "land", "--bootstrap", "127.0.0.1:1", "--topic", "t", "--out"],
        ["pipeline", "inventory", "{landed}", "--out"],
    ],
)
def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """A command whose output cannot be written ends with the name of what is in the way, and no traceback."""
    landed = LandedDirectory(tmp_path / "landed")
    landed.path.mkdir()
    landed.bind(tmp_path / "checkpoint", "t", None, None)
    (tmp_path / "file").touch()

    async def identified(*_: object) -> TopicIdentity:
        return TopicIdentity(None, None)

    monkeypatch.setattr("remora_pipeline.replay.pipeline.land.identify", identified)
    argv = [option.format(landed=landed.path) for option in options]

    with pytest.raises(ReplayError, match=r"file/out.*: Not a directory") as told:
        CliRunner().invoke(group, [*argv, str(tmp_path / "file" / "out")], catch_exceptions=False)
    assert "\n" not in str(told.value)


def test_the_daemon_loads_no_spark() -> None:
    """The command line and a worker process are loaded without Spark, Arrow, numpy or matplotlib."""
    code = (
        "import sys, remora.cli.run, remora.worker.process, remora.client;"
        "import remora_pipeline.cli.replay, remora_pipeline.cli.pipeline;"
        "print({'pyspark', 'pyarrow', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


_STARTING = """
import subprocess, sys
from remora_pipeline.replay.chatter import kept_back

child = "echo fetched >&2; echo fetching; read line; echo it hurts >&2"
with kept_back():
    started = subprocess.Popen(["sh", "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout.readline() == b"fetching\\n"
    subprocess.run(["sh", "-c", "echo and more >&2"], check=True)
    if sys.argv[1] == "fails":
        raise SystemExit("cannot start")
print("started", file=sys.stderr)
started.communicate(b"go on\\n")
while not sys.stdin.readline():
    pass
"""
"""A program that starts one which talks, and goes on to talk; it ends when its own output was read."""


def test_what_java_says_while_it_starts_is_kept_back() -> None:
    """Of a session that starts, nothing is seen of what was fetched; what its Java says later is seen."""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTING, "starts"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]
        process.communicate("enough\n")

    assert sorted(lines) == ["it hurts\n", "started\n"]
    assert process.returncode == 0


def test_what_java_says_is_told_when_it_does_not_start() -> None:
    """Where the session does not start, all that was said is there."""
    done = subprocess.run([sys.executable, "-c", _STARTING, "fails"], stderr=subprocess.PIPE, text=True, check=False)

    assert sorted(done.stderr.splitlines()) == ["and more", "cannot start", "fetched"]
    assert done.returncode == 1
