"""Dead letters are counted as they lie in the store, whoever stored them."""

from __future__ import annotations

import asyncio
from random import Random

from devkit.clock import in_virtual_time
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import QUICK, a_topic, running, until
from engine.test_ownership import sample
from remora.config import DeliverySettings
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.record import DeadLetter


def letter(queue: str, position: int) -> DeadLetter:
    """A letter of an earlier run."""
    return DeadLetter(queue, "i", f"0/{position}", f"0/{position + 1}", "expired", "too old", 0, 1.0, 2.0, b"raw")


@in_virtual_time
async def test_letters_of_an_earlier_run_are_counted_by_topic() -> None:
    """After a start they are shown at once, those of a topic that is gone by its queue; dropped ones are not."""
    store, telemetry = FakeStore(tells=True), Telemetry()
    store.make("t")
    store.metadata["t"] = a_topic()
    for queue, position in (("t", 0), ("t", 9), ("gone", 0)):
        store.parked[queue, "i", f"0/{position}"] = letter(queue, position)
    setup = WorkerSetup("remora/h/b/w1", QUICK, DeliverySettings(), counts_letters=True)

    async with running(Worker(store, [FakeEndpoint()], telemetry, setup, Random(7))):
        await until(lambda: sample(telemetry, "remora_dead_letters", topic="t") == 2, within_s=20)
        assert sample(telemetry, "remora_dead_letters", topic="gone") == 1
        assert {each.topic: each.dead_letters for each in telemetry.topics()} == {"gone": 1, "t": 2}
        del store.parked["t", "i", "0/0"]
        await asyncio.sleep(20)

        assert sample(telemetry, "remora_dead_letters", topic="t") == 1
