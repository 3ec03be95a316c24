"""Schemes of endpoints that are added to those whose topics are taken over, or removed, while a worker runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import QUICK, a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.engine.worker import Worker
from remora.model.errors import EndpointUnavailable
from remora.model.shard import Origin, Shard

WEB, DELIVERY = Shard("web"), DeliverySettings()
URIS = {scheme: f"{scheme}://h:1" for scheme in ("kafka", "http", "amqp")}
AT_ONCE_S = QUICK.discovery_interval_s / 2
"""Less than a worker takes to look by itself whether a shard is still its own."""


def two_topics(*, tells: bool = True) -> tuple[FakeStore, FakeEndpoint, Worker]:
    """A worker of Kafka topics that can also post, beside a topic of each kind with an entry."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint()
    endpoint.schemes = frozenset({"kafka", "http"})
    for queue, uri in (("t", "kafka://b:9092"), ("web", "http://h/")):
        store.make(queue, raw_entry("k", 0, uri=uri))
        store.metadata[queue] = a_topic(queue, uri=uri, to=queue)
    return store, endpoint, a_worker(store, endpoint)


def why_not(worker: Worker) -> str:
    return worker.not_owned[WEB].reason if WEB in worker.not_owned else ""


async def remove_while_under_way(worker: Worker) -> None:
    """Add a scheme, and remove it when an entry of its queue is under way."""
    worker.reload(DELIVERY, schemes=["http"])
    await until(lambda: any(each.queue == "web" and each.in_flight_bytes for each in worker.shards))
    worker.reload(DELIVERY, schemes=[])


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_a_scheme_that_is_added_and_removed(tells: bool) -> None:
    """Queues of an added scheme are delivered at once; those of a removed one are let go, and all others kept."""
    store, endpoint, worker = two_topics(tells=tells)

    async with running(worker):
        await drained(store, "t")
        await until(lambda: "http is not among ownership.schemes" in why_not(worker))

        worker.reload(DELIVERY, schemes=["kafka", "http"])
        await drained(store, "web", within_s=AT_ONCE_S)
        worker.reload(DELIVERY, schemes=["kafka"])
        await until(lambda: store.queues["web"].holder is None, within_s=AT_ONCE_S)
        store.queues["web"].append(raw_entry("k", 1, uri="http://h/"))
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, "t")

        assert "http is not among ownership.schemes" in why_not(worker)
        assert [each.queue for each in worker.shards] == ["t"]
        assert store.queues["web"].waiting == 1
        assert [topic for topic, _ in endpoint.arrived] == ["t", "web", "t"]


@in_virtual_time
async def test_what_is_under_way_arrives_before_its_queue_is_let_go() -> None:
    """Entries that are under way when their scheme is removed are delivered and removed, so that none comes twice."""
    store, endpoint, worker = two_topics()
    endpoint.fate = lambda *_: Fate(wait_s=5)

    async with running(worker):
        await remove_while_under_way(worker)
        assert store.queues["web"].holder is not None
        await until(lambda: store.queues["web"].holder is None)

        assert not worker.shards
        assert store.queues["web"].waiting == 0
        assert store.calls["evict"] == 0
        assert [topic for topic, _ in endpoint.arrived].count("web") == 1


@in_virtual_time
async def test_a_queue_whose_endpoint_is_away_is_let_go_at_once() -> None:
    """No pause before a next attempt delays the release of a queue whose scheme is removed."""
    store, endpoint, worker = two_topics()
    endpoint.opening = lambda target: EndpointUnavailable("away") if target.scheme == "http" else None
    endpoint.answering = lambda _: ("", 0.001)

    async with running(worker):
        worker.reload(DELIVERY, schemes=["http"])
        await until(lambda: any(each.queue == "web" and each.failures > 8 for each in worker.shards))
        worker.reload(DELIVERY, schemes=["kafka"])

        await until(lambda: store.queues["web"].holder is None, within_s=AT_ONCE_S)
        assert store.queues["web"].waiting == 1


@in_virtual_time
async def test_a_topic_that_only_its_entries_describe_is_let_go() -> None:
    """A queue whose topic has no readable metadata follows the schemes too, by what its oldest entry said."""
    store, endpoint, worker = two_topics()
    del store.metadata["web"]
    endpoint.fate = lambda *_: Fate(wait_s=1)

    async with running(worker):
        await drained(store, "t")
        worker.reload(DELIVERY, schemes=["kafka", "http"])
        await until(lambda: any(each.queue == "web" and each.is_open for each in worker.shards))
        worker.reload(DELIVERY, schemes=["kafka"])

        await until(lambda: store.queues["web"].holder is None)
        assert [each.queue for each in worker.shards] == ["t"]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["kafka"], ["http", "amqp"]),
        (["kafka", "http", "amqp"], ["kafka"]),
        (["http"], []),
        ([], ["amqp", "kafka", "http"]),
    ],
)
@in_virtual_time
async def test_each_list_is_followed(before: list[str], after: list[str], tells: bool) -> None:
    """Whatever the list was and becomes, its queues are held and delivered, all others of radosgw's free and left
    alone; and a topic of remora's own is delivered by any list."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint()
    endpoint.schemes = frozenset(URIS)
    for name, uri in (*URIS.items(), ("own", URIS["http"])):
        store.make(name, raw_entry("k", 0, uri=uri))
        origin = Origin.REMORA if name == "own" else Origin.RADOSGW
        store.metadata[name] = replace(a_topic(name, uri=uri, to=name), origin=origin)
    worker = a_worker(store, endpoint, ownership=replace(QUICK, schemes=tuple(before)))

    def held() -> set[str]:
        return {name for name, queue in store.queues.items() if queue.holder is not None}

    async with running(worker):
        await drained(store, *before, "own")
        await until(lambda: held() == {*before, "own"}, 10)
        worker.reload(DELIVERY, schemes=after)
        await until(lambda: held() == {*after, "own"}, 3)
        for queue in store.queues.values():
            queue.append(raw_entry("k", 7))
        await drained(store, *after, "own")
        await asyncio.sleep(10)

        assert held() == {*after, "own"}
        waiting = {name: queue.waiting for name, queue in store.queues.items() if queue.waiting}
        assert waiting == {name: 1 if name in before else 2 for name in URIS if name not in after}


@in_virtual_time
async def test_a_scheme_that_comes_back_while_its_queue_finishes() -> None:
    """A scheme that is removed and added again at once has its queue acquired anew as soon as that was let go."""
    store, endpoint, worker = two_topics()
    endpoint.fate = lambda *_: Fate(wait_s=5)

    async with running(worker):
        await remove_while_under_way(worker)
        worker.reload(DELIVERY, schemes=["http"])
        store.queues["web"].append(raw_entry("k", 1, uri="http://h/"))

        await drained(store, "web", within_s=30)
