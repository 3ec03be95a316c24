"""Says in the log which destinations fail, one line for each and interval, however many topics lie behind it."""

from __future__ import annotations

import asyncio

from remora.metrics import Telemetry
from remora.supervisor.view import WorkersView

MOST_LINES = 20
"""Destinations that are named in one interval; those with the most topics come first."""


class OutageReport:
    """See the module. The interval is `log.repeat_interval`."""

    def __init__(self, view: WorkersView, telemetry: Telemetry) -> None:
        self._view = view
        self._telemetry = telemetry

    async def run(self) -> None:
        """Report once an interval."""
        while True:
            await asyncio.sleep(self._telemetry.repeats.interval_s)
            await self.report()

    async def report(self) -> None:
        """Write a line for each destination that fails now."""
        for each in (await self._view.outages())[:MOST_LINES]:
            self._telemetry.destination_failing(each)
