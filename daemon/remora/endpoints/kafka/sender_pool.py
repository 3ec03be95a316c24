"""The senders in use: shared by topics, replaced when they fail, closed when they are idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import aiokafka.errors as kafka

from remora.config.delivery import KafkaSettings
from remora.endpoints.kafka.errors import translate
from remora.endpoints.kafka.identity import ConnectionIdentity, build_client
from remora.endpoints.kafka.lookup import ask_until_reached
from remora.endpoints.kafka.produce import init_producer
from remora.endpoints.kafka.sender import SharedSender
from remora.endpoints.observer import KafkaObserver
from remora.endpoints.shared import Shared, sweep
from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointUnavailable


class SenderSlot:
    """A place for one sender at a time. All that need it wait for the same opening."""

    def __init__(
        self, connection: ConnectionIdentity, settings: KafkaSettings, observer: KafkaObserver, tasks: Tasks
    ) -> None:
        self.connection = connection
        self.topics: Counter[str] = Counter()
        self._settings = settings
        self._observer = observer
        self._tasks = tasks
        self._sender = Shared(
            str(self), tasks, self._open, self._close,
            used_at=lambda sender, _: None if sender.under_way else sender.last_used,
        )  # fmt: skip

    def __str__(self) -> str:
        return str(self.connection.cluster)

    @property
    def current(self) -> SharedSender | None:
        """The sender that takes new batches, where one is open."""
        return self._sender.current

    async def ready(self) -> SharedSender:
        """The sender, opened when there is none. Raises EndpointUnavailable or EndpointMisconfigured."""
        return await self._sender.ready()

    def close(self, patience_s: float) -> None:
        """Close what is open, in the background."""
        self._sender.close(patience_s)

    def close_idle(self, before: float) -> bool:
        """Close the sender when it was not used since then; whether there is none, nor a topic that needs one."""
        return self._sender.close_idle(before) and not self.topics

    async def _open(self) -> SharedSender:
        sender = await self._start()
        self._observer.producer_opened(str(self))
        return sender

    async def _start(self) -> SharedSender:
        """Connect and get a producer id, each within the time to connect: a broker that was awaited for most of it, as
        after an outage, is not given up right after it has answered."""
        settings = self._settings
        client, broker = await build_client(self.connection, settings)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await client.bootstrap()
                numbering = await init_producer(partial(ask_until_reached, client))
        except TimeoutError as exc:
            await client.shut()
            raise EndpointUnavailable(f"{broker} answers, but not the brokers that it names", "connect") from exc
        except kafka.KafkaError as exc:
            await client.shut()
            raise translate(exc, str(broker)) from exc
        except BaseException:
            await client.shut()
            raise
        return SharedSender(client, numbering, str(self), settings, self._tasks, self._retired)

    def _retired(self, sender: SharedSender, reason: str) -> None:
        """A sender takes nothing new any more: let it end what it has, and have another one opened."""
        if sender is self._sender.current:
            self._observer.producer_retired(str(self), reason)
            self._sender.close_current(self._settings.delivery_timeout_s)

    async def _close(self, sender: SharedSender, patience_s: float) -> None:
        await sender.close(patience_s)
        self._observer.producer_closed(str(self))


class SenderPool:
    """All slots of an endpoint, by connection."""

    def __init__(self, settings: KafkaSettings, observer: KafkaObserver, tasks: Tasks) -> None:
        self._settings = settings
        self._observer = observer
        self._tasks = tasks
        self._slots: dict[ConnectionIdentity, SenderSlot] = {}

    def slot(self, connection: ConnectionIdentity) -> SenderSlot:
        """The slot of a connection, always the same one: within a sender order holds, between two it does not."""
        slot = self._slots.get(connection)
        if slot is None:
            slot = self._slots[connection] = SenderSlot(connection, self._settings, self._observer, self._tasks)
        return slot

    async def sweep(self) -> None:
        """Close idle senders until cancelled."""
        await sweep(self._settings.idle_timeout_s, self._close_idle)

    def _close_idle(self, before: float) -> None:
        for key, slot in list(self._slots.items()):
            if slot.close_idle(before):
                del self._slots[key]

    def close(self, patience_s: float) -> None:
        """Begin to close everything; the task group waits for it."""
        for slot in self._slots.values():
            slot.close(patience_s)
        self._slots.clear()
