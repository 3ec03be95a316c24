"""What is left of shards that were released."""

from __future__ import annotations

import asyncio
import gc

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, drained, running, until

EXACT = "remora-delivery=exactly-once"


@pytest.mark.parametrize(("count", "args", "serves"), [(1000, "", False), (50, "", True), (50, EXACT, True)])
@in_virtual_time
async def test_released_shards_leave_nothing_for_the_collector(count: int, args: str, serves: bool) -> None:
    """However often they are acquired, served and released: what is left out of collections of garbage is freed when
    nothing refers to it, and stays for good where it refers to itself."""
    store, objects = FakeStore(tells=True), list[int]()
    for number in range(count):
        store.make(f"t{number}")
        store.metadata[f"t{number}"] = a_topic(f"t{number}", to=f"t{number}", args=args)
    worker = a_worker(store, FakeEndpoint())

    async with running(worker):
        await until(lambda: worker.held_shards == count)
        gc.collect()
        gc.disable()
        try:
            for number in range(3):
                for queue in store.queues.values() if serves else ():
                    queue.append(raw_entry("k", number))
                await drained(store)
                await until(lambda: not worker.served)
                worker.drain(True)
                await until(lambda: not worker.held_shards)
                await asyncio.sleep(1)
                objects.append(len(gc.get_objects()))
                worker.drain(False)
                await until(lambda: worker.held_shards == count)
            garbage = gc.collect()
        finally:
            gc.enable()

    assert garbage < count  # of three rounds: less than an object in a round for three shards
    assert serves or objects[2] - objects[1] < count  # the scripted store and endpoint keep what was sent
