"""time_to_live and max_retries hold whatever state the endpoint is in, and whichever worker holds the shard."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import START_S, a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, RemoraError, StoreUnavailable
from remora.model.record import Attempt
from remora.model.topic import Topic
from remora.ports.delivery import MOST_ATTEMPTS
from remora.ports.endpoint import Batch

pytestmark = pytest.mark.usefixtures("wall_clock")


def limited(
    time_to_live_s: int | None = None, max_retries: int | None = None, retry_sleep_s: int | None = None
) -> Topic:
    return replace(a_topic(max_retries=max_retries, retry_sleep_s=retry_sleep_s), time_to_live_s=time_to_live_s)


def causes(store: FakeStore) -> list[str]:
    return [each.cause for each in store.parked.values()]


@pytest.mark.guarantee("no-loss")
@pytest.mark.parametrize("error", [EndpointUnavailable("no broker"), EndpointMisconfigured("no such topic")])
@in_virtual_time
async def test_entries_expire_where_no_way_opens(error: EndpointError) -> None:
    """Where the endpoint never opens entries leave the queue as expired when their time is over, and not before."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: error
    store.make("t", *(raw_entry("k", i, created=START_S + 60 * i) for i in range(3)))
    store.metadata["t"] = limited(time_to_live_s=600)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(595)
        assert store.queues["t"].waiting == 3
        await asyncio.sleep(10)
        assert store.queues["t"].waiting == 2
        await drained(store, within_s=130)

    assert causes(store) == ["expired"] * 3
    assert {letter.last_failure for letter in store.parked.values()} == {str(error)}
    assert all(0 <= letter.parked_at - letter.failed_at < 40 for letter in store.parked.values())
    assert [letter.raw for letter in store.parked.values()] == store.queues["t"].entries
    assert endpoint.pushes == 0


@in_virtual_time
async def test_a_large_backlog_expires_in_one_go() -> None:
    """Thousands of entries that are too old are parked and removed at once, not a few at each pause."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make("t", *(raw_entry(f"k{i}", i) for i in range(5000)), raw_entry("k", 5000, created=START_S + 900))
    store.metadata["t"] = limited(time_to_live_s=600)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(605)
        assert store.queues["t"].waiting == 1
        endpoint.opening = lambda _: None
        await drained(store)

    assert causes(store) == ["expired"] * 5000
    assert endpoint.events() == [b"id-5000"]


@in_virtual_time
async def test_what_comes_during_a_long_pause_expires_in_time() -> None:
    """An entry that is committed and outlives its time within one pause of an hour is parked before the pause ends."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make("t")
    store.metadata["t"] = limited(time_to_live_s=20, retry_sleep_s=3600)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(30)
        store.queues["t"].append(raw_entry("k", created=START_S + 30))
        await drained(store, within_s=45)

    assert causes(store) == ["expired"]


@in_virtual_time
async def test_looking_at_the_front_is_no_work() -> None:
    """Over an hour of outage the front of a queue whose entries live long is looked at once for each pause, no more."""
    store, endpoint = FakeStore(), FakeEndpoint()
    openings = 0

    def opening(_: object) -> EndpointError:
        nonlocal openings
        openings += 1
        return EndpointUnavailable("no broker")

    endpoint.opening = opening
    store.make("t", *(raw_entry("k", i) for i in range(2000)))
    store.metadata["t"] = limited(time_to_live_s=86400)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(3600)
        assert store.calls["read"] <= openings + 1
        assert store.calls["store_letters"] == store.calls["note_attempts"] == 0


@pytest.mark.parametrize("opens", [False, True])
@in_virtual_time
async def test_attempts_count_whether_a_way_opens_or_not(opens: bool) -> None:
    """max_retries = 3 makes four attempts, also where not even a way to the endpoint opens; then entries are parked."""
    store, endpoint = FakeStore(), FakeEndpoint()
    attempts = 0

    def opening(_: object) -> EndpointError | None:
        nonlocal attempts
        attempts += not opens
        return None if opens else EndpointUnavailable("no broker")

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        nonlocal attempts
        attempts += 1
        return Fate(arrives=0, error=EndpointUnavailable("no answer"))

    endpoint.opening, endpoint.fate = opening, fate
    store.make("t", *(raw_entry("k", i) for i in range(10)))
    store.metadata["t"] = limited(max_retries=3)
    async with running(a_worker(store, endpoint)):
        await drained(store)
        assert attempts == 4

    assert causes(store) == ["exhausted"] * 10
    assert {letter.attempts for letter in store.parked.values()} == {4}
    last = {"no answer" if opens else "no broker"}
    assert {letter.last_failure for letter in store.parked.values()} == last
    assert all(0 <= letter.parked_at - letter.failed_at < 1 for letter in store.parked.values())


@pytest.mark.guarantee("no-loss")
@pytest.mark.parametrize("opens", [False, True])
@in_virtual_time
async def test_attempts_survive_a_take_over(opens: bool) -> None:
    """Attempts of a worker that is gone count for the next one: both together make n + 1 of them."""
    store, endpoint = FakeStore(), FakeEndpoint()
    attempts = 0

    def failed() -> EndpointError:
        nonlocal attempts
        attempts += 1
        return EndpointUnavailable("no")

    endpoint.opening = lambda _: None if opens else failed()
    endpoint.fate = lambda *_: Fate(arrives=0, error=failed())
    store.make("t", raw_entry("k"))
    store.metadata["t"] = limited(max_retries=5, retry_sleep_s=60)

    async with running(a_worker(store, endpoint)):
        while attempts < 3:  # noqa: ASYNC110  # the clock is virtual
            await asyncio.sleep(1)
    first_tried = {each.first_tried for each in store.queues["t"].attempts.values()}
    async with running(a_worker(store, endpoint, cookie="remora/h/b/w2")):
        await drained(store)

    [letter] = store.parked.values()
    assert (letter.cause, letter.attempts, attempts) == ("exhausted", 6, 6)
    assert {letter.first_seen} == first_tried


@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("error", [EndpointUnavailable("no"), EndpointMisconfigured("no such topic")])
@in_virtual_time
async def test_a_topic_s_own_pause_is_its_pace(error: EndpointError, opens: bool) -> None:
    """Ten retries at retry_sleep_duration = 1 s take ten to eleven seconds, whatever fails and wherever it does."""
    store, endpoint = FakeStore(), FakeEndpoint()
    tried_at: list[float] = []

    def failed() -> EndpointError:
        tried_at.append(asyncio.get_running_loop().time())
        return error

    endpoint.opening = lambda _: None if opens else failed()
    endpoint.fate = lambda *_: Fate(arrives=0, error=failed())
    store.make("t", raw_entry("k"))
    store.metadata["t"] = limited(max_retries=10, retry_sleep_s=1)

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert len(tried_at) == 11
    assert all(later - one == pytest.approx(1, abs=0.01) for one, later in pairwise(tried_at))


@pytest.mark.parametrize("max_retries", [None, 9])
@pytest.mark.parametrize("opens", [False, True])
@in_virtual_time
async def test_a_pace_outlives_its_holder(opens: bool, max_retries: int | None) -> None:
    """Who takes a shard over makes the next attempt when it is due, not at once; also where retries have no limit."""
    store, endpoint = FakeStore(), FakeEndpoint()
    tried_at: list[float] = []

    def failed() -> EndpointError:
        tried_at.append(asyncio.get_running_loop().time())
        return EndpointUnavailable("no")

    endpoint.opening = lambda _: None if opens else failed()
    endpoint.fate = lambda *_: Fate(arrives=0, error=failed())
    store.make("t", raw_entry("k"))
    store.metadata["t"] = limited(max_retries=max_retries, retry_sleep_s=600)

    for number in range(3):
        async with running(a_worker(store, endpoint, cookie=f"remora/h/b/w{number}")):
            await asyncio.sleep(700)

    assert len(tried_at) == 4
    assert all(later - one == pytest.approx(600, abs=2) for one, later in pairwise(tried_at))


@in_virtual_time
async def test_a_pace_that_was_noted_ends_with_its_entry() -> None:
    """What an earlier holder noted of entries that have left the queue keeps nobody waiting."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = limited(retry_sleep_s=3600)
    endpoint.opening = lambda _: EndpointUnavailable("no")
    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(10)
        assert store.queues["t"].attempts
        endpoint.opening = lambda _: None
        store.metadata["t"] = limited(retry_sleep_s=3599)
        await drained(store)

    store.queues["t"].append(raw_entry("k", 1))
    async with running(a_worker(store, endpoint, cookie="remora/h/b/w2")):
        await drained(store, within_s=5)


@in_virtual_time
async def test_limits_among_the_endpoint_s_arguments_hold() -> None:
    """A topic of Ceph 16.2 is tried as often as its argument max_retries says, and a bad argument is a remark."""
    store, endpoint = FakeStore(), FakeEndpoint()
    args = "use-ssl=false&max_retries=2&time_to_live=soon"
    store.make("t", raw_entry("k", args=args))
    endpoint.fate = lambda *_: Fate(arrives=0, error=EndpointUnavailable("no"))

    worker = a_worker(store, endpoint)
    async with running(worker):
        await until(lambda: any(each.remarks for each in worker.shards))
        [status] = worker.shards
        await drained(store)

    assert status.remarks == ("time_to_live is no whole number of 0 to 4294967294 and is ignored",)
    assert [(letter.cause, letter.attempts) for letter in store.parked.values()] == [("exhausted", 3)]


@in_virtual_time
async def test_what_arrived_is_not_given_up() -> None:
    """An entry that was delivered while an earlier one was not is skipped at its turn, not parked for its age."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=2)
    endpoint.fate = lambda _, batch: (
        Fate(arrives=0, error=EndpointUnavailable("no")) if batch.records[0].key == b"bkt/a" else Fate()
    )
    store.make("t", raw_entry("a", 0), raw_entry("b", 1))
    store.metadata["t"] = limited(time_to_live_s=300)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(5)
        assert endpoint.events() == [b"id-1"]
        endpoint.opening = lambda _: EndpointUnavailable("no broker")
        await drained(store, within_s=330)

    [letter] = store.parked.values()
    assert (letter.cause, letter.raw) == ("expired", store.queues["t"].entries[0])


@in_virtual_time
async def test_parking_comes_first_and_a_failed_one_keeps_the_entry() -> None:
    """While letters cannot be stored nothing expires out of the queue; each is counted once when they can."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make("t", *(raw_entry("k", i) for i in range(100)))
    store.metadata["t"] = limited(time_to_live_s=60)

    def refuse(call: str) -> RemoraError | None:
        return StoreUnavailable("away") if call == "store_letters" else None

    store.before = refuse
    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(100)
        assert store.queues["t"].waiting == 100
        assert store.parked == {}
        removals = iter([StoreUnavailable("no answer")])
        store.before = lambda call: next(removals, None) if call == "remove" else None
        await drained(store, within_s=60)

    assert causes(store) == ["expired"] * 100


@in_virtual_time
async def test_defaults_are_for_topics_that_leave_them_open() -> None:
    """A reload of the default changes the fate of a topic without limits; one with an explicit 0 keeps for ever."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make("t", raw_entry("k"))
    store.make("u", raw_entry("k"))
    store.metadata["t"] = limited()
    store.metadata["u"] = replace(a_topic("u"), time_to_live_s=0)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(1000)
        assert store.queues["t"].waiting == 1
        worker.reload(DeliverySettings(time_to_live_s=500))
        await drained(store, "t", within_s=60)
        await asyncio.sleep(1000)

    assert store.queues["u"].waiting == 1
    assert [letter.queue for letter in store.parked.values()] == ["t"]


@in_virtual_time
async def test_without_metadata_each_entry_has_its_own_time() -> None:
    """Where only the entries tell, those of another target behind expired ones keep the time that they name."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make(
        "t",
        raw_entry("k", 0, topic="short", limits=(60, 0, 0)),
        raw_entry("k", 1, topic="long", limits=(600, 0, 0)),
    )

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(100)
        assert store.queues["t"].waiting == 1
        await asyncio.sleep(450)
        assert store.queues["t"].waiting == 1
        await drained(store, within_s=120)

    assert causes(store) == ["expired"] * 2


@in_virtual_time
async def test_notes_of_entries_that_have_gone_take_no_room() -> None:
    """An earlier holder's notes name entries that it removed; those of entries that stand are kept all the same."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *(raw_entry("k", i) for i in range(MOST_ATTEMPTS + 5)))
    queue.front = MOST_ATTEMPTS
    queue.attempts = {queue.marker(i): Attempt(1, START_S) for i in range(1, MOST_ATTEMPTS + 1)}
    store.metadata["t"] = limited(max_retries=50)
    endpoint.opening = lambda _: EndpointUnavailable("no")

    async with running(a_worker(store, endpoint)):
        await until(lambda: store.calls["note_attempts"])
        kept = dict(queue.attempts)
        endpoint.opening = lambda _: None
        await drained(store)

    assert {position: each.count for position, each in kept.items()} == {
        queue.marker(MOST_ATTEMPTS + i): 1 + (not i) for i in range(5)
    }
