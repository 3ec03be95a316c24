"""Delivery to a RabbitMQ queue with little room: the engine and the endpoint together."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from devkit.clusters.rabbitmq import RabbitMQ, bodies
from devkit.entries.entries import raw_entry
from devkit.waits import until
from engine.fakes import FakeStore
from engine.runs import QUICK, a_topic, running
from remora.config import AmqpSettings, DeliverySettings
from remora.endpoints.amqp import AmqpEndpoint
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.topic import Target

FIRST_S = 0.02
BACK_OFF = DeliverySettings(retry_base_s=FIRST_S, retry_cap_s=16 * FIRST_S)


AMQP = replace(QUICK, schemes=("amqp",))


class Middle(Random):
    """Chance that makes each pause half as long as its step of the back-off allows."""

    def random(self) -> float:
        return 0.5


class Heard(Telemetry):
    """Hears of each pause, with how much was acknowledged since the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[tuple[int, float]] = []
        self._acked = self._seen = 0

    def is_news(self) -> bool:
        """Whether there was a pause since this was asked last."""
        seen, self._seen = self._seen, len(self.pauses)
        return self._seen > seen

    def delivered(self, topic: str, entries: int, *more: object) -> None:
        self._acked += entries

    def retry(self, topic: str, delay_s: float) -> None:
        self.pauses.append((self._acked, delay_s))
        self._acked = 0


async def test_a_queue_with_little_room_is_served_at_its_own_pace(rabbitmq: RabbitMQ) -> None:
    """A queue that refuses what it has no room for, and is emptied at each refusal, gets everything: the pause
    behind whatever it took is the back-off's first one, also within a page."""
    exchange, store, heard = await rabbitmq.exchange(), FakeStore(tells=True), Heard()
    queue = await rabbitmq.queue(exchange, x_max_length=3, x_overflow="reject-publish")
    store.make("t", *(raw_entry(f"k{number}", number) for number in range(30)))
    target = Target(f"amqp://{rabbitmq.address}", f"amqp-exchange={exchange}", "t")
    store.metadata["t"] = replace(a_topic("t"), target=target)
    found = []

    async with AmqpEndpoint(AmqpSettings(), heard) as amqp:
        worker = Worker(store, [amqp], heard, WorkerSetup("remora/h/b/w1", AMQP, BACK_OFF), Middle(7))
        async with running(worker) as task:
            while store.queues["t"].waiting:
                await until(lambda: heard.is_news() or not store.queues["t"].waiting, "it is full, or all has arrived")
                found += await rabbitmq.read(queue)
            task.cancel()
    found += await rabbitmq.read(queue)

    behind_acks = [pause_s for acked, pause_s in heard.pauses if acked]
    assert len(set(bodies(found))) == 30
    assert len(behind_acks) >= 5
    assert set(behind_acks) == {FIRST_S / 2}
