"""Traffic shaping: who waits for credit, what that holds up, and what it never does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import Fate, Verdict
from engine.runs import a_topic, drained, until
from engine.shaped import BOTH, MUCH, NOTHING, Shaped, of_backlogs
from remora.codec.topic import DEAD_LETTER_TOPIC
from remora.config import MetersSettings, ScopeSettings, ShapingSettings
from remora.engine.admission.gate import QueueFill
from remora.model.errors import EndpointUnavailable, RemoraError, StoreUnavailable
from remora.model.ledger import Tally
from remora.model.record import Page
from remora.model.shard import Shard
from remora.model.topic import Delivery
from remora.policy.status.condition import State
from remora.ports.endpoint import Batch
from support.credit import a_host, a_meter, shaping


@BOTH
@in_virtual_time
async def test_a_backlog_keeps_its_rate(mode: Delivery) -> None:
    """A queue that catches up is delivered whole, in order, and at its limited rate, and what is sent was granted."""
    it = Shaped(of_backlogs(guaranteed=100_000, burst=10_000, most=100_000), mode)
    took_s, nbytes = await it.backlog_took()

    assert it.endpoint.events() == [b"id-%d" % i for i in range(600)]
    assert nbytes / 100_000 * 0.8 <= took_s <= nbytes / 100_000 * 1.2
    granted = it.metric("remora_shaping_granted_bytes_total", scope="uplink", priority="client_low")
    assert granted == sum(len(each.body) for each in it.sent())
    assert it.metric("remora_shaping_waits_total", scope="uplink", priority="client_low") > 0
    (flow,) = [each for each in it.gate.flows if each.priority == "client_low"]
    assert (flow.group, flow.granted_bytes, flow.passed_bytes) == ("uplink", granted, 0)
    assert flow.deferred == flow.waited == sum(flow.waits.values()) > 0


@BOTH
@in_virtual_time
async def test_what_entries_do_not_need_is_given_back(mode: Delivery) -> None:
    """With credit for all, requests pass at once and none is deferred; what small entries left of it comes back."""
    it = Shaped(shaping(a_host(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=MUCH)), mode)
    it.make("t", 50)
    async with it.running():
        await until(lambda: it.level("client_normal") > 0)
        await drained(it.store)

    assert sum(each.at_once for each in it.gate.flows) > 0
    assert sum(each.given_back_bytes for each in it.gate.flows) > 0
    assert sum(each.granted_bytes for each in it.gate.flows) == sum(len(each.body) for each in it.sent())


@BOTH
@in_virtual_time
async def test_a_request_passes_a_group_that_went_while_it_waited_before_it(mode: Delivery) -> None:
    """A listing waits in the group of its topic while that of the host is taken away; with credit it is sent."""
    one = MetersSettings(client_normal=NOTHING, client_low=NOTHING, client_high=NOTHING, max=NOTHING)
    topics = ScopeSettings(name="topics", of="topic", enabled=True, meters=one)
    much = replace(topics, meters=MetersSettings(client_normal=MUCH, client_low=MUCH, client_high=MUCH, max=MUCH))
    host = a_host(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=MUCH)
    it = Shaped(shaping(topics, host), mode)
    it.make("t", 10)
    async with it.running():
        await until(lambda: it.gate.waiting == 1)
        it.configure(shaping(topics))
        await asyncio.sleep(1)
        assert it.gate.waiting == 1
        it.configure(shaping(much))
        await until(lambda: it.gate.waiting == 0)
        await drained(it.store)

    assert it.endpoint.events() == [b"id-%d" % i for i in range(10)]


@BOTH
@in_virtual_time
async def test_without_credit_nothing_is_read_or_held(mode: Delivery) -> None:
    """A class without credit stands still: nothing is held, nothing fails, the shard is shaped and the host ready."""
    it = Shaped(shaping(a_host(client_normal=MUCH, client_low=NOTHING)), mode)
    it.make("t", 10)
    async with it.running():
        await until(lambda: it.worker.shards and it.worker.shards[0].state is State.SHAPED)
        await asyncio.sleep(60)
        (status,) = it.worker.shards

        assert it.endpoint.arrived == []
        assert it.worker.budget.held == 0
        assert (status.state, status.reason) == (State.SHAPED, "waits for client_low of uplink")
        assert 59 <= status.since_s <= 62
        assert status.failures == 0
        assert it.worker.waiting() == ()
        assert it.gate.waiting_by_scope() == {("uplink", "client_low"): 1}

        it.configure(shaping(a_host(client_normal=MUCH, client_low=MUCH)))
        await drained(it.store)

    assert it.endpoint.events() == [b"id-%d" % i for i in range(10)]


@BOTH
@in_virtual_time
async def test_finishing_needs_no_credit(mode: Delivery) -> None:
    """A shard that waits is given back at once, and what it had read is delivered."""
    it = Shaped(of_backlogs(guaranteed=0, burst=4_000), mode)
    it.make("t", 100)
    async with it.running():
        it.give(4_000)
        await until(lambda: it.endpoint.arrived and it.gate.waiting)
        read = len(it.endpoint.arrived)
        began = asyncio.get_running_loop().time()
    took_s = asyncio.get_running_loop().time() - began

    assert took_s < 1
    assert 0 < read <= len(it.endpoint.arrived) < 100
    assert it.store.queues["t"].waiting == 100 - len(it.endpoint.arrived)
    assert it.store.queues["t"].holder is None
    assert it.gate.waiting == 0


@BOTH
@in_virtual_time
async def test_disabling_a_scope_releases_all_that_wait(mode: Delivery) -> None:
    """What waits goes at once when the scope is disabled, or removed."""
    off = shaping(ScopeSettings(name="uplink", of="host", enabled=False, meters=MetersSettings()))
    for other in (off, shaping()):
        await _released_by(other, mode)


async def _released_by(other: ShapingSettings, mode: Delivery) -> None:
    it = Shaped(shaping(a_host(client_normal=MUCH, client_low=NOTHING)), mode)
    it.make("t", 10)
    async with it.running():
        await until(lambda: it.gate.waiting)
        it.configure(other)
        await drained(it.store, within_s=1)
    assert len(it.endpoint.arrived) == 10


@BOTH
@in_virtual_time
async def test_what_was_not_sent_costs_nothing(mode: Delivery) -> None:
    """Credit for records that a failure turned back is there again, and is used for the next attempt."""
    it = Shaped(of_backlogs(guaranteed=0, burst=10**9), mode)
    it.make("t", 50)
    async with it.running():
        it.give(10**6)
        await drained(it.store)

    assert it.level() == 10**6 - sum(len(each.body) for each in it.sent())


@in_virtual_time
async def test_a_transaction_goes_as_it_is_where_there_is_no_credit_for_more() -> None:
    """An open transaction is committed at once with what it has when the next listing finds no credit."""
    it = Shaped(
        of_backlogs(guaranteed=0, burst=10**9),
        Delivery.EXACTLY_ONCE,
        list_entries=10,
        transaction_time_s=3600.0,
        transaction_records=50,
    )
    it.make("t", 100)
    size = len(it.store.queues["t"].entries[0])
    async with it.running():
        await until(lambda: it.gate.waiting)
        it.give(20 * size)
        await until(lambda: it.endpoint.arrived, within_s=0.5)
        assert len(it.endpoint.transactions) == 1
        assert it.gate.waiting


@BOTH
@in_virtual_time
async def test_entries_expire_while_their_shard_waits_for_credit(mode: Delivery) -> None:
    """A lifetime holds in a class without credit: what outlives it becomes a dead letter."""
    it = Shaped(shaping(a_host(client_normal=MUCH, client_low=NOTHING)), mode, time_to_live_s=10.0)
    it.make("t", 5)
    async with it.running():
        await drained(it.store)

    assert it.endpoint.arrived == []
    assert {each.cause for each in it.store.parked.values()} == {"expired"}
    assert len(it.store.parked) == 5


@BOTH
@pytest.mark.parametrize("args", ["", f"{DEAD_LETTER_TOPIC}=letters"])
@in_virtual_time
async def test_published_letters_are_charged_and_wait_for_nothing(mode: Delivery, args: str) -> None:
    """Dead letters that go to the endpoint take their bytes of credit, into debt where there is less, and those that
    are only stored take none."""
    it = Shaped(shaping(a_host(client_normal=a_meter(0, 10**6), client_low=a_meter(0, 10**6))), mode)
    it.store.make("t", *[b"\x07" * 1_000] * 5)
    it.store.metadata["t"] = a_topic("t", args=args)
    async with it.running():
        await until(lambda: it.gate.waiting)
        it.give(100, "client_normal")
        it.host.account().release("client_low", 500_000)
        await drained(it.store, within_s=60)
        left = it.level("client_low") + it.level("client_normal")

    nbytes = sum(len(each.raw) + len(each.reason) for each in it.store.parked.values())
    assert len(it.store.parked) == 5
    assert left == 500_100 - (nbytes if args else 0)


@BOTH
@in_virtual_time
async def test_a_class_without_credit_holds_up_no_other(mode: Delivery) -> None:
    """Beside many shards that wait, a shard of another class is delivered."""
    settings = shaping(a_host(client_normal=MUCH, client_low=MUCH, background=NOTHING))
    it = Shaped(settings, mode, worker_bytes=1 << 20, shard_bytes=1 << 19, endpoint_bytes=1 << 20)
    for i in range(100):
        it.make(f"slow-{i}", 5)
        it.store.metadata[f"slow-{i}"] = a_topic(f"slow-{i}", args="remora-traffic-class=replay")
    it.make("t", 20)
    async with it.running():
        await drained(it.store, "t")
        await until(lambda: it.gate.waiting == 100 and not it.worker.budget.held)

    assert len(it.endpoint.arrived) == 20


@in_virtual_time
async def test_an_empty_queue_takes_no_credit() -> None:
    """Looks into a queue in which nothing waits charge nothing, and what they bring is taken by force."""
    it = Shaped(shaping(a_host(client_normal=a_meter(0, 10**6), client_low=a_meter(0, 10**6))), Delivery.AT_LEAST_ONCE)
    it.make("t", 1)
    async with it.running():
        await asyncio.sleep(1)
        it.give(10**6, "client_normal", "client_low")
        await drained(it.store)
        before = it.level("client_normal") + it.level()
        await asyncio.sleep(30)
        assert it.level("client_normal") + it.level() == before
        it.store.queues["t"].append(raw_entry("k", 1))
        await drained(it.store)
        charged = before - it.level("client_normal") - it.level()

    assert charged == len(it.sent()[-1].body)


@BOTH
@in_virtual_time
async def test_credit_is_given_back_when_the_endpoint_is_away(mode: Delivery) -> None:
    """A shard whose endpoint does not open keeps no credit while it pauses."""
    it = Shaped(of_backlogs(guaranteed=0, burst=10**9), mode)
    it.make("t", 5)
    it.endpoint.opening = lambda _: EndpointUnavailable("away")
    async with it.running():
        it.give(10**6)
        await asyncio.sleep(30)
        assert it.level() == 10**6


@BOTH
@in_virtual_time
async def test_live_entries_pass_a_backlog_at_the_same_brokers(mode: Delivery) -> None:
    """Beside a backlog that is held to its rate, what comes in is delivered within two ticks and a moment."""
    it = Shaped(of_backlogs(guaranteed=500_000, burst=50_000, most=500_000), mode, idle_max_s=0.05)
    it.make("old", 5_000, padding=1_000)
    it.make("live", 1)
    async with it.running():
        await drained(it.store, "live")
        for i in range(1, 50):
            it.store.queues["live"].append(raw_entry("k", i))
            await drained(it.store, "live", within_s=1)
        assert it.store.queues["old"].waiting > 1_000


@pytest.mark.parametrize(
    ("surveyed", "is_truncated", "is_behind"),
    [(0, True, False), (31, True, True), (31, False, False), (30, True, False)],
)
@in_virtual_time
async def test_a_queue_in_which_very_many_wait_has_a_backlog(
    surveyed: int, is_truncated: bool, is_behind: bool
) -> None:
    """Young entries wait as a backlog where the last survey found more than `backlog_entries` in their queue."""
    it = Shaped(replace(shaping(a_host(client_low=MUCH)), backlog_entries=30), Delivery.AT_LEAST_ONCE)
    page = Page([b"entry"] * 10, [b"0/1"] * 10, truncated=is_truncated)
    it.gate.surveyed({Shard("t"): QueueFill(entries=surveyed)})

    assert it.gate.has_backlog(Shard("t"), page, newest_age_s=0.0) == is_behind


@in_virtual_time
async def test_a_long_page_shows_a_backlog() -> None:
    """Young entries wait as a backlog where a page that is not all has more than `backlog_entries`."""
    it = Shaped(replace(shaping(a_host(client_low=MUCH)), backlog_entries=5), Delivery.AT_LEAST_ONCE)

    assert it.gate.has_backlog(Shard("t"), Page([b"entry"] * 10, [b"0/1"] * 10, truncated=True), newest_age_s=0.0)


@BOTH
@in_virtual_time
async def test_a_queue_that_is_nearly_full_goes_first(mode: Delivery) -> None:
    """Once the survey finds it that full, a shard asks at the highest priority, however old its entries are."""
    it = Shaped(shaping(a_host(max=MUCH, client_normal=MUCH, client_low=NOTHING)), mode)
    it.make("t", 10)
    it.store.full_percent = 79
    async with it.running():
        await until(lambda: it.gate.waiting)
        await asyncio.sleep(60)
        assert it.endpoint.arrived == []
        it.store.full_percent = 80
        it.make("u", 10)
        await drained(it.store, "u")
        assert it.metric("remora_shaping_granted_bytes_total", scope="uplink", priority="max") > 0


@BOTH
@in_virtual_time
async def test_an_endpoint_that_falls_behind_scales_an_adaptive_spare_down(mode: Delivery) -> None:
    """While ever more is granted and not acknowledged the spare is halved, and it comes back when the endpoint does."""
    spare = replace(a_host(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=MUCH), adaptive=True)
    spare = replace(spare, meters=replace(spare.meters, priority_queue=a_meter(8_000, 8_000, 8_000)))
    it = Shaped(shaping(spare), mode, transaction_records=100)
    for i in range(40):
        it.make(f"t-{i}", 0)
    it.endpoint.fate, it.endpoint.verdict = lambda *_: Fate(wait_s=15.0), lambda *_: Verdict(15.0)
    group = it.host.shaper.groups["uplink"]

    async def after_seconds(seconds: int) -> list[int]:
        """How much of the spare there is after each of them, in thousandths."""
        scales: list[int] = []
        for _ in range(seconds):
            await asyncio.sleep(1)
            it.host.shaper.window()
            scales.append(group.scale.thousandths)
        return scales

    async with it.running():
        await until(lambda: it.worker.held_shards == 40)
        for i in range(0, 40, 4):
            for queue in range(i, i + 4):
                it.store.queues[f"t-{queue}"].append(*(raw_entry("k", n, padding=2_000) for n in range(60)))
            [scale] = await after_seconds(1)
        assert it.host.shaper.unacked("uplink") > 256 * 1024
        assert scale <= 500
        assert group.policy["priority_queue"].guaranteed == 8_000 * scale // 1_000
        assert group.policy["client_low"] == MUCH.meter

        it.endpoint.fate, it.endpoint.verdict = lambda *_: Fate(), lambda *_: Verdict()
        await drained(it.store)
        assert it.host.shaper.unacked("uplink") == 0
        assert (await after_seconds(25))[-1] == 1_000


@pytest.mark.guarantee("no-loss")
@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32), mode=st.sampled_from(Delivery))
def test_no_schedule_of_credit_and_faults_loses_or_reorders(seed: int, mode: Delivery) -> None:
    """Credit comes and goes at random while the store and the endpoint fail and the lock is broken: everything arrives
    in order, once where transactions are used, and the ledger is right."""

    @in_virtual_time
    async def play() -> None:
        rng = Random(seed)
        it = Shaped(
            some_meters(rng), mode, list_entries=rng.choice([1, 7, 1024]), transaction_records=50, retry_cap_s=5
        )
        it.make("t", rng.choice([5, 100, 400]))
        loop, queue = asyncio.get_running_loop(), it.store.queues["t"]

        def store_trouble(call: str) -> RemoraError | float | None:
            if loop.time() > 60 or rng.random() > 0.05:
                return rng.random() * 0.01
            return StoreUnavailable(f"{call} timed out") if rng.random() < 0.5 else rng.random() * 5

        def push_trouble(_: object, batch: Batch) -> Fate:
            if loop.time() > 60 or rng.random() > 0.1:
                return Fate(wait_s=rng.random() * 0.1)
            return Fate(rng.random(), rng.choice([None, 0, len(batch.records) // 2]), EndpointUnavailable("broken"))

        def commit_trouble(*_: object) -> Verdict:
            if loop.time() > 60 or rng.random() > 0.1:
                return Verdict()
            return Verdict(rng.random(), rng.random() < 0.5, error=EndpointUnavailable("broken"))

        it.store.before = it.store.after = store_trouble
        it.endpoint.fate, it.endpoint.verdict = push_trouble, commit_trouble
        async with it.running():
            while loop.time() < 60:
                await asyncio.sleep(rng.uniform(0.2, 5))
                it.configure(some_meters(rng))
                if rng.random() < 0.2:
                    queue.holder = None
                first = len(queue.entries)
                queue.append(*(raw_entry("k", i) for i in range(first, first + rng.randrange(20))))
            it.configure(shaping(a_host(client_normal=MUCH, client_low=MUCH)))
            await drained(it.store)
            await until(lambda: not it.gate.waiting)

        sent = [int(each.removeprefix(b"id-")) for each in it.endpoint.events()]
        assert list(dict.fromkeys(sent)) == list(range(len(queue.entries)))
        assert mode is Delivery.AT_LEAST_ONCE or len(sent) == len(queue.entries)
        assert queue.ledger == Tally(delivered=len(queue.entries))
        assert it.metric("remora_crashes_total") == 0
        assert it.host.shaper.unacked("uplink") == 0

    play()


def some_meters(rng: Random) -> ShapingSettings:
    """A scope that is disabled, has no credit, or has some; or none at all."""
    if rng.random() < 0.1:
        return shaping()
    rate = rng.choice([0, 2_000, 50_000, 10**7])
    meter = a_meter(rate, rng.choice([1_000, 100_000]), rng.choice([None, rate]))
    scope = a_host(client_normal=meter, client_low=meter, priority_queue=a_meter(rng.choice([0, 10_000]), 10_000))
    return shaping(replace(scope, enabled=rng.random() < 0.8))
