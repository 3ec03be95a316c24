"""How far Spark is with what it does at present, asked of its own status store."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunningStage:
    """A stage of Spark's that runs: its tasks, how many of them are done, the rows that they have read, and how long it
    has run."""

    number: int
    tasks: int
    done: int
    rows: int
    ran_s: float

    def __str__(self) -> str:
        """In words: tasks, rows, rate, and the time left as far as tasks tell it."""
        told = [f"stage {self.number}: {self.done} of {self.tasks} tasks"]
        if self.rows:
            told += [f"{self.rows:,} rows", f"{self.rows / max(self.ran_s, 0.001):,.0f}/s"]
        if self.done:
            left_s = int(self.ran_s * (self.tasks - self.done) / self.done)
            told.append(f"about {left_s // 60:02}:{left_s % 60:02} left")
        return ", ".join(told)


def running_stage() -> str:
    """The stage that runs now, in words; nothing while none does, or before Spark has started. Of any thread."""
    context = getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return ""
    # Spark ends while it is asked, and then it does not matter how: the job itself tells what went wrong.
    with suppress(Exception):
        store = context._jsc.sc().statusStore()  # noqa: SLF001  # Python's own tracker knows no rows
        return str(_oldest(store.activeStages()))
    return ""


def _oldest(stages: Any) -> RunningStage | str:
    found = [stages.apply(place) for place in range(stages.size())]
    begun = [each for each in found if each.submissionTime().isDefined()]
    if not begun:
        return ""
    stage = min(begun, key=lambda each: each.stageId())
    return RunningStage(
        number=stage.stageId(),
        tasks=stage.numTasks(),
        done=stage.numCompleteTasks(),
        rows=stage.inputRecords() + stage.shuffleReadRecords(),
        ran_s=time.time() - stage.submissionTime().get().getTime() / 1000,
    )
