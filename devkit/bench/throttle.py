"""Slows processes down: `throttle.py AT PART PERIOD PID...` stops and continues them again and again, until killed.

From AT on, in seconds of the wall clock, they run for PART of each PERIOD (seconds), as cpulimit does it and a quota of
a control group. A process of its own does that to the millisecond, which a thread of a busy program could not. Whoever
kills it continues them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from subprocess import Popen


@contextmanager
def throttled_from(at_s: float, pids: Sequence[int], part: float, period_s: float) -> Iterator[None]:
    """From `at_s` of the wall clock to the block's end, let these processes run for a part of each period only."""
    process = Popen([sys.executable, __file__, *map(str, (at_s, part, period_s, *pids))])
    try:
        yield
    finally:
        process.kill()
        process.wait()
        _send(signal.SIGCONT, pids)


def throttle(at_s: float, part: float, period_s: float, pids: Sequence[int]) -> None:
    """Does not return. What comes late is not made up for, so that no pause is shorter than it should be."""
    time.sleep(max(0.0, at_s - time.time()))
    while True:
        _send(signal.SIGSTOP, pids)
        time.sleep(period_s * (1 - part))
        _send(signal.SIGCONT, pids)
        time.sleep(period_s * part)


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    start_s, share, length_s = map(float, sys.argv[1:4])
    throttle(start_s, share, length_s, [int(each) for each in sys.argv[4:]])
