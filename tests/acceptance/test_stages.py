"""A real daemon names the stage that became slow under load: the receiver's, or the disk's below the store."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from acceptance.test_ingest_daemon import ask
from acceptance.test_prometheus_scrape import Api, prometheus, queries_by_panel
from devkit.clusters.slow_syncs import SlowSyncs
from devkit.processes.daemon import Daemon, running_daemon
from devkit.processes.ports import free_port
from devkit.processes.programs import program
from devkit.receivers.receiver import OK, Arrival, Plan, Reply, receiving
from devkit.waits import slowness
from remora.model.exits import Exit
from remora.policy.status.stages import LEAST_GROWTH_S, WAITS_FOR, WHAT_TO_DO, EventStage
from support.ingest import records

pytestmark = pytest.mark.full("minutes of load; the engine's tests name what is slow on the virtual clock")

WITHIN_S = 30.0
"""How soon a stage has to be named, on a machine that does nothing else."""

DELIVERY, COMMIT = (f"Stages of {what}, p50 one above the other" for what in ("delivery", "a commit"))
RATE = "20s"
"""What Grafana puts in for $__rate_interval where a Prometheus asks each 5 s: four times that."""

Row = Mapping[str, float]
"""A panel of the dashboard: seconds by stage."""


@dataclass(frozen=True)
class Watched:
    """A daemon under load, and the Prometheus that scrapes it."""

    daemon: Daemon
    prometheus: Api

    async def named(self) -> tuple[list[str], list[str]]:
        """The sentences of `explain` and those of the status, which the page shows."""
        done = await self.daemon.command("explain", "hooks", "--json")
        assert done.code == Exit.OK, done.err
        return done.json["slow"], (await self.daemon.status())["slow"]

    async def row(self, panel: str) -> Row:
        """What a panel of the dashboard shows now."""
        (query,) = (each.replace("1m", RATE) for each in queries_by_panel()[panel])
        found = await self.prometheus.query(query)
        return {json.loads(labels)["stage"]: seconds for labels, seconds in found.items() if seconds == seconds}

    async def is_compared(self) -> bool:
        """Whether the daemon and the dashboard know how long pushes took before."""
        stages = (await self.daemon.status())["stages"]
        is_known = any(each["stage"] == "push" and each["before_seconds"] is not None for each in stages)
        return is_known and "push" in await self.row(DELIVERY) and "commit_sync" in await self.row(COMMIT)


async def _load(daemon: Daemon) -> None:
    """Some events a second, for ever."""
    for number in itertools.count():
        body = records(*(f"k{number}-{each}" for each in range(4)))
        assert (await ask(daemon, "POST", "/v1/topics/hooks/events", body)).status == 200
        await asyncio.sleep(0.1)


@asynccontextmanager
async def watched(folder: Path, plan: Plan, env: Mapping[str, str] | None = None) -> AsyncIterator[Watched]:
    """A daemon that delivers to a receiver, under load, with a Prometheus; known for long enough to be compared."""
    port, admin = free_port(), f"127.0.0.1:{free_port()}"
    sections = {
        "store": {"kind": "sqlite"}, "sqlite": {"directory": str(folder / "q")}, "admin": {"listen": admin},
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving(plan))
        daemon = await stack.enter_async_context(running_daemon(folder, sections, env=env))
        made = await daemon.command("topic", "create", "hooks", "--endpoint", receiver.url, "--shards", "2")
        assert made.code == Exit.OK, made.err
        await stack.enter_async_context(prometheus(folder, admin, f"127.0.0.1:{free_port()}", port))
        api = Api(await stack.enter_async_context(aiohttp.ClientSession()), port)
        loading = asyncio.create_task(_load(daemon))
        stack.callback(loading.cancel)
        found = Watched(daemon, api)
        await daemon.until(found.is_compared, "a first window")
        yield found


async def names(found: Watched, cause: EventStage, at: str, panel: str, slow: Callable[[], None]) -> str:
    """Once the stage is slow, `explain`, the page's data and the dashboard name it in time, and as causes none of those
    that wait for it. Returns the sentence."""
    before, wanted = (await found.row(panel)).get(cause, 0.0), f"{cause} ({at}) takes "
    assert not any(each.startswith(wanted) for said in await found.named() for each in said)
    slow()
    began = time.monotonic()

    async def is_named() -> bool:
        return all(any(each.startswith(wanted) for each in said) for said in await found.named())

    async def is_shown() -> bool:
        return (await found.row(panel)).get(cause, 0.0) - before >= LEAST_GROWTH_S

    await found.daemon.until(is_named, f"{cause} to be named")
    await found.daemon.until(is_shown, f"{cause} to be shown")
    took_s = time.monotonic() - began

    assert took_s <= WITHIN_S * slowness()
    said = [*itertools.chain(*await found.named())]
    causes = {EventStage(each.split(" ")[0]) for each in said}
    assert not [each for each in causes if cause in WAITS_FOR.get(each, ())]
    return next(each for each in said if each.startswith(wanted))


async def test_a_receiver_that_becomes_slow_is_named(tmp_path: Path) -> None:
    """Of a receiver that answers 50 ms later `explain`, the page and the dashboard name the push to it."""
    delay_s = 0.0

    def plan(_: Arrival) -> Reply:
        if not delay_s:
            return OK
        due = asyncio.Event()
        asyncio.get_running_loop().call_later(delay_s, due.set)
        return Reply(until=due)

    def slow() -> None:
        nonlocal delay_s
        delay_s = 0.05

    async with watched(tmp_path, plan) as found:
        sentence = await names(found, EventStage.PUSH, "http", DELIVERY, slow)

    assert WHAT_TO_DO[EventStage.PUSH] in sentence


async def test_a_disk_that_becomes_slow_is_named(tmp_path: Path) -> None:
    """Of a disk that syncs 20 ms later all three name the sync, and the commits that wait for it as what follows."""
    program("cc", "gcc")
    syncs = SlowSyncs(tmp_path, of=Path(sys.executable).name)
    async with AsyncExitStack() as stack, watched(tmp_path, lambda _: OK, syncs.environment) as found:

        def slow() -> None:
            stack.enter_context(syncs.waiting(0.02))

        sentence = await names(found, EventStage.COMMIT_SYNC, "sqlite", COMMIT, slow)

    follow = sentence.split("from it follow ")[1].split(":")[0].split(", ")
    assert EventStage.COMMIT in follow
