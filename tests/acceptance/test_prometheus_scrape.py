"""A real Prometheus, with the shipped configuration and rules, reads a served /metrics and answers the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import NoReturn

import aiohttp
from prometheus_client import CollectorRegistry, Metric

from devkit.processes.ports import free_port
from devkit.processes.programs import program
from devkit.waits import PATIENT_S
from remora.metrics import Telemetry
from remora.metrics.sequencer import SequencerFigures, SequencerTelemetry
from remora.model.health import Health
from remora.process.sockets import listening_sockets
from remora.servers.admin import Sources, serve_admin
from support.telemetry import exercise

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"


class Scrapes:
    """Counts the scrapes of a process with these metrics, of which it counts some more before each."""

    def __init__(self, registry: CollectorRegistry, count: Callable[[], None]) -> None:
        self._registry, self._count = registry, count
        self._seen = 0
        self.three = asyncio.Event()

    async def metrics(self) -> Iterable[Metric]:
        self._seen += 1
        self._count()
        if self._seen == 3:
            self.three.set()
        return list(self._registry.collect())

    @property
    def sources(self) -> Sources:
        return Sources(lambda: Health(True), lambda _: _unasked(), _unasked, self.metrics)


async def _unasked() -> NoReturn:
    raise AssertionError("Prometheus asks for metrics only")


@contextlib.asynccontextmanager
async def prometheus(folder: Path, target: str, sequencer: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Prometheus with the shipped files, changed only in whom it asks and how often; it asks a sequencer, too."""
    shipped = (CONFIG / "prometheus.yml").read_text().replace("  #", "  ").replace(": 15s", ": 5s")
    assert "127.0.0.1:9750" in shipped
    assert "127.0.0.1:9752" in shipped
    changed = shipped.replace("127.0.0.1:9750", target).replace("127.0.0.1:9752", sequencer)
    (folder / "prometheus.yml").write_text(changed.replace("   Where `", "  # Where `"))
    (folder / "alerts.yml").write_text((CONFIG / "alerts.yml").read_text())
    process = await asyncio.create_subprocess_exec(
        program("prometheus", "prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Api:
    """Prometheus' own interface."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/api/v1"

    async def query(self, expression: str) -> dict[str, float]:
        """The value of each series of an instant query, by its labels as JSON."""
        async with self._session.get(f"{self._url}/query", params={"query": expression}) as reply:
            answer = await reply.json()
        assert answer["status"] == "success"
        return {
            json.dumps(each["metric"], sort_keys=True): float(each["value"][1]) for each in answer["data"]["result"]
        }

    async def rules(self) -> dict[str, str]:
        """The health of each rule by its name."""
        async with self._session.get(f"{self._url}/rules") as reply:
            answer = await reply.json()
        return {rule["name"]: rule["health"] for group in answer["data"]["groups"] for rule in group["rules"]}


async def are_stored(api: Api) -> bool:
    """Whether two scrapes at least of both instances are stored, and the last one of each."""
    good, last = await api.query("sum_over_time(up[10m])"), await api.query("up")
    return len(good) == 2 and min(good.values()) >= 2 and list(last.values()) == [1, 1]


def a_sequencer() -> SequencerTelemetry:
    """The metrics of a sequencer that has done a little of everything."""
    telemetry = SequencerTelemetry()
    telemetry.not_registered("failed")
    telemetry.fenced("lock")
    telemetry.skipped(3)
    telemetry.figures = lambda: SequencerFigures(
        positions={"a": 5},
        epochs={"a": 2},
        results={"ok": 5},
        states={"served": 1},
        closed={"silent": 1},
        waiting=1,
        connections=2,
        rounds=4,
        round_requests=(3, 1),
        sampled_requests=5,
    )
    return telemetry


def queries_by_panel() -> dict[str, list[str]]:
    """The queries of each panel of the shipped dashboard, as Grafana asks them for all instances and topics."""
    rows = json.loads((CONFIG / "grafana-dashboard.json").read_text())["panels"]
    variables = {"$job": "remora", "$instance": ".*", "$topic": ".*", "$__rate_interval": "1m"}
    found: dict[str, list[str]] = {}
    for panel in [*rows, *(each for row in rows for each in row.get("panels", []))]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in variables.items():
                query = query.replace(name, value)
            found.setdefault(panel["title"], []).append(query)
    return found


async def test_a_real_prometheus_scrapes_stores_and_evaluates(tmp_path: Path) -> None:
    """What daemon and sequencer counted can be queried, quantiles included, every shipped rule is evaluated, and each
    panel of the dashboard has an answer and is drawn."""
    telemetry, sequencer = Telemetry(), a_sequencer()
    exercise(telemetry)
    telemetry.age_exemplar("t", "4bf92f3577b34da6a3ce929d0e0e4736", 0.75, time.time())
    scrapes = Scrapes(telemetry.registry, lambda: telemetry.listed("t", 1, 100))
    others = Scrapes(sequencer.registry, lambda: sequencer.registered(0.01))
    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for each in (scrapes, others):
            sockets = stack.enter_context(listening_sockets("admin.listen", "127.0.0.1:0", 0o600))
            addresses.append(await stack.enter_async_context(serve_admin(sockets, each.sources)))
        port = free_port()
        server = await stack.enter_async_context(prometheus(tmp_path, addresses[0], addresses[1], port))
        api = Api(await stack.enter_async_context(aiohttp.ClientSession()), port)
        async with asyncio.timeout(2 * PATIENT_S):
            for each in (scrapes, others):
                ends = [asyncio.create_task(each.three.wait()), asyncio.create_task(server.wait())]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
                assert each.three.is_set(), "Prometheus ended"
            while not await are_stored(api):  # noqa: ASYNC110 - another program stores them
                await asyncio.sleep(0.2)

        up = await api.query("up")
        delivered = await api.query("sum by (topic) (remora_delivered_entries_total)")
        age = await api.query("histogram_quantile(0.5, sum by (le) (remora_event_age_seconds_bucket))")
        build = await api.query("sum by (version) (remora_build_info)")
        rules = await api.rules()
        panels = {
            title: [len(await api.query(query)) for query in queries] for title, queries in queries_by_panel().items()
        }
        picture = tmp_path / "dashboard.png"
        script = ROOT / "scripts/draw-dashboard"
        drawn = await asyncio.create_subprocess_exec(script, f"http://127.0.0.1:{port}", picture, "--minutes", "1")
        assert await drawn.wait() == 0

    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(up.values()) == [1, 1]
    assert delivered == {'{"topic": "t"}': 3}
    assert 0.5 <= age["{}"] <= 1
    assert build == {'{"version": "0.1.0"}': 1}
    assert len(panels) >= 60
    assert [title for title, found in panels.items() if not all(found)] == []
    assert len(rules) >= 15
    assert set(rules.values()) <= {"ok", "unknown"}  # unknown: not yet evaluated for the first time
