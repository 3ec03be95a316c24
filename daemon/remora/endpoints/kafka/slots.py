"""The producers in use: shared by topics, replaced when they fail, closed when nobody uses them."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import aiokafka.errors as kafka

from remora.config import KafkaSettings
from remora.endpoints.kafka.batches import CODECS
from remora.endpoints.kafka.connecting import connection_options, find_broker
from remora.endpoints.kafka.errors import translate
from remora.endpoints.kafka.producers import SharedProducer, build_driver, stop_driver
from remora.endpoints.kafka.target import Cluster
from remora.endpoints.kafka.tasks import CrashObserver, Tasks
from remora.endpoints.kafka.tls import Trust
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.model.shard import Shard


class KafkaObserver(CrashObserver, Protocol):
    """Who wants to know what becomes of connections; `cluster` is `host:port,...` without secrets."""

    def producer_opened(self, cluster: str) -> None: ...

    def producer_retired(self, cluster: str, reason: str) -> None: ...

    def producer_closed(self, cluster: str) -> None: ...

    def exact_opened(self, cluster: str) -> None:
        """Connections for a route in transactions were opened."""
        ...

    def exact_closed(self, cluster: str) -> None: ...

    def transaction_ended(self, cluster: str, outcome: str, seconds: float) -> None:
        """A transaction was waited for so long; `outcome` is committed, aborted, fenced or unknown."""
        ...

    def partitions_changed(self, cluster: str, topic: str, before: int, after: int) -> None: ...

    def limit_assumed(self, cluster: str, topic: str, limit_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Connection:
    """The identity of a connection: equal ones may share a producer, others never do."""

    cluster: Cluster
    trust: Trust | None = None


class ProducerSlot:
    """A place for one producer at a time. Whoever needs it waits for the same opening."""

    def __init__(self, connection: Connection, settings: KafkaSettings, observer: KafkaObserver, tasks: Tasks) -> None:
        self.connection = connection
        self.topics: Counter[str] = Counter()
        self._settings = settings
        self._observer = observer
        self._tasks = tasks
        self._current: SharedProducer | None = None
        self._opening: asyncio.Task[SharedProducer | Exception] | None = None
        self._closed = False

    def __str__(self) -> str:
        return str(self.connection.cluster)

    @property
    def current(self) -> SharedProducer | None:
        """The producer that takes new batches, where one is open."""
        return self._current

    async def ready(self) -> SharedProducer:
        """The producer, opened when there is none. Raises EndpointUnavailable or EndpointMisconfigured.

        What nobody foresaw is raised too, for each of those who waited.
        """
        if self._current is not None:
            return self._current
        if self._closed:
            raise EndpointUnavailable(f"{self}: the endpoint is closed")
        if self._opening is None:
            self._opening = self._tasks.ask(self._open(), name=f"open {self}")
        opening = self._opening
        await asyncio.wait([opening])  # neither cancels it with one of those who wait, nor them with it
        if opening.cancelled():
            raise EndpointUnavailable(f"{self}: the endpoint is closed")
        outcome = opening.result()
        del opening
        if isinstance(outcome, SharedProducer):
            return outcome
        try:
            if isinstance(outcome, EndpointError):
                raise type(outcome)(str(outcome)) from outcome.__cause__
            raise RuntimeError(f"{self} could not be opened") from outcome
        finally:
            del outcome  # no frame may keep the exception that it raises: see `without_frames`

    def close(self, patience_s: float) -> None:
        """Close what is open, in the background."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        self._bury(patience_s)

    def close_idle(self, idle_s: float) -> None:
        """Close the producer when nobody has used it for that long; the next use opens another one."""
        producer = self._current
        if producer is None or producer.under_way:
            return
        if asyncio.get_running_loop().time() - producer.last_used >= idle_s:
            self._bury(0)

    async def _open(self) -> SharedProducer:
        try:
            self._current = producer = await self._start()
        finally:
            self._opening = None
        self._observer.producer_opened(str(self))
        return producer

    async def _start(self) -> SharedProducer:
        """Connect and get a producer id, each within the time to connect: a broker that was awaited for most of it, as
        after an outage, is not given up right after it has answered."""
        settings, cluster = self._settings, self.connection.cluster
        options = await connection_options(cluster, self.connection.trust)
        broker = await find_broker(cluster, options, settings.client_id, settings.connect_timeout_s)
        driver = build_driver(str(broker), options, settings)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await driver.start()
        except TimeoutError as exc:
            await stop_driver(driver)
            raise EndpointUnavailable(f"{broker} answers, but not the brokers that it names") from exc
        except kafka.KafkaError as exc:
            await stop_driver(driver)
            raise translate(exc, str(broker)) from exc
        except BaseException:
            await stop_driver(driver)
            raise
        return SharedProducer(driver, str(self), CODECS[settings.compression], self._retired)

    def _retired(self, producer: SharedProducer, reason: str) -> None:
        """A producer takes nothing new any more: let it end what it has, and have another one opened."""
        if producer is self._current:
            self._observer.producer_retired(str(self), reason)
            self._bury(self._settings.delivery_timeout_s)

    def _bury(self, patience_s: float) -> None:
        producer, self._current = self._current, None
        if producer is not None:
            self._tasks.begin(self._close(producer, patience_s), name=f"close {self}")

    async def _close(self, producer: SharedProducer, patience_s: float) -> None:
        await producer.close(patience_s)
        self._observer.producer_closed(str(self))


class ProducerSlots:
    """All slots of an endpoint, by connection."""

    def __init__(self, settings: KafkaSettings, observer: KafkaObserver, tasks: Tasks) -> None:
        self._settings = settings
        self._observer = observer
        self._tasks = tasks
        self._slots: dict[tuple[Connection, int], ProducerSlot] = {}

    def slot(self, connection: Connection, shard: Shard) -> ProducerSlot:
        """The slot of a shard, always the same one: within a producer order holds, between two it does not."""
        number = zlib.crc32(shard.queue.encode()) % self._settings.producers_per_endpoint
        slot = self._slots.get((connection, number))
        if slot is None:
            slot = ProducerSlot(connection, self._settings, self._observer, self._tasks)
            self._slots[connection, number] = slot
        return slot

    async def sweep(self) -> None:
        """Close idle producers until cancelled."""
        idle_s = self._settings.idle_timeout_s
        while True:
            await asyncio.sleep(min(idle_s / 4, 10.0))
            for key, slot in list(self._slots.items()):
                slot.close_idle(idle_s)
                if slot.current is None and not slot.topics:
                    del self._slots[key]

    def close(self, patience_s: float) -> None:
        """Begin to close everything; the task group waits for it."""
        for slot in self._slots.values():
            slot.close(patience_s)
        self._slots.clear()
