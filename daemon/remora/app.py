"""The composition root: from settings to adapters, engine and servers. The only place that knows which exist."""

from __future__ import annotations

import asyncio
import json
import socket
import time
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
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from remora.cluster_answer import answered, credit
from remora.codec.topic import SLO, delivery_of, has_literal_keys, parse_args, usable_delivery
from remora.config import Settings
from remora.embedded_files import become_owner
from remora.endpoints.arguments import AMQP, COMMON, HTTP, KAFKA, NATS
from remora.endpoints.kinds import EndpointKind, EndpointOnDemand, Opening, offered_kinds, on_demand
from remora.endpoints.targets import Reasons
from remora.metrics import Telemetry
from remora.model.errors import CodecError, EndpointMisconfigured
from remora.model.ingest import RESERVATION_AGE_S
from remora.model.probe import ProbeStep
from remora.model.record import Record
from remora.model.shard import Origin
from remora.model.topic import Delivery, Target, Topic
from remora.policy.not_owned import Schemes
from remora.policy.objectives import parse_objective
from remora.ports.credit import NO_TRAFFIC, StoreTraffic
from remora.ports.endpoint import Endpoint, EndpointSource, TransactionalEndpoint
from remora.ports.log import Logs
from remora.ports.spill import OnSeam, seam_unseen
from remora.ports.stages import NO_METER, StageMeter
from remora.ports.store import ShardStore
from remora.ports.tracing import NO_TRACER, Tracer
from remora.process.sockets import ingest_sockets
from remora.servers.server import Server, Serving

if TYPE_CHECKING:  # the supervisor imports no endpoint, and stays small
    from remora.endpoints.probes import ProbePart
    from remora.endpoints.tls import Tls, TlsFiles


# The modules of an endpoint are imported when one is made: the supervisor makes none, and stays small.


def _make_kafka(settings: Settings, telemetry: Telemetry | None) -> Opening:
    from remora.endpoints.kafka import KafkaEndpoint

    return KafkaEndpoint(settings.kafka, telemetry, settings.destination_rules)


def _make_http(settings: Settings, telemetry: Telemetry | None) -> Opening:
    from remora.endpoints.http import HttpEndpoint

    return HttpEndpoint(settings, telemetry)


def _make_amqp(settings: Settings, telemetry: Telemetry | None) -> Opening:
    from remora.endpoints.amqp import AmqpEndpoint

    return AmqpEndpoint(settings.amqp_within_drain, telemetry, _tls_files(settings), settings.destination_rules)


def _make_nats(settings: Settings, telemetry: Telemetry | None) -> Opening:
    from remora.endpoints.nats import NatsEndpoint

    return NatsEndpoint(settings.nats_within_drain, telemetry, _tls_files(settings), settings.destination_rules)


ENDPOINTS: MappingProxyType[str, EndpointKind] = MappingProxyType({
    "kafka": EndpointKind(_make_kafka, KAFKA, "remora.endpoints.kafka.probe"),
    "http": EndpointKind(_make_http, HTTP, "remora.endpoints.http.probe"),
    "https": EndpointKind(_make_http, HTTP, "remora.endpoints.http.probe"),
    "amqp": EndpointKind(_make_amqp, AMQP, "remora.endpoints.amqp.probe"),
    "amqps": EndpointKind(_make_amqp, AMQP, "remora.endpoints.amqp.probe"),
    "nats": EndpointKind(_make_nats, NATS, "remora.endpoints.nats.probe"),
    "nats+tls": EndpointKind(_make_nats, NATS, "remora.endpoints.nats.probe"),
})  # fmt: skip
"""Which endpoint delivers to the targets of a URI scheme. A new kind of endpoint is one more line here."""

OFFERED = offered_kinds(ENDPOINTS)
KINDS: MappingProxyType[str, EndpointKind] = MappingProxyType({**ENDPOINTS, **OFFERED.kinds})
"""The same, with the kinds that other packages offer."""

SCHEMES = frozenset(KINDS)
"""The URI schemes that remora delivers to."""

_BY_NAME = {each.name: each for kind in KINDS.values() for each in (*COMMON, *kind.arguments)}
ARGUMENTS = MappingProxyType({name: _BY_NAME[name] for name in sorted(_BY_NAME)})
"""The arguments that topics of all these endpoints may have, by name."""


def schemes(settings: Settings) -> Schemes:
    """The URI schemes that remora delivers to with these settings; queues of all others stay with radosgw."""
    return Schemes(SCHEMES, frozenset(settings.ownership.schemes))


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
        used = KINDS.items()
        become_owner(
            Path(settings.sqlite.first),
            lambda: [(kind.make(settings, None), _probe_of(scheme)) for scheme, kind in used],
        )


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
    from remora.storage.rados.log_store import RadosLogStore

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
    from remora.storage.rados.log_store import RadosLogStore

    known = asyncio.Event()
    async with RadosLogStore(settings.rados, lambda connected, _: known.set() if connected else None) as store:
        await answered(known, settings.rados)
        return store.default_pool


@asynccontextmanager
async def open_endpoints(settings: Settings, telemetry: Telemetry) -> AsyncIterator[Sequence[EndpointSource]]:
    """An endpoint of each kind, made when a topic first needs it, while the block runs."""
    schemes: dict[Callable[[Settings, Telemetry | None], Opening], list[str]] = {}
    for scheme, kind in KINDS.items():
        schemes.setdefault(kind.make, []).append(scheme)
    async with on_demand(
        EndpointOnDemand(each, partial(make, settings, telemetry)) for make, each in schemes.items()
    ) as found:
        yield found


def check_target(target: Target, settings: Settings) -> list[str]:
    """Remarks on a target that works otherwise than asked. Raises EndpointMisconfigured when it cannot work."""
    if (kind := KINDS.get(target.scheme)) is None:
        if why := OFFERED.failures.get(target.scheme):
            raise EndpointMisconfigured(why)
        *first, last = (f"{each}://" for each in sorted(SCHEMES))
        raise EndpointMisconfigured(f"remora delivers to {', '.join(first)} and {last} endpoints only")
    reasons, endpoint = Reasons(), kind.make(settings, None)
    found = reasons.read([], endpoint.check, target)
    reasons.read(False, has_literal_keys, target)
    reasons.read(None, _objective, target)
    _, remarks = reasons.read((Delivery.AT_LEAST_ONCE, []), _mode, target, endpoint, settings)
    reasons.refuse()
    return [*found, *remarks]


def _objective(target: Target) -> None:
    """Raise EndpointMisconfigured where the service level that a target's topic declares is none."""
    if text := parse_args(target.args).get(SLO, ""):
        try:
            parse_objective(text)
        except ValueError as exc:
            raise EndpointMisconfigured(f"{SLO}: {exc}") from None


class Probe(Protocol):
    """What the module `probe` of an endpoint has."""

    def tls_of(self, target: Target) -> Tls | None:
        """The files that the target names. Raises EndpointMisconfigured."""
        ...

    def parts_of(self, target: Target, settings: Settings, files: TlsFiles, *, by_operator: bool) -> list[ProbePart]:
        """The steps of the way. Raises EndpointMisconfigured for a target that means nothing."""
        ...


@runtime_checkable
class StandingProbe(Protocol):
    """What the module `probe` of an endpoint also has, where its servers say something of themselves worth knowing."""

    async def standing(
        self, target: Target, settings: Settings, files: TlsFiles, *, by_operator: bool, pause_s: float
    ) -> list[str]:
        """Remarks; attempts at an entry may usually lie `pause_s` apart. Raises EndpointError."""
        ...


def _standing_of(target: Target) -> StandingProbe | None:
    found: object = _probe_of(target.scheme)
    return found if isinstance(found, StandingProbe) else None


def _probe_of(scheme: str) -> Probe | None:
    module = KINDS[scheme].probe
    found: Probe | None = import_module(module) if module else None
    return found


def file_remarks(target: Target, settings: Settings) -> list[str]:
    """What is wrong here with the files that a target names. Raises EndpointMisconfigured for those that none may name.

    The daemon may see other files, as another user or on another host: what cannot be read here is a remark.
    """
    from remora.endpoints.probes import refuse_files

    if (found := _probe_of(target.scheme)) is None:
        return []
    try:
        refuse_files(found.tls_of(target), _tls_files(settings))
    except EndpointMisconfigured as exc:
        if "not below a directory" in str(exc):
            raise
        return [f"{exc}, as this user sees it"]
    return []


async def probe(topic: Topic, settings: Settings, *, sends_test: bool) -> AsyncIterator[ProbeStep]:
    """The way to a topic's endpoint, step by step up to the first that fails.

    No event is sent, unless `sends_test`: then it ends with an `s3:TestEvent`.
    """
    from remora.endpoints.probes import ProbePart, carry_out

    target = topic.target
    try:
        check_target(target, settings)
        by_operator = topic.origin is Origin.REMORA
        if (found := _probe_of(target.scheme)) is None:
            raise EndpointMisconfigured(f"the way to {target.scheme}:// endpoints cannot be tried")
        parts = found.parts_of(target, settings, _tls_files(settings), by_operator=by_operator)
    except EndpointMisconfigured as exc:
        yield ProbeStep("attributes", False, str(exc))
        return
    if sends_test:
        parts = [*parts[:-1], ProbePart("send", lambda: _send_test(topic, settings))]
    if _standing_of(target) is not None:
        parts = [*parts[:-1], ProbePart("copies", lambda: _said_of(topic, settings)), parts[-1]]
    async for step in carry_out(parts):
        yield step


async def standing(topic: Topic, settings: Settings) -> list[str]:
    """Remarks on what the servers of a topic's endpoint say of themselves; asks them, where its kind has such.

    Raises EndpointError where they do not answer. A target that cannot work has none: `remarks` says why.
    """
    if topic.target.scheme not in SCHEMES or (found := _standing_of(topic.target)) is None:
        return []
    try:
        check_target(topic.target, settings)
    except EndpointMisconfigured:
        return []
    return await found.standing(
        topic.target,
        settings,
        _tls_files(settings),
        by_operator=topic.origin is Origin.REMORA,
        pause_s=settings.delivery.usual_pause_s(topic.retry_sleep_s),
    )


async def _said_of(topic: Topic, settings: Settings) -> str:
    return "; ".join(await standing(topic, settings)) or "the duplicate window spans the usual pauses between attempts"


async def _send_test(topic: Topic, settings: Settings) -> str:
    """Send what S3 sends to a new destination; answers when the endpoint has acknowledged it."""
    now_ns = time.time_ns()
    iso = datetime.fromtimestamp(now_ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": iso, "Bucket": "remora-topic-test"}
    position = b"0/0"
    record = Record(b"remora-topic-test/test", json.dumps(event).encode(), b"test", now_ns, position, b"0/1", 0)
    async with (
        KINDS[topic.target.scheme].make(settings, None) as endpoint,
        endpoint.route(topic.first_shard, "topic-test", topic.target, quick_retries=False) as route,
    ):
        batches, refused = route.pack([record])
        for _, why in refused:
            raise EndpointMisconfigured(why)
        for batch in batches:
            await route.push(batch)
    return "an s3:TestEvent was acknowledged"


def certificate_subject(location: str, settings: Settings) -> str:
    """The subject of the client certificate in a file that topics may name; empty where it cannot be used. Blocks."""
    try:
        found: str = import_module("remora.endpoints.tls").certificate_subject(location, settings.kafka.client_places)
    except (CodecError, EndpointMisconfigured):
        return ""  # the endpoint says why, when it is opened
    return found


async def addresses_of(host: str) -> tuple[str, ...] | None:
    """The addresses of a host as endpoints look it up, beside the event loop; None where there is no answer."""
    found: tuple[str, ...] | None = await import_module("remora.endpoints.threads").addresses_of(host)
    return found


def _tls_files(settings: Settings) -> TlsFiles:
    """The directories below which topics may name files."""
    from remora.endpoints.tls import TlsFiles

    return TlsFiles(settings.kafka.ca_places, settings.kafka.client_places)


def _mode(target: Target, endpoint: Endpoint, settings: Settings) -> tuple[Delivery, list[str]]:
    is_transactional = isinstance(endpoint, TransactionalEndpoint)
    return usable_delivery(target, Delivery(settings.delivery.mode), is_transactional=is_transactional)


def delivery_mode(target: Target, settings: Settings) -> str:
    """How a target's topic is delivered; empty where it does not say it in a word that is known."""
    try:
        if (kind := KINDS.get(target.scheme)) is None:
            return str(delivery_of(target, Delivery(settings.delivery.mode)))
        return str(_mode(target, kind.make(settings, None), settings)[0])
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
