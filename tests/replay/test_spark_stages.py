"""How far a job of Spark's is, as its progress line says it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.waits import until
from remora.replay.spark_stages import RunningStage, running_stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (RunningStage(3, 8, 0, 0, 10.0), "stage 3: 0 of 8 tasks"),
        (
            RunningStage(3, 8, 2, 1_200_000, 30.0),
            "stage 3: 2 of 8 tasks, 1,200,000 rows, 40,000/s, about 01:30 left",
        ),
        (RunningStage(3, 8, 8, 0, 30.0), "stage 3: 8 of 8 tasks, about 00:00 left"),
    ],
)
def test_a_stage_in_words(stage: RunningStage, expected: str) -> None:
    """Tasks, rows and rate, and the time left once tasks are done."""
    assert str(stage) == expected


def test_the_stage_that_runs_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """While tasks run, another thread learns of how many there are and how many are done; before and after, nothing."""
    gate = str(tmp_path / "gate")

    def wait(number: int) -> None:
        import os
        import time

        while number and not os.path.exists(gate):
            time.sleep(0.01)

    assert running_stage() == ""
    job = threading.Thread(target=lambda: spark.sparkContext.parallelize(range(3), 3).foreach(wait))
    job.start()
    try:
        asyncio.run(until(lambda: "1 of 3 tasks" in running_stage()))
    finally:
        Path(gate).touch()
        job.join()
    assert running_stage() == ""
