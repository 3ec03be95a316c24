"""The end of a job by SIGTERM: what it opened is closed, and one line says so."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from remora_pipeline.replay.errors import ReplayError

ENDED = 128 + signal.SIGTERM
"""What a shell gives for a program that SIGTERM has ended."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """While the block runs SIGTERM does what Ctrl-C does, and then ends the process with ENDED and a line.

    The line has what the block makes of it. Only in the main thread, which gets Python's signals; elsewhere this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_asked = False

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield
    except (Exception, KeyboardInterrupt) as exc:
        if not is_asked:
            raise
        told = f": {exc}" if isinstance(exc, ReplayError) else "; it can be run again"
        sys.stderr.write(f"remora: ended by SIGTERM{told}\n")
        sys.exit(ENDED)
    finally:
        signal.signal(signal.SIGTERM, before)
