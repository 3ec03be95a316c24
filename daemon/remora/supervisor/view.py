"""The host as others see it: what the admin pages say of all workers together, and the log of failing destinations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from prometheus_client import Metric

from remora import __version__
from remora.metrics import Telemetry
from remora.model.health import Health, Use
from remora.policy.shaping.credit_flows import CreditFlow
from remora.policy.status import readiness
from remora.policy.status.condition import Outage
from remora.policy.status.readiness import HostReadiness
from remora.process import pipe
from remora.process.alone import Alone
from remora.process.pipe import AskedFor, Family
from remora.supervisor.child import Child
from remora.supervisor.merged import WorkerAnswer, failing_now, merged_line, merged_status
from remora.supervisor.page import SUPERVISOR, MetricsPage

T = TypeVar("T")

ANSWER_S = 3.0
"""How long a worker may take to answer; then the others' answers have to do."""

MOST_LINES = 20
"""Destinations that are named in one interval; those with the most topics come first."""


class WorkersView:
    """Asks the workers, and puts together what they say."""

    def __init__(self, telemetry: Telemetry, workers: int, alone: Alone) -> None:
        self.children: Sequence[Child] = ()
        """The workers that run, ready or not."""
        self.has_started = False
        self.stops = False
        self.drains = False
        self._workers = workers
        self._telemetry = telemetry
        self._alone = alone
        self._page = MetricsPage()
        self._reading = asyncio.Lock()

    def ended(self, cookie: str) -> None:
        """A worker has ended; what it counted stays."""
        self._page.ended(cookie)

    def line(self) -> str:
        """The one line of `systemctl status`."""
        line = merged_line([each.heartbeat for each in self.children if each.heartbeat], self._workers)
        return f"draining; {line}" if self.stops or self.drains else line

    def live(self) -> Health:
        """Whether the supervisor works: it answers, so it does. Workers that do not are its own affair."""
        return Health(ok=True)

    async def readiness(self, what: Callable[[HostReadiness], Health]) -> Health:
        """The answer to one of the questions of `policy.readiness`."""
        return what(await self._host())

    async def status(self) -> dict[str, Any]:
        """What `remora status` shows."""
        host, answers = await asyncio.gather(self._host(), self._answers())
        health = readiness.ready(host)
        return {
            "version": __version__,
            "ready": health.ok,
            "reasons": list(health.reasons),
            "ready_to_ingest": readiness.ready_to_ingest(host),
            "ready_to_deliver": readiness.ready_to_deliver(host),
            "draining": self.stops or self.drains,
            "workers_wanted": self._workers,
            **merged_status(answers),
        }

    async def _answers(self) -> list[WorkerAnswer]:
        return [
            WorkerAnswer(
                child.number,
                child.pid,
                child.cookie,
                child.heartbeat.held_shards if child.heartbeat else 0,
                self._read(child, body, dict[str, Any]),
            )
            for child, body in await self._ask("status")
        ]

    async def outages(self) -> list[Outage]:
        """The destinations that fail now, of those workers that answer."""
        return failing_now(await self._answers())

    async def waiting_for_credit(self) -> dict[tuple[str, str], int]:
        """How many listings wait for credit, by scope and priority, of those workers that answer."""
        found: dict[tuple[str, str], int] = {}
        for child, body in await self._ask("status"):
            for scope, priority, count in (self._read(child, body, dict[str, Any]) or {}).get("shaped", ()):
                found[scope, priority] = found.get((scope, priority), 0) + count
        return found

    async def flows(self) -> dict[int, list[CreditFlow] | None]:
        """What became of requests for credit, by the number of each worker; None of one that does not answer."""
        answers = await self._ask("flows")
        said = {child.number: self._read(child, body, list[CreditFlow]) for child, body in answers}
        return {each.number: said.get(each.number) for each in self.children}

    async def addresses(self) -> dict[str, tuple[str, ...]]:
        """The addresses of hosts, by name, as the workers have looked them up; all of them where workers differ."""
        found: dict[str, set[str]] = {}
        for child, body in await self._ask("addresses"):
            for name, addresses in (self._read(child, body, dict[str, list[str]]) or {}).items():
                found.setdefault(name, set()).update(addresses)
        return {name: tuple(sorted(found[name])) for name in sorted(found)}

    async def metrics(self) -> list[Metric]:
        """One page for all workers. Of one that does not answer in time, what it said last is shown.

        One reading at a time: were answers of two taken in another order than they were asked for, the older one would
        look as though its worker had begun to count anew, and all that it had counted would be on the page twice.
        """
        async with self._reading:
            return await self._read_metrics()

    async def _read_metrics(self) -> list[Metric]:
        host, answers = await asyncio.gather(self._host(), self._ask("metrics"))
        self._telemetry.ready(readiness.ready(host).ok, readiness.ready_to_deliver(host).ok)
        now = asyncio.get_running_loop().time()
        alive = {each.cookie for each in self.children}
        for child, body in answers:
            families = self._read(child, body, list[Family])
            if families is not None and child.cookie in alive:  # else it has ended meanwhile, and all of it is counted
                self._page.take(child.cookie, families, now)
        self._page.take(SUPERVISOR, pipe.families(self._telemetry.registry), now)
        return self._page.metrics(now)

    async def _host(self) -> HostReadiness:
        answers = await self._ask("use")
        workers = [self._read(child, answer, Use) for child, answer in answers]
        return HostReadiness(self.has_started, workers, stops=self.stops, drains=self.drains)

    async def _ask(self, what: AskedFor) -> list[tuple[Child, bytes | None]]:
        # Not only those that are ready: what a worker waits for at the start is worth knowing, too.
        asked = [each for each in self.children if each.heartbeat is not None]
        return list(zip(asked, await asyncio.gather(*(self._ask_one(each, what) for each in asked)), strict=True))

    async def _ask_one(self, child: Child, what: AskedFor) -> bytes | None:
        """A worker's answer. One that cannot be asked is silent: the others' answers have to do."""
        with self._alone.step(f"question to worker {child.number}"):
            return await child.ask(what, ANSWER_S)
        return None

    def _read(self, child: Child, body: bytes | None, form: type[T]) -> T | None:
        """What a worker said; None where it said nothing in time, or nothing of this form."""
        if body:
            with self._alone.step(f"answer of worker {child.number}"):
                return msgspec.json.decode(body, type=form)
        return None


class OutageReport:
    """A line for each destination that fails, once in `log.repeat_interval`, however many topics lie behind it."""

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
