"""The composition root: from settings to adapters, engine and servers. The only place that knows which exist."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import uvloop

from remora import __version__, config
from remora.codec.topic import delivery_of
from remora.config import AdminSettings, OwnershipSettings, Settings, UnixAddress
from remora.endpoints.kafka import KafkaEndpoint
from remora.engine.dispatcher import ShardStatus, State
from remora.engine.worker import Worker
from remora.metrics import Telemetry, configure_logging
from remora.model.errors import ConfigError, EndpointMisconfigured, RemoraError, StoreError, StoreMisconfigured
from remora.model.exits import Exit
from remora.model.ingest import RESERVATION_AGE_S
from remora.model.topic import Delivery, Target
from remora.ports import ShardStore
from remora.servers.admin import Health, Sources, serve_admin
from remora.servers.ingest import IngestServer, serve_ingest
from remora.servers.lag import measure_lag
from remora.servers.notify import Notifier

SCHEMES = frozenset({"kafka"})
"""The URI schemes that remora delivers to; queues of all others stay with radosgw."""

HUNG_AFTER_S = 60.0
"""A worker whose loops did nothing at all for this long is hung, and systemd may restart it."""

FIRST_LOOK_S = 2.0
"""How long a start waits for the store to say that something can never work."""


class DaemonNotReachable(RemoraError):
    """Nothing answers on the admin port."""


# ------------------------------------------------------------------------------------------- adapters


def make_store(settings: Settings, on_state: Callable[[bool, str], None], *, make: bool = True) -> ShardStore:
    """The store that the settings name; `on_state` is told whenever it comes or goes.

    Where there is no embedded store yet it is made, but only with `make`. Only the chosen one's adapter is imported: a
    host without Ceph has no librados.
    """
    match settings.store.kind:
        case "sqlite":
            from remora.storage.sqlite import SqliteStore

            return SqliteStore(settings.sqlite, on_state, make=make)
        case "rados":
            from remora.storage.rados import RadosStore

            return RadosStore(settings.rados, on_state)


@asynccontextmanager
async def store_of(settings: Settings, *, make: bool = False) -> AsyncIterator[ShardStore]:
    """The store, for one command: a cluster is given its mount time-out to answer, files are there or not.

    A command that only looks makes no embedded store: it would belong to whoever typed it, and not to the daemon.
    """
    known = asyncio.Event()
    async with make_store(settings, lambda connected, _: known.set() if connected else None, make=make) as store:
        if settings.store.kind == "rados":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.rados.mount_timeout_s + 1):
                    await known.wait()
        yield store  # where it is still not connected, the first call says why


def check_target(target: Target, settings: Settings) -> list[str]:
    """Remarks on a target that works otherwise than asked. Raises EndpointMisconfigured when it cannot work."""
    if target.scheme not in SCHEMES:
        raise EndpointMisconfigured(f"remora delivers to {', '.join(sorted(SCHEMES))}:// endpoints only")
    delivery_of(target, Delivery(settings.delivery.mode))
    return KafkaEndpoint(settings.kafka).check(target)


def delivery_mode(target: Target, settings: Settings) -> str:
    """How a target's topic is delivered; empty where it does not say it in a word that is known."""
    try:
        return str(delivery_of(target, Delivery(settings.delivery.mode)))
    except EndpointMisconfigured:
        return ""


def remarks(target: Target, settings: Settings) -> list[str]:
    """What works otherwise than a target's attributes ask for, or why nothing works at all."""
    if target.scheme not in SCHEMES:
        return []
    try:
        return check_target(target, settings)
    except EndpointMisconfigured as exc:
        return [str(exc)]


def worker_cookie(settings: OwnershipSettings) -> str:
    """Who holds a lock: `remora/<host id>/<boot id>/<worker uuid>`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return f"remora/{settings.host}/{boot}/{uuid.uuid4()}"


# --------------------------------------------------------------------------------------------- daemon


def run(settings: Settings, file: Path) -> Exit:
    """Deliver until a signal; returns the exit code."""
    configure_logging(settings.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Daemon(settings, file).run())


class Daemon:
    """One process: a store, the endpoints, a worker, and the servers around them."""

    def __init__(self, settings: Settings, file: Path) -> None:
        self._settings = settings
        self._file = file
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._store_state = (False, "connecting")
        self._draining = False
        self._telemetry = Telemetry(
            metric_topics=settings.admin.metric_topics, repeat_interval_s=settings.log.repeat_interval_s
        )
        self._cookie = worker_cookie(settings.ownership)
        self._store: ShardStore
        self._worker: Worker
        self._ingest: IngestServer | None = None

    async def run(self) -> Exit:
        """Open everything, serve until told to stop, close everything in the opposite order."""
        settings, telemetry = self._settings, self._telemetry
        telemetry.started(__version__, str(self._file))
        with Notifier(os.environ) as notifier:
            async with (
                make_store(settings, self._on_store_state) as self._store,
                KafkaEndpoint(settings.kafka) as kafka,
            ):
                await self._look_once()
                rng = Random()  # noqa: S311  # spreads retries, guards nothing
                self._worker = Worker(
                    self._store, [kafka], telemetry, settings.ownership, settings.delivery, self._cookie, rng
                )
                sources = Sources(self._live, self._ready, self._status)
                async with serve_admin(settings.admin, telemetry, sources), self._taking_events_in():
                    self._listen_for_signals(notifier)
                    notifier.ready()
                    return await self._serve(notifier)

    @asynccontextmanager
    async def _taking_events_in(self) -> AsyncIterator[None]:
        """Serve the ingest API while the block runs, unless it is turned off."""
        settings = self._settings
        if settings.ingest.address is None:
            yield
            return
        # The store takes no later commit; expiry may give the room back sooner.
        reservation_s = min(RESERVATION_AGE_S, settings.ownership.reservation_age_s)
        async with serve_ingest(settings.ingest, self._store, self._telemetry, reservation_s=reservation_s) as ingest:
            self._ingest = ingest
            yield

    async def _look_once(self) -> None:
        """Raise StoreMisconfigured when this user may not even see the queues; for a store that is away don't wait."""
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._store.shards()
        except StoreMisconfigured:
            raise
        except (StoreError, TimeoutError):
            return  # the worker waits for it, and says so

    async def _serve(self, notifier: Notifier) -> Exit:
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(notifier.run(self._is_alive, self._line), name="notify"),
                tasks.create_task(measure_lag(self._telemetry), name="lag"),
                tasks.create_task(self._report_levels(), name="levels"),
            ]
            work = tasks.create_task(self._worker.run(), name="worker")
            await self._stop.wait()
            notifier.stopping()
            clean = await self._drain(work)
            for each in helpers:
                each.cancel()
        return Exit.OK if clean else Exit.DRAIN_TIMEOUT

    async def _drain(self, work: asyncio.Task[None]) -> bool:
        """Finish what is in flight, for as long as the settings allow; returns whether everything was finished."""
        loop = asyncio.get_running_loop()
        started, self._draining = loop.time(), True
        if self._ingest is not None:
            self._ingest.finish()
        self._worker.finish()
        at_once = asyncio.ensure_future(self._stop_now.wait())
        await asyncio.wait(
            [work, at_once], timeout=self._settings.delivery.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        at_once.cancel()
        clean = work.done()
        work.cancel()
        await asyncio.wait([work])
        self._telemetry.drained(loop.time() - started, clean)
        return clean

    async def _report_levels(self) -> None:
        while True:
            self._telemetry.in_flight(self._worker.held.held)
            self._telemetry.store_synced(self._store.synced)
            await asyncio.sleep(1)

    # ---------------------------------------------------------------------------------------- signals

    def _listen_for_signals(self, notifier: Notifier) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number.name)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload, notifier)

    def _on_stop(self, name: str) -> None:
        """The first signal drains, the second one stops at once."""
        if self._stop.is_set():
            self._stop_now.set()
        else:
            self._telemetry.draining(name)
            self._stop.set()

    def _on_reload(self, notifier: Notifier) -> None:
        notifier.reloading()
        try:
            new = config.load(self._file)
        except ConfigError as exc:
            self._telemetry.reload_failed(str(exc))
        else:
            changed = config.changes(self._settings, new)
            self._apply(new)
            self._telemetry.reloaded(changed.live, changed.restart)
            if self._ingest is not None:
                self._ingest.reload()
        notifier.ready()

    def _apply(self, new: Settings) -> None:
        """Use the options that can change in a running daemon; the others stay as they were at the start."""
        delivery = {
            each.name: getattr(new.delivery, each.name)
            for each in dataclasses.fields(new.delivery)
            if f"delivery.{each.name.removesuffix('_s')}" in config.LIVE
        }
        self._settings = dataclasses.replace(
            self._settings, delivery=dataclasses.replace(self._settings.delivery, **delivery), log=new.log
        )
        self._worker.reload(self._settings.delivery)
        self._telemetry.repeats.interval_s = new.log.repeat_interval_s
        configure_logging(new.log)

    # ------------------------------------------------------------------------------- health and status

    def _on_store_state(self, connected: bool, text: str) -> None:
        self._store_state = (connected, text)
        self._telemetry.store_state(connected, text)

    def _is_alive(self) -> bool:
        return self._draining or self._worker.beat_age_s() < HUNG_AFTER_S

    def _live(self) -> Health:
        if self._is_alive():
            return Health(ok=True)
        return Health(ok=False, reasons=(f"the worker's loops did nothing for {self._worker.beat_age_s():.0f} s",))

    def _ready(self) -> Health:
        reasons = []
        connected, text = self._store_state
        if self._draining:
            reasons.append("draining")
        if not connected:
            reasons.append(f"store: {text}")
        progress = self._worker.progress()
        if progress.is_stalled:
            reasons.append(f"nothing was delivered for {progress.age_s:.0f} s although entries wait")
            reasons += sorted({f"{s.topic or s.queue}: {s.reason}" for s in self._worker.served if s.reason})[:10]
        return Health(ok=not reasons, reasons=tuple(reasons))

    def _line(self) -> str:
        """The one line of `systemctl status`."""
        broken = sum(1 for each in self._worker.served if each.state in (State.RETRYING, State.STOPPED))
        store = "store connected" if self._store_state[0] else f"store away: {self._store_state[1]}"
        line = f"{store}; {self._worker.held_shards} shards held, {broken} of them failing"
        return f"draining; {line}" if self._draining else line

    def _status(self) -> Mapping[str, object]:
        ready = self._ready()
        connected, text = self._store_state
        return {
            "version": __version__,
            "ready": ready.ok,
            "reasons": list(ready.reasons),
            "draining": self._draining,
            "cookie": self._cookie,
            "store": {
                "description": self._store.description,
                "connected": connected,
                "state": text,
                "damaged": list(self._store.damaged.values()),
            },
            "ingest": self._ingest.address if self._ingest else "",
            "in_flight_bytes": self._worker.held.held,
            "shards": [_shard_json(each) for each in self._worker.shards],
            "left": [
                {
                    "queue": shard.queue,
                    "reason": left.reason,
                    "owner": f"{left.holder.entity} {left.holder.cookie}" if left.holder else "",
                }
                for shard, left in sorted(self._worker.left.items())
            ],
        }


def _shard_json(each: ShardStatus) -> dict[str, object]:
    return {
        "queue": each.queue,
        "topic": each.topic,
        "endpoint": each.endpoint,
        "delivery": each.delivery,
        "state": str(each.state),
        "reason": each.reason,
        "since_seconds": round(each.since_s, 3),
        "failures": each.failures,
        "in_flight_bytes": each.in_flight_bytes,
        "has_work": each.has_work,
        "progress_age_seconds": round(each.progress_age_s, 3),
        "remarks": list(each.remarks),
    }


# --------------------------------------------------------------------------- asking a running daemon


async def fetch_status(admin: AdminSettings) -> Any:
    """/-/status of the daemon that these settings belong to; DaemonNotReachable when there is none."""
    address = admin.address
    if isinstance(address, UnixAddress):
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path=address.path)
        url, shown = "http://localhost/-/status", f"unix:{address.path}"
    else:
        connector = aiohttp.TCPConnector()
        host = f"[{address.host}]" if ":" in address.host else address.host
        url, shown = f"http://{host}:{address.port}/-/status", f"{host}:{address.port}"
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(url) as response,
        ):
            response.raise_for_status()
            return await response.json()
    except aiohttp.ClientConnectorError as exc:
        number = exc.os_error.errno or 0
        why = os.strerror(number) if number > 0 else str(exc.os_error)  # a name that does not resolve has no number
        raise DaemonNotReachable(f"no daemon answers on {shown} (admin.listen): {why}") from exc
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        why = str(exc) or "no answer in time"
        raise DaemonNotReachable(f"no daemon answers on {shown} (admin.listen): {why}") from exc
