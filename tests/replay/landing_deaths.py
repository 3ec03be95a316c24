"""`remora pipeline land` as a process that kills itself at one of its steps.

`python landing_deaths.py POINT DIED KILL land ...` runs the command with these arguments. Each step counts twice,
before it and behind it; at the POINT-th count the process writes which one that is into the file DIED and is gone, with
its Java (KILL is `group`) or without.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile

from remora.cli import group
from remora.replay.pipeline import directory, land
from remora.replay.pipeline.iceberg import land as lake_land

Step = tuple[Any, str]
"""Where a function is found, and its name there."""

COMMITS: tuple[Step, ...] = ((lake_land, "append"),)
LAKE_STEPS: tuple[Step, ...] = ((lake_land, "write"), *COMMITS)
CATALOG_STEPS: tuple[Step, ...] = ((PyArrowFile, "create"), (SqlCatalog, "commit_table"))
FOLDER_STEPS: tuple[Step, ...] = (
    (land._Sink, "land"),
    (land._Sink, "_staged"),
    (directory, "write"),
    (os, "replace"),
    (shutil, "rmtree"),
)


def doom(steps: Iterable[Step], point: int, die: Callable[[str], object], put: Callable[..., None] = setattr) -> None:
    """Let `die` be called at the point-th count of these steps; `put` replaces a function."""
    count = itertools.count()
    for place, name in steps:
        put(place, name, _counted(getattr(place, name), name, lambda told: next(count) == point and die(told)))


def _counted(call: Callable[..., Any], name: str, seen: Callable[[str], object]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen(f"before {name}")
        answer = call(*args, **kwargs)
        seen(f"behind {name}")
        return answer

    return wrapper


def _main(point: int, died: Path, kill: str, arguments: list[str]) -> None:
    def die(told: str) -> None:
        died.write_text(told)
        (os.killpg if kill == "group" else os.kill)(os.getpid(), signal.SIGKILL)

    doom(FOLDER_STEPS if "--out" in arguments else LAKE_STEPS + CATALOG_STEPS, point, die)
    group(["pipeline", *arguments])


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
