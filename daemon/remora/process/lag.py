"""How late the event loop wakes up: the first thing to look at when everything is slow at once."""

from __future__ import annotations

import asyncio

from remora.metrics import Telemetry


async def measure_lag(telemetry: Telemetry, interval_s: float = 1.0) -> None:
    """Report the loop's lag every `interval_s` until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        telemetry.loop_lag(max(0.0, loop.time() - due))
