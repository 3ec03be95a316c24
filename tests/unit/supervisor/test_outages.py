"""What the supervisor's log says of destinations that fail, and how often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

import pytest

from devkit.clock import in_virtual_time
from remora.metrics import Telemetry
from remora.policy.status.condition import Condition, FailingShard, Outage, State, outages
from remora.supervisor.view import MOST_LINES, OutageReport, WorkersView


class Failing:
    """What the workers' view says of destinations: each fails as many topics as its number is."""

    def __init__(self, destinations: int) -> None:
        self.destinations = destinations

    async def outages(self) -> Sequence[Outage]:
        """The worst first."""
        away = Condition(State.RETRYING, "away", 1.0)
        return outages(
            [
                FailingShard(f"t{number}-{topic}", f"kafka://b{number}:9092", "", away)
                for number in range(1, self.destinations + 1)
                for topic in range(number)
            ],
            {},
        )


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """The destinations that have a line so far, with their topics."""
    fields = [record.__dict__["fields"] for record in caplog.records]
    caplog.clear()
    return [(each["destination"], each["topics"]) for each in fields]


def test_each_destination_has_one_line_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    """However many topics it fails, a destination has one line in each `log.repeat_interval`, and none once it works;
    an interval that a reload changes holds from the next one on."""
    caplog.set_level(logging.WARNING, logger="remora")

    @in_virtual_time
    async def run() -> None:
        view, telemetry = Failing(3), Telemetry(repeat_interval_s=60.0)
        report = asyncio.create_task(OutageReport(cast(WorkersView, view), telemetry).run())
        await asyncio.sleep(59)
        assert said(caplog) == []
        await asyncio.sleep(2)
        assert said(caplog) == [("b3:9092", 3), ("b2:9092", 2), ("b1:9092", 1)]
        telemetry.repeats.interval_s = 10.0
        view.destinations = 1
        await asyncio.sleep(90)
        assert said(caplog) == [("b1:9092", 1)] * 4
        view.destinations = 0
        await asyncio.sleep(60)
        assert said(caplog) == []
        report.cancel()

    run()


def test_the_worst_destinations_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Of very many destinations those that fail the most topics have lines."""
    caplog.set_level(logging.WARNING, logger="remora")

    asyncio.run(OutageReport(cast(WorkersView, Failing(MOST_LINES + 5)), Telemetry()).report())

    assert said(caplog) == [(f"b{number}:9092", number) for number in range(MOST_LINES + 5, 5, -1)]
