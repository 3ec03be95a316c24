"""Waits for a signal, and how long a wait may last on this machine.

No wait here measures anything: each ends what hangs. So its bound grows with how slow the machine is, which a short
calibration finds once for a run: fixed work, timed by the clock on the wall. `DEVKIT_SLOWNESS` hands the result to
processes that a run starts, and sets it by hand.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

VARIABLE = "DEVKIT_SLOWNESS"

_LOOPS = 400_000
_QUIET_S = 0.02
"""The calibration's time on a quiet core of 2023."""

_SAMPLES = 5
_MOST = 20.0


def slowness() -> float:
    """Returns how many times slower than a quiet core this machine works, 1 to 20; measured once for a run."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{min(_MOST, max(1.0, _calibrated())):.1f}"
    return float(os.environ[VARIABLE])


def _calibrated() -> float:
    began = time.monotonic()
    for _ in range(_SAMPLES):
        number = 0
        for each in range(_LOOPS):
            number += each & 1
    return (time.monotonic() - began) / _SAMPLES / _QUIET_S


PATIENT_S = 120.0 * slowness()
"""How long a test waits at least for what is bound to come."""


LOOK_S, MORE_S = 0.02, 0.2


def pause_s(look_s: float) -> float:
    """Returns the seconds to wait before the next look at a condition; the last look took `look_s`.

    Looks take a fifth of a core, the rest is for what is waited for. One that takes long, as on a busy machine, is
    followed by a pause that is hardly longer: what has come true in it would be seen late.
    """
    return max(LOOK_S, min(4 * look_s, look_s + MORE_S))


What = str | Callable[[], str]


@overload
async def until(condition: Callable[[], Awaitable[T]], what: What = "", within_s: float = PATIENT_S) -> T: ...


@overload
async def until(condition: Callable[[], T], what: What = "", within_s: float = PATIENT_S) -> T: ...


async def until(condition: Callable[[], Any], what: What = "", within_s: float = PATIENT_S) -> Any:
    """Returns the condition's first true value; polls it until the deadline, and once behind it.

    A process that stood still meanwhile may find the deadline past and the condition true. Raises TimeoutError with
    `what` was waited for.
    """
    deadline, is_over = time.monotonic() + max(within_s, PATIENT_S), False
    while True:
        looked_at = time.monotonic()
        answer = condition()
        if value := await answer if inspect.isawaitable(answer) else answer:
            return value
        if is_over:
            raise TimeoutError(f"{what() if callable(what) else what or 'the condition'}: not within {within_s:.0f} s")
        await asyncio.sleep(pause_s(time.monotonic() - looked_at))
        is_over = time.monotonic() > deadline
