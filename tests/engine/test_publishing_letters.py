"""Dead letters that the endpoint is to get too: after the store, before the removal, however long that takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, drained, running
from remora.codec.topic import DEAD_LETTER_TOPIC
from remora.metrics import Telemetry
from remora.model.errors import EndpointError, EndpointMisconfigured, StoreUnavailable
from remora.model.topic import Target, Topic

GARBAGE = b"no entry"


def with_grave() -> Topic:
    return replace(a_topic(), target=Target("kafka://b:9092", f"{DEAD_LETTER_TOPIC}=letters", "t"))


@in_virtual_time
async def test_letters_go_to_both() -> None:
    """What cannot be delivered is in the store and at the endpoint, once each, before its entry is gone."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", raw_entry("a", 0), GARBAGE, raw_entry("b", 1))
    store.metadata["t"] = with_grave()
    fronts: list[tuple[int, int]] = []

    def letter_failure() -> EndpointError | None:
        fronts.append((queue.front, len(store.parked)))
        return None

    endpoint.letter_failure = letter_failure
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert [each.raw for each in endpoint.buried] == [GARBAGE]
    assert list(store.parked.values()) == endpoint.buried
    assert all(front <= 1 and parked == 1 for front, parked in fronts)


@in_virtual_time
async def test_a_grave_that_is_missing_keeps_the_entry() -> None:
    """Until the endpoint takes the letter its entry stays, the reason is shown, and the letter is stored but once."""
    store, endpoint, telemetry = FakeStore(), FakeEndpoint(), Telemetry()
    store.make("t", raw_entry("a", 0), GARBAGE, raw_entry("b", 1))
    store.metadata["t"] = with_grave()
    endpoint.letter_failure = lambda: EndpointMisconfigured("there is no such dead-letter topic")
    worker = a_worker(store, endpoint, telemetry=telemetry)

    async with running(worker):
        await asyncio.sleep(120)
        assert store.queues["t"].waiting == 2
        [shard] = worker.shards
        assert shard.reason == "there is no such dead-letter topic"
        assert store.calls["store_letters"] == 1
        endpoint.letter_failure = lambda: None
        await drained(store, within_s=60)

    assert [each.raw for each in endpoint.buried] == [GARBAGE]
    assert sorted(endpoint.events()) == [b"id-0", b"id-1"]
    assert list(store.parked.values()) == endpoint.buried


@in_virtual_time
async def test_a_letter_is_published_under_trust_only() -> None:
    """A letter whose storing outlasts the trust in the lock is not published then: its shard may be another worker's.

    It is published once the shard is owned again. Its storing ends after the trust, and before the loss is noticed.
    """
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", GARBAGE)
    store.metadata["t"] = with_grave()
    published_at: list[float] = []
    now = asyncio.get_running_loop().time
    works_again_at = now() + 200

    def letter_failure() -> EndpointError | None:
        published_at.append(now())
        return None

    def before(call: str) -> StoreUnavailable | None:
        return StoreUnavailable("no answer") if call in ("renew", "acquire") and 1 < now() < works_again_at else None

    endpoint.letter_failure = letter_failure
    store.before = before
    store.after = lambda call: 20.0 if call == "store_letters" and now() < works_again_at else None
    async with running(a_worker(store, endpoint)):
        await drained(store, within_s=600)

    assert published_at
    assert min(published_at) >= works_again_at
    assert [each.raw for each in endpoint.buried] == [GARBAGE]
