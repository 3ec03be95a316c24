"""What the supervisor makes of the workers' answers, whichever way these come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec
from prometheus_client import Metric

from remora.metrics import Telemetry
from remora.model.health import Use
from remora.process.alone import Alone
from remora.process.pipe import AskedFor, Family, Heartbeat, Sample
from remora.supervisor.child import Child
from remora.supervisor.view import WorkersView


class CountingWorker:
    """A worker that counts ten more before each question, and answers the first one only after later ones."""

    cookie = "remora/h/b/w"
    number = 1
    heartbeat = Heartbeat(is_alive=True, store="", held_shards=0, failing_shards=0)

    def __init__(self) -> None:
        self.counted = 0

    async def ask(self, what: AskedFor, _: float) -> bytes:
        """What it has counted when it is asked."""
        if what != "metrics":
            return msgspec.json.encode(Use())
        self.counted += 10
        family = Family("c", "counter", "text", [Sample("c_total", {}, self.counted)])
        for _turn in range(100 if self.counted == 10 else 1):
            await asyncio.sleep(0)
        return msgspec.json.encode([family])


def count_on(page: Sequence[Metric]) -> float:
    """The worker's counter on a page."""
    return next(sample.value for metric in page for sample in metric.samples if sample.name == "c_total")


def test_what_is_counted_once_is_on_the_page_once_however_many_read_it() -> None:
    """Two readers at once, whose answers of a worker come in the opposite order, get each count once; and so does
    who reads after them."""
    telemetry = Telemetry()
    view = WorkersView(telemetry, 1, Alone(telemetry.crashed))
    view.children = [cast(Child, CountingWorker())]

    async def run() -> list[float]:
        pages = await asyncio.gather(view.metrics(), view.metrics())
        return [count_on(each) for each in (*pages, await view.metrics())]

    assert asyncio.run(run()) == [10, 20, 30]


def test_the_status_says_how_many_workers_there_are_to_be() -> None:
    """Also while one of them is not there, and so is not among those that it shows."""
    telemetry = Telemetry()

    shown = asyncio.run(WorkersView(telemetry, 2, Alone(telemetry.crashed)).status())

    assert (shown["workers_wanted"], shown["workers"]) == (2, [])
