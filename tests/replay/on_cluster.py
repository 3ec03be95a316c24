"""Commands on a standalone Spark cluster: the driver is a process of its own, whose executors can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from devkit.clusters.spark_cluster import SparkCluster

ANY = "/proc"
"""A sign that is always there."""

_DRIVER = """
import os
import signal
import sys
import threading
import time
from pathlib import Path
from pyspark import SparkContext
from remora.__main__ import main

def executors(app):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\\0")
        except OSError:
            continue
        if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and app in words:
            yield int(path.parent.name)

def kill_within_a_stage(sign):
    while not next(Path("/").glob(sign), None):
        time.sleep(0.001)
    while True:
        time.sleep(0.001)
        context = SparkContext._active_spark_context
        if getattr(context, "_jsc", None) is None:  # one that is just being made has none yet
            continue
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage is not None and stage.numActiveTasks for stage in stages):
            for pid in executors(context.applicationId.encode()):
                os.kill(pid, signal.SIGKILL)
                print("killed", pid, file=sys.stderr, flush=True)
            return

sign = sys.argv.pop(1)
if sign:
    threading.Thread(target=kill_within_a_stage, args=(sign[1:],), daemon=True).start()
main()
"""
"""A command as the driver; where a sign is given, every executor of its is killed once a file is there that fits it, as
soon as one of them has a task."""


def on_the_cluster(
    cluster: SparkCluster, command: Sequence[str | Path], *, kills_at: str | None = ANY, code: int = 0
) -> str:
    """Run a job that ends with this code, and give what it said. All of its executors are killed once, at the first
    task behind a sign: a file that fits a pattern."""
    asked = [sys.executable, "-c", _DRIVER, kills_at or "", *map(str, command), "--master", cluster.master]
    done = subprocess.run(asked, env=cluster.env, capture_output=True, text=True, check=False)

    said = done.stdout + done.stderr
    assert ("killed" in done.stderr) == (kills_at is not None), f"{command}\n{said[-3000:]}"
    assert done.returncode == code, f"{command}\n{said[-3000:]}"
    return said
