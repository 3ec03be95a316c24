"""The parts of a dispatcher, each built alone."""

from __future__ import annotations

import asyncio
import gc
from random import Random

from devkit.clock import in_virtual_time
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic
from engine.test_delivery_parts import a_stand
from remora.engine.destination import Destination, Destinations
from remora.engine.dispatching.oldest_entry import OldestEntry
from remora.engine.dispatching.outlet import MadeEndpoints, Outlet, Outlets
from remora.engine.dispatching.scope import DispatchScope
from remora.engine.dispatching.standing import Standing
from remora.model.errors import EndpointUnavailable
from remora.policy.admission.limits import ByteLimit
from remora.policy.delivery.retry import ShardFailure
from remora.policy.ownership.not_owned import Schemes
from remora.policy.status.condition import State

AWAY = EndpointUnavailable("no answer")


class Parts:
    """A dispatcher's parts on a scripted store; its one destination is `place`."""

    def __init__(self, store: FakeStore, scope: DispatchScope) -> None:
        self.store = store
        self.scope = scope
        self.place = Destination(1 << 20, ByteLimit(1 << 20))
        schemes = Schemes(frozenset({"kafka"}), frozenset({"kafka"}))
        outlets = Outlets(MadeEndpoints([FakeEndpoint()]), lambda: schemes, lambda _: self.place)
        self.outlet = Outlet(scope.context, scope.lease, outlets)
        self.standing = Standing(scope, self.outlet)
        self.oldest = OldestEntry(scope, self.outlet, self.standing)


async def parts(entries: int = 0) -> Parts:
    stand = await a_stand(entries)
    return Parts(stand.store, DispatchScope(stand.scope.context, stand.scope.lease, Random(7)))


@in_virtual_time
async def test_failures_before_the_destination_came_back_do_not_count() -> None:
    """When more of the destination answers, the failure in which that shows is the first one of a new row."""
    made = await parts()
    await made.outlet.aim(a_topic())
    rows = []
    for returns in (0, 0, 1, 1):
        made.place.returns = returns
        made.standing.failed(AWAY, ShardFailure.TRANSIENT)
        rows.append(made.standing.failed_in_a_row())

    assert rows == [1, 2, 1, 2]


@in_virtual_time
async def test_what_is_delivered_ends_a_row_of_failures() -> None:
    """After a recovery the status names no failure, and the next failure is the first of its row."""
    made = await parts()
    await made.outlet.aim(a_topic())
    made.standing.failed(AWAY, ShardFailure.TRANSIENT)
    failing = made.standing.status().failure

    made.standing.recovered()

    assert (failing, made.standing.status().failure) == (ShardFailure.TRANSIENT, None)
    made.standing.failed(AWAY, ShardFailure.TRANSIENT)
    assert made.standing.failed_in_a_row() == 1


@in_virtual_time
async def test_what_arrives_within_a_page_begins_a_row_of_failures_anew() -> None:
    """The failure after an acknowledgement is the first of its row, unless it is the store's; the topic fails on."""
    made = await parts()
    await made.outlet.aim(a_topic())
    rows = []
    for has_acks, kind in (
        (False, ShardFailure.TRANSIENT),
        (False, ShardFailure.TRANSIENT),
        (True, ShardFailure.TRANSIENT),
        (False, ShardFailure.TRANSIENT),
        (True, ShardFailure.STORE),
        (False, ShardFailure.TRANSIENT),
        (True, ShardFailure.CONFIGURATION),
    ):
        made.scope.state.progress.has_acks = has_acks
        made.standing.failed(AWAY, kind)
        rows.append(made.standing.failed_in_a_row())

    assert rows == [1, 2, 1, 2, 3, 4, 1]
    assert made.standing.status().failure is ShardFailure.CONFIGURATION


@in_virtual_time
async def test_a_shard_that_finishes_is_in_no_other_state() -> None:
    """Once it finishes, whatever happens to the shard is shown as finishing, since when it began."""
    made = await parts()
    made.scope.finishing.set()
    made.standing.enter(State.RETRYING, "no answer")
    await asyncio.sleep(5)
    made.standing.enter(State.STOPPED, "no answer")

    shown = made.standing.status()

    assert (shown.state, shown.since_s) == (State.FINISHING, 5)


@in_virtual_time
async def test_a_topic_that_nothing_else_tells_is_read_from_its_oldest_entry() -> None:
    """Without metadata the topic is what the oldest entry's own copy says; without entries it is unknown."""
    with_entries, without = await parts(entries=1), await parts()

    found = await with_entries.oldest.find_topic()

    assert found is not None
    assert found.target.scheme == "kafka"
    assert await without.oldest.find_topic() is None
    assert without.standing.status().state is State.IDLE


@in_virtual_time
async def test_targets_of_one_place_share_a_destination_while_it_is_used() -> None:
    """Equal keys give the same destination as long as somebody has it, and a new one after that."""
    made: list[int] = []

    def make() -> Destination:
        made.append(len(made))
        return Destination(1 << 20, ByteLimit(1 << 20))

    known = Destinations(lambda target: target.topic, make)
    first, second = a_topic("a").target, a_topic("b", to="b").target
    kept = known.of(first)

    assert known.of(first) is kept
    assert known.of(second) is not kept
    assert len(made) == 2
    del kept
    gc.collect()
    assert known.in_use() == []
