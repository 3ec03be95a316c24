"""Which kinds of endpoints there are, what a topic's target means at its kind, and the way to it step by step."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from remora.codec.topic import SLO, delivery_of, has_literal_keys, parse_args, usable_delivery
from remora.config import Settings
from remora.endpoints.arguments import AMQP, COMMON, HTTP, KAFKA, NATS, Reasons
from remora.endpoints.kinds import EndpointKind, EndpointOnDemand, Opening, offered_kinds, on_demand
from remora.metrics import Telemetry
from remora.model.errors import CodecError, EndpointMisconfigured
from remora.model.record import Record
from remora.model.shard import Origin
from remora.model.topic import Delivery, Target, Topic
from remora.policy.ownership.not_owned import Schemes
from remora.policy.status.objectives import parse_objective
from remora.ports.endpoint import Endpoint, EndpointSource, ProbeStep, TransactionalEndpoint

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


def load_clients(settings: Settings) -> None:
    """Load what each kind of endpoint, and the probe of each, loads on its first use."""
    for scheme, kind in KINDS.items():
        kind.make(settings, None)
        _probe_of(scheme)


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
