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

from remora.model.words import printable

EVERY_S = 10.0
_LOOK_S = 1.0
SILENT_S = 1.0
"""What a command may take that says nothing meanwhile."""

_shown: list[tuple[Callable[[str], None], list[str]]] = []
"""What the terminal shows, and how it is changed; empty while there is nothing to show."""


@contextmanager
def told(
    stream: TextIO | None = None,
    every_s: float = EVERY_S,
    after_s: float = 0.0,
    far: Callable[[], str] = lambda: "",
) -> Iterator[Callable[[str], None]]:
    """A function to be called with the name of each step as it begins. `far` says how far the step is, by now.

    On a terminal one line shows the step, and goes when the block ends. Elsewhere each step makes a line, and one more
    each `every_s` seconds while it lasts, so that a log shows a job that is alive. What ends within `after_s` is not
    worth a line.
    """
    with (
        _own(stream or sys.stderr) as own,
        _on_terminal(own, far) if own.isatty() else _in_lines(own, every_s, after_s, far) as tell,
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
def _on_terminal(stream: TextIO, far: Callable[[], str]) -> Iterator[Callable[[str], None]]:
    if _shown:  # a terminal has one line for all, which shows the step outside again afterwards
        tell, step = _shown[-1]
        before = step[0]
        try:
            yield tell
        finally:
            tell(before)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        current = ["starting"]

        def tell(step: str) -> None:
            current[0] = step
            progress.update(task, description=printable(step))

        _shown.append((tell, current))
        try:
            with again_and_again(_LOOK_S, lambda: progress.update(task, description=_line(current[0], far()))):
                yield tell
        finally:
            _shown.pop()


@contextmanager
def _in_lines(
    stream: TextIO, every_s: float, after_s: float, far: Callable[[], str]
) -> Iterator[Callable[[str], None]]:
    began, lock, current = time.monotonic(), threading.Lock(), ["starting"]

    def say(state: str) -> None:
        passed = int(time.monotonic() - began)
        print(f"remora: {passed // 60:02}:{passed % 60:02} {_line(current[0], state)}", file=stream, flush=True)

    def tell(step: str) -> None:
        with lock:
            current[0] = step
            if not after_s:
                say("")

    def repeat() -> None:
        state = far()
        with lock:
            say(state)

    with again_and_again(every_s, repeat, after_s):
        yield tell


@contextmanager
def again_and_again(every_s: float, what: Callable[[], None], after_s: float = 0.0) -> Iterator[None]:
    """Do it each `every_s` seconds in a thread while the block runs, the first time after `after_s` if that is set."""
    ended = threading.Event()

    def repeat() -> None:
        wait_s = after_s or every_s
        while not ended.wait(wait_s):
            wait_s = every_s
            what()

    repeater = threading.Thread(target=repeat, name="steps", daemon=True)
    repeater.start()
    try:
        yield
    finally:
        ended.set()
        repeater.join()


def _line(step: str, far: str) -> str:
    return printable(f"{step} ({far})" if far else step)
