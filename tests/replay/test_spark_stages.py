"""How far a job of Spark's is, as its progress line says it."""

from __future__ import annotations

import pytest

from remora_pipeline.replay.spark_stages import RunningStage


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
