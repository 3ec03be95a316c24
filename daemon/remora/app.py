"""The composition root: from settings to adapters, engine and servers. The only place that knows which exist."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from remora.cluster_answer import answered, credit
from remora.config import Settings
from remora.embedded_files import become_owner
from remora.endpoint_kinds import load_clients
from remora.metrics import Telemetry
from remora.model.ingest import RESERVATION_AGE_S
from remora.ports.credit import NO_TRAFFIC, StoreTraffic
from remora.ports.log import Logs
from remora.ports.spill import OnSeam, seam_unseen
from remora.ports.stages import NO_METER, StageMeter
from remora.ports.store import ShardStore
from remora.ports.tracing import NO_TRACER, Tracer
from remora.process.sockets import ingest_sockets
from remora.servers.server import Server, Serving


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A kind of server. The supervisor listens for all workers, before they start; none where that is turned off.

    `listen` raises ConfigError for an address that cannot be listened on, `serve` for what else cannot be used. Workers
    share the `module` that it is in where they are forked; without one each loads it for itself.
    """

    listen: Callable[[Settings], AbstractContextManager[Sequence[socket.socket]]]
    serve: Callable[[Sequence[socket.socket], Serving], AbstractAsyncContextManager[Server]]
    module: str = ""


def _serve_ingest(sockets: Sequence[socket.socket], given: Serving) -> AbstractAsyncContextManager[Server]:
    from remora.servers.ingest import serve_ingest  # no command needs it

    settings = given.settings
    # The store takes no later commit; expiry may give the room back sooner.
    reservation_s = min(RESERVATION_AGE_S, settings.ownership.reservation_age_s)
    return serve_ingest(
        settings.ingest, sockets, given.store, given.telemetry, reservation_s=reservation_s, host=given.host
    )


SERVERS: MappingProxyType[str, ServerKind] = MappingProxyType({
    "ingest": ServerKind(lambda settings: ingest_sockets(settings.ingest), _serve_ingest, "remora.servers.ingest"),
})  # fmt: skip
"""The servers of each worker process, by name. A new kind of server is one more line here."""


@contextmanager
def listeners(settings: Settings) -> Iterator[dict[str, Sequence[socket.socket]]]:
    """The sockets that listen for each kind of server that is turned on, while the block runs."""
    with ExitStack() as stack:
        opened = {name: stack.enter_context(kind.listen(settings)) for name, kind in SERVERS.items()}
        yield {name: sockets for name, sockets in opened.items() if sockets}


@asynccontextmanager
async def open_servers(
    sockets: Mapping[str, Sequence[socket.socket]], given: Serving
) -> AsyncIterator[dict[str, Server]]:
    """The servers that these sockets are for, by name, while the block runs; all finish together at its end."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(SERVERS[name].serve(each, given)) for name, each in sockets.items()
        }


# ------------------------------------------------------------------------------------------- adapters


def import_for_workers(settings: Settings) -> None:
    """Import what every worker of these settings imports: processes that are forked afterwards share it.

    No library is loaded that starts threads by itself, such as librados.
    """
    names = [f"remora.storage.{settings.store.kind}"]
    names += [kind.module for kind in SERVERS.values() if kind.module]
    names += ["remora.tracing"] if settings.traces.endpoint else []
    for name in names:
        import_module(name)


@asynccontextmanager
async def open_tracer(settings: Settings, telemetry: Telemetry, worker: str) -> AsyncIterator[Tracer]:
    """What exports spans while the block runs, under this worker's name; nothing where no receiver is named."""
    if not settings.traces.endpoint:
        yield NO_TRACER
        return
    from remora.tracing import open_otlp  # an extra, which only hosts with a receiver need

    async with open_otlp(settings.traces, telemetry, worker) as tracer:
        yield tracer


def make_store(  # noqa: PLR0913 - each is an option's, or an observer
    settings: Settings,
    on_state: Callable[[bool, str], None],
    *,
    make: bool = True,
    waits: bool = False,
    tracer: Tracer = NO_TRACER,
    meter: StageMeter = NO_METER,
    on_seam: OnSeam = seam_unseen,
    traffic: StoreTraffic = NO_TRAFFIC,
) -> ShardStore:
    """The store that the settings name; `on_state` is called whenever it comes or goes, `on_seam`: see `ports.spill`.

    A missing embedded store is made only with `make` and where the settings allow it; one that `waits` is used as soon
    as it is there, as a cluster always is. Only its adapter is imported: a host without Ceph has no librados.
    """
    match settings.store.kind:
        case "sqlite":
            from remora.storage.sqlite.store import SqliteStore

            may_make = make and settings.sqlite.if_missing == "make"
            return SqliteStore(settings.sqlite, on_state, make=may_make, waits=waits, tracer=tracer, meter=meter)
        case "rados":
            from remora.storage.rados.store import RadosStore

            return RadosStore(
                settings.rados, on_state, tracer=tracer, meter=meter,
                reservation_age_s=settings.ownership.reservation_age_s, traffic=traffic,
                spill_pool=settings.spill.pool, guard_s=2 * settings.ownership.discovery_interval_s, on_seam=on_seam,
            )  # fmt: skip


@asynccontextmanager
async def store_of(settings: Settings, *, make: bool = False) -> AsyncIterator[ShardStore]:
    """The store, for one command: a cluster is given its mount time-out to answer, files are there or not.

    A command that only looks makes no embedded store: it would belong to the command's user, and not to the daemon. One
    that root runs goes on as the owner of an embedded store.
    """
    known = asyncio.Event()
    async with credit.get()(settings) as traffic:
        store = make_store(settings, lambda is_there, _: known.set() if is_there else None, make=make, traffic=traffic)
        _become_owner_of_store(settings)
        async with store:
            if settings.store.kind == "rados":
                await answered(known, settings.rados)
            yield store


def _become_owner_of_store(settings: Settings) -> None:
    if settings.store.kind == "sqlite":
        become_owner(Path(settings.sqlite.first), partial(load_clients, settings))


@asynccontextmanager
async def open_logs(
    settings: Settings, *, waits: bool = True, make: bool = True, is_dead: Callable[[str], bool] = lambda _: False
) -> AsyncIterator[Logs]:
    """The shared logs of the store; one that `waits` is used as soon as the store is there.

    A missing embedded store is made only with `make` and where the settings allow it, as for `make_store`.
    Without `waits` a cluster is given its mount time-out to answer, and files are there or not. `is_dead` says of the
    owner of a log that its process has ended on this host. What does not wait is a command, see `store_of`.
    """
    if settings.store.kind == "rados":
        async with _logs_in_rados(settings, is_dead, waits=waits) as logs:
            yield logs
        return
    from remora.storage.sqlite.store import SqliteStore

    if not waits:
        _become_owner_of_store(settings)
    may_make = make and settings.sqlite.if_missing == "make"
    async with SqliteStore(settings.sqlite, lambda _, __: None, make=may_make, waits=waits) as store:
        yield store.logs


@asynccontextmanager
async def _logs_in_rados(settings: Settings, is_dead: Callable[[str], bool], *, waits: bool) -> AsyncIterator[Logs]:
    from remora.storage.rados.logs.log_store import RadosLogStore

    known = asyncio.Event()
    async with RadosLogStore(
        settings.rados,
        lambda connected, _: known.set() if connected else None,
        pools=settings.sequencer.pools,
        is_dead=is_dead,
    ) as store:
        if not waits:
            await answered(known, settings.rados)
        yield store.logs


async def default_log_pool(settings: Settings) -> str:
    """The pool of a log whose pool is not named: on RADOS the queues' pool, else a label."""
    if settings.store.kind != "rados":
        return "remora"
    if settings.rados.pool:
        return settings.rados.pool
    from remora.storage.rados.logs.log_store import RadosLogStore

    known = asyncio.Event()
    async with RadosLogStore(settings.rados, lambda connected, _: known.set() if connected else None) as store:
        await answered(known, settings.rados)
        return store.default_pool
