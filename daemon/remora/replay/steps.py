"""The present step of what takes long, on standard error while it lasts."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

EVERY_S = 10.0
SILENT_S = 1.0
"""What a command may take that says nothing meanwhile."""


@contextmanager
def told(
    stream: TextIO | None = None, every_s: float = EVERY_S, after_s: float = 0.0
) -> Iterator[Callable[[str], None]]:
    """A function to be called with the name of each step as it begins.

    On a terminal one line shows the step, and goes when the block ends. Elsewhere each step makes a line, and one more
    each `every_s` seconds while it lasts, so that a log shows a job that is alive. What ends within `after_s` is not
    worth a line.
    """
    with (
        _own(stream or sys.stderr) as own,
        _on_terminal(own) if own.isatty() else _in_lines(own, every_s, after_s) as tell,
    ):
        yield tell


@contextmanager
def _own(stream: TextIO) -> Iterator[TextIO]:
    """The stream with a descriptor of its own, so that it stays where it is when standard error is put elsewhere."""
    try:
        descriptor = os.dup(stream.fileno())
    except OSError:  # a stream of nothing but memory
        yield stream
        return
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as own:
        yield own


@contextmanager
def _on_terminal(stream: TextIO) -> Iterator[Callable[[str], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda step: progress.update(task, description=step)


@contextmanager
def _in_lines(stream: TextIO, every_s: float, after_s: float) -> Iterator[Callable[[str], None]]:
    began, ended, lock, current = time.monotonic(), threading.Event(), threading.Lock(), ["starting"]

    def say() -> None:
        passed = int(time.monotonic() - began)
        print(f"remora: {passed // 60:02}:{passed % 60:02} {current[0]}", file=stream, flush=True)

    def tell(step: str) -> None:
        with lock:
            current[0] = step
            if not after_s:
                say()

    def repeat() -> None:
        wait_s = after_s or every_s
        while not ended.wait(wait_s):
            wait_s = every_s
            with lock:
                say()

    repeater = threading.Thread(target=repeat, name="steps", daemon=True)
    repeater.start()
    try:
        yield tell
    finally:
        ended.set()
        repeater.join()
