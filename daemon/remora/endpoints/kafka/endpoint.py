"""The Kafka endpoint: routes from shards to Kafka topics over shared senders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import aiokafka.errors as kafka

from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.config.delivery import KafkaSettings
from remora.endpoints.arrived import Arrived
from remora.endpoints.kafka.batches import CODECS, OnSettled
from remora.endpoints.kafka.bearer import OwnLogin, TokenDesks, TokenLogin, refuse_url
from remora.endpoints.kafka.client import install_log_filter
from remora.endpoints.kafka.errors import TOO_LARGE, UNCLEAR, translate
from remora.endpoints.kafka.exact import ExactKafkaRoute, ExactRoutes
from remora.endpoints.kafka.identity import ConnectionIdentity, connection_options, find_live
from remora.endpoints.kafka.kerberos import read_login
from remora.endpoints.kafka.lookup import UNREACHABLE, TopicFacts, look_up_and_follow
from remora.endpoints.kafka.packer import KafkaBatch, LetterBatch, LetterPacker, Packer, RecordOrigin, SmallerBatches
from remora.endpoints.kafka.sender import FailedInCompany, NotSent
from remora.endpoints.kafka.sender_pool import SenderPool, SenderSlot
from remora.endpoints.kafka.target import KafkaCluster, KafkaTarget, parse_target
from remora.endpoints.observer import KafkaObserver, LogObserver
from remora.endpoints.tasks import Tasks
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import Tls, TlsFiles, Trust, TrustCache
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.policy.delivery.destinations import DestinationRules
from remora.ports.endpoint import ALL_LANES, Batch

log = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 2.0


class KafkaEndpoint:
    """Delivers to `kafka://` targets: idempotent, acks=all, in order per key.

    Used as `async with KafkaEndpoint(settings) as endpoint`. Leaving closes every connection within a few
    seconds, also when brokers are gone. Pushes should have ended before.
    """

    def __init__(
        self, settings: KafkaSettings, observer: KafkaObserver | None = None, rules: DestinationRules | None = None
    ) -> None:
        """`rules` say where brokers may lie; without any, everywhere."""
        self._settings = settings
        self._rules = rules or DestinationRules()
        self._observer = observer or LogObserver()
        self._smaller = SmallerBatches()
        self._arrived = Arrived()
        self._tasks = Tasks(self._observer)
        self._exact = ExactRoutes(settings, self._observer, self._smaller, self._tasks)
        self._senders = SenderPool(settings, self._observer, self._tasks)
        self._desks = TokenDesks(settings, self._tasks, self._rules)
        self._trusts = TrustCache(TlsFiles(settings.ca_places, settings.client_places))
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def schemes(self) -> frozenset[str]:
        return frozenset({"kafka"})

    async def __aenter__(self) -> Self:
        install_log_filter()
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.begin(self._senders.sweep(), name="close idle Kafka senders")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._sweeper is not None
        self._sweeper.cancel()
        self._senders.close(CLOSE_PATIENCE_S)
        self._desks.close()
        await self._tasks.__aexit__(None, None, None)

    def check(self, target: Target) -> list[str]:
        meant = parse_target(target)
        if meant.cluster.bearer is not None:
            refuse_url(meant.cluster.bearer, self._settings)
        return list(meant.remarks)

    def publishes_letters(self, target: Target) -> bool:
        return bool(parse_args(target.args).get(DEAD_LETTER_TOPIC))  # asked of targets that cannot work, too

    async def up(self, target: Target) -> frozenset[str]:
        timeout_s, client_id = self._settings.connect_timeout_s, self._settings.client_id
        try:
            connection = await self._connection(parse_target(target).cluster)
            options = await connection_options(connection)
        except EndpointError:
            return frozenset()
        return await find_live(connection, options, client_id, timeout_s)

    def destination(self, target: Target) -> Hashable:
        return target.uri, target.args  # the same brokers, in the same way

    @asynccontextmanager
    async def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AsyncIterator[KafkaRoute]:
        meant = parse_target(target)
        slot = self._senders.slot(await self._connection(meant.cluster))
        topics = [meant.topic, meant.letters] if meant.letters else [meant.topic]
        slot.topics.update(topics)
        try:
            yield await self._open(slot, shard, incarnation, meant)
        finally:
            for topic in topics:
                slot.topics[topic] -= 1
                if slot.topics[topic] <= 0:
                    del slot.topics[topic]
                    if slot.current is not None:
                        slot.current.unfollow(topic)

    async def arrived_late(
        self, shard: Shard, incarnation: str, target: Target, positions: Sequence[bytes]
    ) -> frozenset[bytes]:
        try:
            meant = parse_target(target)
        except EndpointError:
            return frozenset()
        origin = RecordOrigin.of(shard.queue, incarnation)
        places = {(meant.cluster, meant.topic, origin, each): each for each in positions}
        arrived = await self._arrived.take_all(list(places), self._settings.delivery_timeout_s)
        return frozenset(places[each] for each in arrived)

    async def _connection(self, cluster: KafkaCluster) -> ConnectionIdentity:
        trust = await self._trust(cluster.tls) if cluster.tls is not None else None
        return ConnectionIdentity(cluster, trust, await self._login(cluster), self._rules)

    async def _trust(self, tls: Tls) -> Trust:
        """Whom to trust as this host's files say now."""
        trusts = self._trusts
        return await run_blocking(("trust", tls), lambda: trusts.read(tls), tls.what, self._settings.connect_timeout_s)

    async def _login(self, cluster: KafkaCluster) -> OwnLogin | None:
        """As whom to log in where aiokafka does not, with the keytab as it is now."""
        asked, settings = cluster.kerberos, self._settings
        if cluster.bearer is not None:
            refuse_url(cluster.bearer, settings)  # before a file is read for it
            trust = await self._trust(Tls(cluster.bearer.ca_location))
            return self._desks.desk(TokenLogin(cluster.bearer, trust))
        if asked is None:
            return None
        what = asked.keytab or settings.kerberos_keytab
        return await run_blocking(
            ("keytab", asked), lambda: read_login(asked, settings), what, settings.connect_timeout_s
        )

    @asynccontextmanager
    async def exact(self, shard: Shard, incarnation: str, target: Target) -> AsyncIterator[ExactKafkaRoute]:
        meant = parse_target(target)
        connection = await self._connection(meant.cluster)
        async with self._exact.route(connection, shard, incarnation, meant) as route:
            yield route

    async def _open(self, slot: SenderSlot, shard: Shard, incarnation: str, meant: KafkaTarget) -> KafkaRoute:
        topic, what, settings = meant.topic, f"topic {meant.topic} at {slot}", self._settings
        facts = await self._look_up(slot, topic, what)
        if not facts.limit_known and self._smaller.is_news(slot.connection, topic):
            self._observer.limit_assumed(str(slot), topic, facts.limit_bytes)
        packer = Packer(
            RecordOrigin.of(shard.queue, incarnation),
            facts.partitions,
            codec=CODECS[settings.compression],
            batch_bytes=self._smaller.ceiling(slot.connection, topic, facts, settings.max_batch_bytes),
            limit_bytes=facts.limit_bytes,
            cloudevents=meant.cloudevents,
        )
        route = KafkaRoute(slot, topic, facts.partitions, packer, settings, self._observer, self._smaller)
        route.arrived = self._arrived
        route.look_up = lambda: self._look_up(slot, topic, what)
        if meant.letters:
            route.letter_topic = lambda: self._find_letter_topic(slot, meant.letters)
        return route

    async def _find_letter_topic(self, slot: SenderSlot, topic: str) -> LetterTopic:
        """The topic for dead letters as it is now."""
        what = f"dead-letter topic {topic} at {slot}"
        facts, settings = await self._look_up(slot, topic, what), self._settings
        packer = LetterPacker(
            facts.partitions,
            codec=CODECS[settings.compression],
            batch_bytes=self._smaller.ceiling(slot.connection, topic, facts, settings.max_batch_bytes),
            limit_bytes=self._smaller.limit(slot.connection, topic, facts),
        )
        return LetterTopic(topic, what, packer)

    async def _look_up(self, slot: SenderSlot, topic: str, what: str) -> TopicFacts:
        sender = await slot.ready()
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                with sender.in_use():
                    return await look_up_and_follow(sender.client, topic, what, self._settings.connect_timeout_s)
        except TimeoutError as exc:
            sender.stop_taking("silence")
            raise EndpointUnavailable(f"{what}: no answer in time", "timeout") from exc
        except EndpointUnavailable as exc:
            if isinstance(exc.__cause__, UNREACHABLE):
                # It may only know brokers that are gone for good; another one starts from the target's own list.
                sender.stop_taking("no broker answers")
            raise


@dataclass(frozen=True, slots=True)
class LetterTopic:
    """A topic for dead letters, and how they are packed for it."""

    topic: str
    what: str
    packer: LetterPacker


class BatchFate:
    """What a push sees of its batch beside the outcome: whether it was given up on its way, and whether an earlier try
    may have arrived."""

    def __init__(self, on_left: Callable[[], OnSettled]) -> None:
        self._on_left = on_left
        self.has_left = self.doubts = False

    def give_up(self) -> OnSettled:
        """It was given up; what is to be called with what becomes of it."""
        self.has_left = True
        return self._on_left()

    def doubt(self) -> None:
        """It failed, and may have arrived."""
        self.doubts = True


class KafkaRoute:
    """From one shard to one Kafka topic, and to that for its dead letters, if any, which `letter_topic` finds.

    A route stays with its slot and its partition count. The sender in the slot may be replaced at any time: a shard has
    at most one batch of a lane under way, so the next one may travel over another sender.
    """

    acks_show_load = True
    width = ALL_LANES
    arrived: Arrived

    def __init__(
        self,
        slot: SenderSlot,
        topic: str,
        partitions: int,
        packer: Packer,
        settings: KafkaSettings,
        observer: KafkaObserver,
        smaller: SmallerBatches,
    ) -> None:
        self._slot = slot
        self._topic = topic
        self._partitions = partitions
        self._packer = packer
        self._settings = settings
        self._observer = observer
        self._smaller = smaller
        self._stale = False
        self.look_up: Callable[[], Awaitable[TopicFacts]] | None = None
        self.letter_topic: Callable[[], Awaitable[LetterTopic]] | None = None

    @property
    def stale(self) -> bool:
        if not self._stale and self._slot.current is not None:
            seen = self._slot.current.partitions(self._topic)
            if seen is not None and seen != self._partitions:
                self._observer.partitions_changed(str(self._slot), self._topic, self._partitions, seen)
                self._stale = True
        return self._stale

    def succeeds(self, after: bytes) -> None:
        self._packer.after = after

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        batches, refused = self._packer.pack(records)
        return list(batches), refused

    async def look_again(self) -> None:
        assert self.look_up is not None
        facts = await self.look_up()
        most = self._smaller.ceiling(self._slot.connection, self._topic, facts, self._settings.max_batch_bytes)
        self._packer.limit(most, facts.limit_bytes)

    async def push(self, batch: Batch) -> None:
        assert isinstance(batch, KafkaBatch)
        what, fate = f"topic {self._topic} at {self._slot}", BatchFate(lambda: self._left(batch))
        try:
            async with asyncio.timeout(self._settings.delivery_timeout_s):
                await self._deliver(batch, self._topic, self._packer.batch_bytes, fate)
        except TimeoutError as exc:
            seconds = self._settings.delivery_timeout_s
            error: EndpointError = EndpointUnavailable(f"{what}: not delivered within {seconds:g} s", "timeout")
            if fate.has_left or fate.doubts:  # what was doubted is the last attempt, where the next one was not sent
                error.unclear = range(len(batch.records))
            raise error from exc
        except EndpointError as exc:  # of a sender that could not be opened
            if fate.doubts:
                exc.unclear = range(len(batch.records))
            raise
        except kafka.KafkaError as exc:
            error = self._translate(exc, batch, what)
            if fate.doubts and not error.unclear:
                error.once_unclear = range(len(batch.records))
            raise error from exc

    def _left(self, batch: KafkaBatch) -> OnSettled:
        """A batch on its way was given up; what is to be called with what becomes of it."""
        meant = self._slot.connection.cluster, self._topic, batch.origin
        places = [(*meant, each.position) for each in batch.records]
        self.arrived.awaits(places)
        return lambda failure: self.arrived.tell(places, arrived=failure is None)

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        if self.letter_topic is None or not letters:
            return
        meant = await self.letter_topic()
        for batch in meant.packer.pack(letters):
            try:
                async with asyncio.timeout(self._settings.delivery_timeout_s):
                    await self._deliver(batch, meant.topic, meant.packer.batch_bytes)
            except TimeoutError as exc:
                seconds = self._settings.delivery_timeout_s
                raise EndpointUnavailable(f"{meant.what}: not delivered within {seconds:g} s", "timeout") from exc
            except kafka.KafkaError as exc:
                if isinstance(exc, TOO_LARGE):
                    codec, connection = CODECS[self._settings.compression], self._slot.connection
                    raise self._smaller.refused_letters(connection, meant.topic, codec, batch, meant.what) from exc
                raise translate(exc, meant.what) from exc

    async def _deliver(
        self,
        batch: KafkaBatch | LetterBatch,
        topic: str,
        batch_bytes: int,
        fate: BatchFate | None = None,
    ) -> None:
        """Send the batch, shared if possible; alone after a shared batch failed for a reason that another one may have
        caused."""
        while True:
            sender = await self._slot.ready()
            try:
                if fate is None:
                    return await sender.deliver(topic, batch.lane, batch, batch_bytes)
                return await sender.deliver(topic, batch.lane, batch, batch_bytes, fate.give_up, fate.doubt)
            except NotSent:
                continue  # the slot has another one, or opens it
            except FailedInCompany as exc:
                batch_bytes = 0
                if isinstance(exc.__cause__, TOO_LARGE):
                    self._stale = True
                    self._smaller.refused(self._slot.connection, topic, exc.nbytes)

    def _translate(self, exc: Exception, batch: KafkaBatch, what: str) -> EndpointError:
        if isinstance(exc, TOO_LARGE):
            self._stale = True
            if len(batch.records) > 1:
                self._smaller.refused(self._slot.connection, self._topic, batch.nbytes)
        error = translate(exc, what, records=len(batch.records))
        if isinstance(exc, UNCLEAR):
            error.unclear = range(len(batch.records))
        return error
