"""What a worker says of its shards in its status."""

from __future__ import annotations

import msgspec
import pytest

from devkit.clock import in_virtual_time
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import Turns, a_topic, a_worker, running, until
from remora.bounded import PORTION
from remora.engine.admission.gate import Gate
from remora.engine.ownership.owned import OwnedShard
from remora.engine.status import ShardStatus
from remora.metrics import Telemetry
from remora.model.shard import Shard
from remora.policy.ownership.not_owned import GivenBack
from remora.worker.report import Report

MANY = 2 * PORTION + 1


@in_virtual_time
async def test_very_many_shards_are_shown_in_several_turns_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard is shown once, as owned or as not owned, also one that leaves meanwhile; those that are not owned are
    in the order of their names."""
    store, telemetry, turns = FakeStore(tells=True), Telemetry(), Turns()
    for number in range(MANY):
        store.make(f"t{number:04}")
        store.metadata[f"t{number:04}"] = a_topic(f"t{number:04}")
    for name in ("b", "a"):
        store.make(name)
        store.metadata[name] = a_topic(name)
        store.steal(name, "gateway")
    worker = a_worker(store, FakeEndpoint(), telemetry=telemetry)
    report = Report("remora/h/b/w1", telemetry, Gate(telemetry))

    async with running(worker):
        await until(lambda: worker.held_shards == MANY and len(worker.not_owned) == 2)
        status_of, last = worker.ownership.status, list(worker.ownership.shards)[-1]

        def status(owned: OwnedShard) -> ShardStatus:
            if not sum(turns.counts):
                worker.ownership._roster.release(last, GivenBack())
            turns.count()
            return status_of(owned)

        report.worker = worker
        monkeypatch.setattr(worker.ownership, "status", status)
        shown = msgspec.json.decode(msgspec.json.encode(await report.status(None)))

        assert Shard(shown["shards"][-1]["queue"]) == last
    assert sum(turns.counts) == len({each["queue"] for each in shown["shards"]}) == MANY
    assert max(turns.counts) <= PORTION
    assert [each["queue"] for each in shown["left"]] == ["a", "b"]


async def test_a_worker_that_has_not_begun_shows_no_shards() -> None:
    """The status is told from the first moment."""
    telemetry = Telemetry()

    shown = msgspec.json.decode(msgspec.json.encode(await Report("c", telemetry, Gate(telemetry)).status(None)))

    assert (shown["shards"], shown["left"]) == ([], [])
