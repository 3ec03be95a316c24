"""What the status of a shard says of its attempts: how the last one failed, and when the next one comes."""

from __future__ import annotations

import asyncio

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings, QuarantineSettings
from remora.engine.status import ShardStatus
from remora.engine.worker import Worker
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.model.topic import Target
from remora.policy.status.condition import State

PACE = DeliverySettings(retry_base_s=8, retry_cap_s=8)


class Closed(FakeEndpoint):
    """An endpoint that does not open, none of whose brokers answers; `tries` counts the attempts to open it."""

    def __init__(self, error: EndpointError) -> None:
        super().__init__()
        self.error = error
        self.tries = 0
        self.opening = self._refused
        self.answering = lambda _: ("", 0.001)

    def _refused(self, _: Target) -> EndpointError:
        self.tries += 1
        return self.error


def a_failing_worker(error: EndpointError) -> tuple[Worker, FakeStore, Closed]:
    """A worker with one queue, in which an entry waits, and an endpoint that does not open."""
    store, endpoint = FakeStore(tells=True), Closed(error)
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    return a_worker(store, endpoint, PACE), store, endpoint


def only(worker: Worker) -> ShardStatus:
    """The status of the one shard."""
    (status,) = worker.shards
    return status


@pytest.mark.parametrize(
    ("error", "kind", "most_s"),
    [
        (EndpointUnavailable("no broker"), "transient", 8.0),
        (EndpointMisconfigured("no such topic"), "configuration", PACE.configuration_recheck_s),
    ],
)
@in_virtual_time
async def test_the_next_attempt_comes_when_the_status_says(error: EndpointError, kind: str, most_s: float) -> None:
    """The time that is left falls to nothing, and the attempt is made then; the last failure has its age meanwhile."""
    worker, _, endpoint = a_failing_worker(error)
    async with running(worker):
        await until(lambda: worker.shards and only(worker).next_attempt_s)
        said = only(worker)
        assert said.next_attempt_s is not None
        assert said.failing_s is not None
        assert 0 < said.next_attempt_s <= max(most_s, PACE.retry_cap_s)
        assert said.last_failure is not None
        assert (said.last_failure.kind, said.last_failure.reason) == (kind, str(error))
        tried = endpoint.tries

        await asyncio.sleep(said.next_attempt_s - 0.02)

        later = only(worker)
        assert endpoint.tries == tried
        assert later.last_failure is not None
        assert later.last_failure.age_seconds == pytest.approx(said.next_attempt_s, abs=0.1)
        await asyncio.sleep(0.1)
        assert endpoint.tries == tried + 1
        assert only(worker).failures == said.failures + 1
        assert only(worker).failing_s == pytest.approx(said.failing_s + said.next_attempt_s, abs=0.2)


@in_virtual_time
async def test_the_last_failure_stays_when_deliveries_succeed_again() -> None:
    """Nothing counts as failing and no attempt is waited for, and how the last failure went can still be read."""
    worker, store, endpoint = a_failing_worker(EndpointUnavailable("no broker"))
    async with running(worker):
        await until(lambda: worker.shards and only(worker).failures >= 2)
        endpoint.opening = lambda _: None
        await drained(store)

        said = only(worker)
        assert (said.failures, said.failing_s, said.failure, said.next_attempt_s) == (0, None, None, None)
        assert said.last_failure is not None
        assert said.last_failure.reason == "no broker"


@in_virtual_time
async def test_no_attempt_is_waited_for_while_one_is_under_way() -> None:
    """While an attempt takes its time nothing is said of the next one."""
    worker, _, endpoint = a_failing_worker(EndpointUnavailable("no broker"))
    endpoint.opening = lambda _: None
    endpoint.fate = lambda *_: Fate(arrives=0, error=EndpointUnavailable("too late"), wait_s=5)
    async with running(worker):
        await until(lambda: worker.shards and only(worker).state is State.DELIVERING)
        assert only(worker).next_attempt_s is None
        await until(lambda: only(worker).state is State.RETRYING, within_s=6)
        assert only(worker).next_attempt_s is not None


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (EndpointUnavailable("no answer"), State.RETRYING),
        (EndpointMisconfigured("not allowed"), State.STOPPED),
    ],
)
@in_virtual_time
async def test_a_queue_that_is_tried_goes_on_failing_since_its_first_failure(
    error: EndpointError, state: State
) -> None:
    """Through attempts that open the way and fail, its state stays, and says when it is being tried; its time grows."""
    worker, _, endpoint = a_failing_worker(error)
    endpoint.opening = lambda _: None
    endpoint.fate = lambda *_: Fate(arrives=0, error=error, wait_s=2)
    async with running(worker):
        await until(lambda: worker.shards and only(worker).failures, within_s=6)
        seen = []
        for _ in range(240):
            await asyncio.sleep(0.25)
            seen.append(only(worker))

    assert {each.state for each in seen} == {state}
    assert {each.reason for each in seen} == {str(error)}
    assert [each.since_s for each in seen] == pytest.approx([0.25 * (each + 1) for each in range(240)], abs=0.1)
    assert {each.is_trying for each in seen} == {True, False}
    assert all(each.is_trying == (each.next_attempt_s is None) for each in seen)


@in_virtual_time
async def test_a_queue_that_waits_for_its_turn_has_no_time_for_it() -> None:
    """When a queue of a destination in quarantine is tried is known of the one only whose turn it is."""
    store, endpoint = FakeStore(tells=True), Closed(EndpointUnavailable("no broker", "connect"))
    for number in range(5):
        store.make(f"t{number}", raw_entry("k", 0, topic=f"t{number}"))
        store.metadata[f"t{number}"] = a_topic(f"t{number}", to=f"t{number}")

    worker = a_worker(store, endpoint, quarantine=QuarantineSettings(ratio=100, connect_errors=True))
    async with running(worker):
        await until(lambda: sum(each.state is State.QUARANTINED for each in worker.shards) == 4)

        waiting = [each for each in worker.shards if each.state is State.QUARANTINED]
        assert {each.next_attempt_s for each in waiting} == {None}
        assert {each.last_failure.reason for each in waiting if each.last_failure} == {"no broker"}
