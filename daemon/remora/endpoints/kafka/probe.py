"""The way to a Kafka topic, step by step: the log-in, the topic, and whether this user may write to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiokafka.errors as kafka
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from remora.config.settings import Settings
from remora.endpoints.kafka.bearer import GivenToken, OwnLogin, TokenLogin, ask_for_token, refuse_url
from remora.endpoints.kafka.client import connected
from remora.endpoints.kafka.errors import translate
from remora.endpoints.kafka.identity import ConnectionIdentity, connection_options, find_broker
from remora.endpoints.kafka.kerberos import read_login
from remora.endpoints.kafka.target import KafkaTarget, parse_target
from remora.endpoints.probes import HostPort, Network, ProbePart
from remora.endpoints.tls import Tls, TlsFiles, read_trust
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.model.topic import Target


def tls_of(target: Target) -> Tls | None:
    """The files that the target names. Raises EndpointMisconfigured."""
    return parse_target(target).cluster.tls


def parts_of(target: Target, settings: Settings, files: TlsFiles, *, by_operator: bool) -> list[ProbePart]:
    """The steps of the way. Raises EndpointMisconfigured for a target that means nothing."""
    meant, kafka_settings = parse_target(target), settings.kafka
    places = [HostPort(each.host, each.port) for each in meant.cluster.brokers]
    timeout_s = kafka_settings.connect_timeout_s
    network = Network(places, meant.cluster.tls, files, settings.destination_rules, timeout_s, by_operator)
    probe = KafkaProbe(meant, settings, files)
    token = [ProbePart("token", probe.get_token)] if meant.cluster.bearer is not None else []
    steps = [*network.parts(), *token, ProbePart("login", probe.log_in), ProbePart("topic", probe.find)]
    return [*steps, ProbePart("write", probe.write)]


class KafkaProbe:
    """The steps behind the connection; each makes one of its own."""

    def __init__(self, meant: KafkaTarget, settings: Settings, files: TlsFiles) -> None:
        self._meant = meant
        self._settings = settings.kafka
        self._rules = settings.destination_rules
        self._files = files
        self._what = f"topic {meant.topic} at {meant.cluster}"
        self._token: GivenToken | None = None

    async def get_token(self) -> str:
        """Ask for a token, which the steps behind this one show."""
        asked = self._meant.cluster.bearer
        assert asked is not None
        refuse_url(asked, self._settings)  # before a file is read for it
        trust = await asyncio.to_thread(read_trust, Tls(asked.ca_location), self._files)
        held = await ask_for_token(TokenLogin(asked, trust), self._settings, self._rules)
        self._token = GivenToken(held)
        return f"{asked.url} grants a token for {held.lasts_s:.0f} s"

    async def log_in(self) -> str:
        """Find a broker that lets us in."""
        way, cluster = await self._way(), self._meant.cluster
        broker = await find_broker(
            way, await connection_options(way), self._settings.client_id, self._settings.connect_timeout_s
        )
        if cluster.login is not None:
            return f"{broker} lets user {cluster.login.user} in"
        shown = "a ticket of Kerberos" if cluster.kerberos else "a token" if cluster.bearer else ""
        return f"{broker} lets us in {f'with {shown}' if shown else 'without a user'}"

    async def find(self) -> str:
        """Look for the topic, without making it."""
        topic = self._meant.topic
        async with self._connected() as connection:
            answer = await connection.send(MetadataRequest([topic], allow_auto_topic_creation=False))
        for code, name, *_, partitions in answer.topics:
            error = kafka.for_code(code)
            if name == topic and error is kafka.UnknownTopicOrPartitionError:
                raise EndpointMisconfigured(f"{self._what}: there is no such topic in Kafka")
            if name == topic and error is not kafka.NoError:
                raise translate(error(), self._what)
            if name == topic:
                return f"{topic} has {len(partitions)} partition{'' if len(partitions) == 1 else 's'}"
        raise EndpointMisconfigured(f"{self._what}: there is no such topic in Kafka")

    async def write(self) -> str:
        """Write nothing: a broker looks at the permission before it refuses a batch without records."""
        topic = self._meant.topic
        request = ProduceRequest(None, -1, 1000, [(topic, [(0, b"")])])
        async with self._connected() as connection:
            answer = await connection.send(request)
        error = kafka.for_code(answer.topics[0][1][0][1])
        if issubclass(error, kafka.TopicAuthorizationFailedError | kafka.ClusterAuthorizationFailedError):
            raise translate(error(), self._what)
        return f"the user may write to {topic}"

    async def _way(self) -> ConnectionIdentity:
        cluster, files = self._meant.cluster, self._files
        trust = await asyncio.to_thread(read_trust, cluster.tls, files) if cluster.tls is not None else None
        login: OwnLogin | None = self._token
        if cluster.kerberos is not None:
            login = await asyncio.to_thread(read_login, cluster.kerberos, self._settings)
        return ConnectionIdentity(cluster, trust, login, self._rules)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """A connection to a broker that lets us in. Errors of Kafka's become EndpointError."""
        way, settings = await self._way(), self._settings
        options = await connection_options(way)
        broker = await find_broker(way, options, settings.client_id, settings.connect_timeout_s)
        try:
            async with (
                asyncio.timeout(settings.connect_timeout_s),
                connected(broker, settings.client_id, way.login, settings.connect_timeout_s, **options) as found,
            ):
                yield found
        except TimeoutError as exc:
            raise EndpointUnavailable(f"{self._what}: no answer in time", "timeout") from exc
        except kafka.KafkaError as exc:
            raise translate(exc, self._what) from exc
