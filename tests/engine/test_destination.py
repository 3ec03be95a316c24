"""What shards of one destination tell each other."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.model.topic import Target
from remora.ports.endpoint import Batch

AWAY = Fate(arrives=0, error=EndpointUnavailable("no answer"))


def a_full_store(*queues: str) -> FakeStore:
    store = FakeStore()
    for queue in queues:
        store.make(queue, *(raw_entry(f"k{i}", i, topic=queue) for i in range(10)))
        store.metadata[queue] = a_topic(queue, to=queue)
    return store


@in_virtual_time
async def test_a_destination_that_is_back_is_used_by_all_its_shards_at_once() -> None:
    """After a long outage every shard delivers within two seconds of the first, long before its own pause ends."""
    store, endpoint = a_full_store(*(f"t{i}" for i in range(40))), FakeEndpoint()
    is_away = True
    endpoint.fate = lambda *_: AWAY if is_away else Fate()

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(600)
        assert endpoint.arrived == []
        is_away = False
        async with asyncio.timeout(30):
            while not endpoint.arrived:  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(0.01)
        await drained(store, within_s=2)


@in_virtual_time
async def test_a_shard_that_fails_alone_keeps_its_pause() -> None:
    """A shard that fails for a reason of its own is hardly hurried by one that fails and recovers all the time."""
    store, endpoint = a_full_store("alone", "flapping"), FakeEndpoint(lanes=1)
    tried: list[str] = []

    def fate(route: FakeRoute, _: Batch) -> Fate:
        topic = route.target.topic
        tried.append(topic)
        return AWAY if topic == "alone" or tried.count(topic) % 2 else Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        for i in range(600):
            store.queues["flapping"].append(raw_entry("k", i, topic="flapping"))
            await asyncio.sleep(1)

    assert tried.count("flapping") > 300
    assert tried.count("alone") < 600 / 5 + 60  # told every 5 s, and its own pauses of 15 s on average


@in_virtual_time
async def test_a_topic_s_own_pause_between_retries_is_kept() -> None:
    """A topic with a retry_sleep_duration waits that long, also when its destination works for another one."""
    store, endpoint = a_full_store("patient", "quick"), FakeEndpoint()
    store.metadata["patient"] = a_topic("patient", to="patient", retry_sleep_s=100)
    is_away = True
    endpoint.fate = lambda *_: AWAY if is_away else Fate()

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(50)
        is_away = False
        await drained(store, "quick", within_s=31)
        await asyncio.sleep(5)
        assert store.queues["patient"].waiting == 10
        await drained(store, "patient", within_s=100)


class Outage:
    """Every shard's endpoint is away, until `ends`: then it answers, and takes what it is given `settled_s` later."""

    def __init__(self, endpoint: FakeEndpoint, *, frozen_s: float = 0.0, settled_s: float = 0.0) -> None:
        """A frozen one says nothing for `frozen_s` to each question, another one refuses at once."""
        self._endpoint = endpoint
        self._frozen_s = frozen_s
        self._settled_s = settled_s
        self._up_at: float | None = None
        endpoint.opening_s = frozen_s
        endpoint.opening = lambda _: None if self._is_settled else EndpointUnavailable("no answer")
        endpoint.answering = lambda _: ("", frozen_s) if self._up_at is None else ("1", 0.01)

    @property
    def _is_settled(self) -> bool:
        return self._up_at is not None and asyncio.get_running_loop().time() >= self._up_at + self._settled_s

    def ends(self) -> None:
        self._up_at = asyncio.get_running_loop().time()
        self._endpoint.opening_s = 0.0


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("frozen_s", [0.0, 5.0])
@pytest.mark.parametrize("shards", [1, 10])
@in_virtual_time
async def test_the_first_entry_leaves_seconds_after_a_destination_answers(
    shards: int, frozen_s: float, mode: Literal["at-least-once", "exactly-once"]
) -> None:
    """However long nothing answered, from the first answer on no shard takes a pause of the outage."""
    store, endpoint = a_full_store(*(f"t{i}" for i in range(shards))), FakeEndpoint()
    outage = Outage(endpoint, frozen_s=frozen_s)
    settings = DeliverySettings(retry_cap_s=3600, mode=mode)

    async with running(a_worker(store, endpoint, settings)):
        await asyncio.sleep(1500)
        outage.ends()
        await drained(store, within_s=frozen_s + 4)


@in_virtual_time
async def test_pauses_begin_anew_when_a_destination_answers() -> None:
    """A destination that answers and takes nothing for another 10 s is tried again soon after these."""
    store, endpoint = a_full_store("t"), FakeEndpoint()
    outage = Outage(endpoint, settled_s=10)

    async with running(a_worker(store, endpoint, DeliverySettings(retry_cap_s=3600))):
        await asyncio.sleep(1500)
        outage.ends()
        await drained(store, within_s=40)


@in_virtual_time
async def test_an_outage_that_ends_before_the_first_look_ends_the_pause() -> None:
    """Where the first pause is long already, a destination that failed for a moment only does not wait for its end."""
    store, endpoint = a_full_store("t"), FakeEndpoint()
    tried = 0

    def opening(_: object) -> EndpointError | None:
        nonlocal tried
        tried += 1
        return EndpointUnavailable("no answer") if tried == 1 else None

    endpoint.opening = opening
    async with running(a_worker(store, endpoint, DeliverySettings(retry_base_s=3600, retry_cap_s=3600))):
        await drained(store, within_s=10)


@in_virtual_time
async def test_an_attempt_that_outlasts_the_outage_is_followed_by_another_one_soon() -> None:
    """A shard that is in the middle of an attempt when its destination answers another shard's look, and then fails,
    pauses as after a first failure."""
    store, endpoint = a_full_store("t", "u"), FakeEndpoint()
    outage = Outage(endpoint)
    tried: list[float] = []

    async with running(a_worker(store, endpoint, DeliverySettings(retry_base_s=600, retry_cap_s=3600))) as _:
        await asyncio.sleep(1500)

        def opening(target: Target) -> EndpointError | None:
            tried.append(asyncio.get_running_loop().time())
            return EndpointUnavailable("no answer") if len(tried) <= 2 else None

        endpoint.opening = opening
        outage.ends()
        await until(lambda: len(tried) >= 2, within_s=10)
        await drained(store, within_s=1200)

    assert tried[1] - tried[0] < 1


@in_virtual_time
async def test_a_part_of_a_destination_that_comes_back_is_news() -> None:
    """Where some brokers answered all the time, the return of another one ends the pauses too."""
    store, endpoint = a_full_store("t"), FakeEndpoint()
    up = "12"
    endpoint.answering = lambda _: (up, 0.01)
    endpoint.opening = lambda _: None if "3" in up else EndpointUnavailable("the partition has no leader now")

    async with running(a_worker(store, endpoint, DeliverySettings(retry_cap_s=3600))):
        await asyncio.sleep(1500)
        up = "123"
        await drained(store, within_s=4)


@in_virtual_time
async def test_what_answers_all_the_time_ends_no_pause() -> None:
    """Shards that fail at a destination which answers keep their pauses: it is not tried at each look."""
    store, endpoint = a_full_store("t"), FakeEndpoint()
    tried = 0

    def opening(_: object) -> EndpointError:
        nonlocal tried
        tried += 1
        return EndpointUnavailable("too few replicas are in sync")

    endpoint.opening = opening
    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(3600)

    assert tried < 3600 / 15 * 1.5


@in_virtual_time
async def test_looks_keep_a_budget_and_end_with_the_outage() -> None:
    """Hundreds of destinations that are away are looked at 20 times a second in all, and never when they work."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for i in range(100):
        store.make(f"t{i}", raw_entry("k", i, topic=f"t{i}"))
        store.metadata[f"t{i}"] = a_topic(f"t{i}", f"kafka://b{i}:9092", to=f"t{i}")
    outage = Outage(endpoint)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(60)
        before = endpoint.looks
        await asyncio.sleep(60)
        assert endpoint.looks - before == pytest.approx(60 * 20, rel=0.2)
        outage.ends()
        await drained(store, within_s=60)
        await asyncio.sleep(15)
        before = endpoint.looks
        await asyncio.sleep(60)
        assert endpoint.looks == before


@in_virtual_time
async def test_a_defect_in_a_look_costs_the_look() -> None:
    """An endpoint that cannot even be asked without an unforeseen exception is tried at the end of each pause."""
    store, endpoint = a_full_store("t"), FakeEndpoint()
    is_away = True

    def answering(_: Target) -> tuple[str, float]:
        raise TypeError("unforeseen")

    endpoint.answering = answering
    endpoint.opening = lambda _: EndpointUnavailable("no answer") if is_away else None
    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(60)
        is_away = False
        await drained(store, within_s=31)

    assert endpoint.looks > 10


@in_virtual_time
async def test_a_change_that_came_during_the_attempt_ends_the_pause_after_it() -> None:
    """Attributes that changed while an attempt with the old ones went on are tried at once when it has failed."""
    store, endpoint = a_full_store("t"), FakeEndpoint()
    store.metadata["t"] = a_topic("t", to="old", retry_sleep_s=3600)
    endpoint.opening = lambda target: EndpointUnavailable("no") if target.topic == "old" else None
    endpoint.opening_s = 5

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(2)
        store.metadata["t"] = a_topic("t", to="new", retry_sleep_s=3600)
        await drained(store, within_s=30)
