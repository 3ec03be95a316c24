"""A worker on scripted queues and a real broker whose size limit is raised while the way to it is open."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from devkit.clusters.kafka import Kafka, create_topic, read_committed, widen_topic
from devkit.entries.entries import raw_entry
from devkit.waits import until
from engine.fakes import FakeStore
from engine.runs import QUICK, a_topic, running
from remora.config import DeliverySettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.topic import Delivery
from support.kafka_sender import PATIENT

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("mode", Delivery)
async def test_raised_under_an_open_route(kafka: Kafka, mode: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that is larger than the limit was when the route was opened is delivered, not a dead letter."""
    monkeypatch.setattr(
        "remora.policy.delivery.pace.PASSIVATE_AFTER_S", 600.0
    )  # while the limit is raised the queue is empty
    topic = await create_topic(kafka.address, partitions=1, max_message_bytes=3000)
    store, telemetry = FakeStore(tells=True), Telemetry()
    queue = store.make("t", raw_entry("k", 0, topic=topic))
    store.metadata["t"] = a_topic(uri=f"kafka://{kafka.address}", to=topic)
    async with KafkaEndpoint(replace(PATIENT, compression="none"), telemetry) as endpoint:
        opened = 0

        def enter_counted(*args: Any, **options: Any) -> Any:
            nonlocal opened
            opened += 1
            return enter(*args, **options)

        way = "exact" if mode is Delivery.EXACTLY_ONCE else "route"
        enter = getattr(endpoint, way)
        monkeypatch.setattr(endpoint, way, enter_counted)
        settings = DeliverySettings(mode=mode.value)
        worker = Worker(store, [endpoint], telemetry, WorkerSetup("remora/h/b/w1", QUICK, settings), Random(7))
        async with running(worker):
            await until(lambda: not queue.waiting, "the first is delivered")
            queue.append(raw_entry("k", 1, topic=topic, padding=5000), raw_entry("k", 2, topic=topic))
            await until(lambda: not queue.waiting, "the first that is too large is parked, and what follows delivered")
            before = opened

            await widen_topic(kafka.address, topic, max_message_bytes=20_000)
            queue.append(raw_entry("k", 3, topic=topic, padding=5000), raw_entry("k", 4, topic=topic))
            await until(lambda: not queue.waiting, "the second that is as large has left the queue")

    read = await read_committed(kafka.address, topic)
    assert [dict(each.headers)["remora-event-id"] for each in read] == [b"id-0", b"id-2", b"id-3", b"id-4"]
    assert [letter.cause for letter in store.parked.values()] == ["too_large"]
    assert opened == before
