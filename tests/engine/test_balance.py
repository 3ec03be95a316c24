"""How shards move from busy workers to others, beside their numbers, which stay even."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Literal

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import BalanceSettings, DeliverySettings
from remora.engine.claims import MOVE_S, MoveRefused, move
from remora.engine.ownership.worker_info import Meters
from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.errors import StoreUnavailable
from remora.model.member import COMMAND_COOKIE, HandOverRequest, Member
from remora.model.shard import Shard
from remora.policy.ownership.loads import HostLimits
from support.scripts import run

MIB = 1 << 20
CAN_MIB = 100.0
"""What a worker of these tests can do, in MiB a second."""


class Fleet:
    """Workers on one store whose shards have a scripted load."""

    def __init__(self, stack: AsyncExitStack, shards: int, **settings: object) -> None:
        self.store = FakeStore(tells=True)
        self.store.metadata["t"] = topic = a_topic("t", shards=shards)
        self.shards = sorted(topic.all_shards())
        for shard in self.shards:
            self.store.make(shard.queue)
        self.settings = BalanceSettings(**settings)  # type: ignore[arg-type]  # a test names options as it likes
        self.load = dict.fromkeys(self.shards, 0.0)
        self.workers: list[Worker] = []
        self.telemetries: list[Telemetry] = []
        self._stack = stack

    async def join(self, group_size: int = 1, settings: BalanceSettings | None = None) -> Worker:
        """One worker more, whose usage is the load of its shards."""
        meters = Meters(settings or self.settings)
        last = asyncio.get_running_loop().time()

        def probe(_: HostLimits) -> dict[str, float]:
            nonlocal last
            now = asyncio.get_running_loop().time()
            for shard in worker.ownership.shards:
                meters.traffic.read(shard, round(self.load[shard] * MIB * (now - last)))
            last = now
            return {"cpu": 100 * sum(self.load[shard] for shard in worker.ownership.shards) / CAN_MIB}

        meters.probe = probe
        telemetry = Telemetry()
        self.telemetries.append(telemetry)
        name = f"remora/h/b/w{len(self.workers)}"
        worker = a_worker(
            self.store,
            FakeEndpoint(),
            cookie=name,
            telemetry=telemetry,
            group_size=group_size,
            meters=meters,
        )
        self.workers.append(worker)
        await self._stack.enter_async_context(running(worker))
        return worker

    @property
    def held(self) -> list[int]:
        return [each.held_shards for each in self.workers]

    def owner(self, shard: Shard) -> int:
        """The number of the worker that holds a shard."""
        return next(number for number, each in enumerate(self.workers) if shard in each.ownership.shards)

    def busy(self) -> list[float]:
        """The load of each worker, in MiB a second."""
        return [sum(self.load[shard] for shard in each.ownership.shards) for each in self.workers]

    async def shed(self) -> None:
        """Return when shards have moved for their load, and none is on its way."""
        await asyncio.sleep(65)  # a round comes after a minute
        await until(lambda: self.moves("load") > 0 and sum(self.held) == len(self.shards), within_s=600)
        assert max(self.busy()) <= 60

    def moves(self, kind: str) -> float:
        return sum(
            sample_value(each.registry, "remora_shard_moves_total", {"kind": kind}) or 0 for each in self.telemetries
        )

    def skipped(self, reason: str) -> float:
        """How often no shard was given away for this reason."""
        return sum(
            sample_value(each.registry, "remora_balance_skipped_total", {"reason": reason}) or 0
            for each in self.telemetries
        )


async def two(stack: AsyncExitStack, shards: int, **settings: object) -> Fleet:
    """Two workers that share this many shards evenly."""
    fleet = Fleet(stack, shards, **settings)
    for _ in range(2):
        await fleet.join(group_size=2)
    await until(lambda: sum(fleet.held) == shards, within_s=30)
    return fleet


@pytest.mark.parametrize(("workers", "shards"), [(2, 7), (3, 23)])
@in_virtual_time
async def test_the_model_of_a_fleet_does_as_its_workers(workers: int, shards: int) -> None:
    """A worker that joins gets as many shards, by as many moves, as the model `fleet` of `remora simulate` says."""
    script = {"version": 1, "model": "fleet", "config": {"hosts": workers, "shards": shards}}
    minute = {"op": "run", "seconds": 60}
    *_, expected = run(script | {"steps": [minute, {"op": "join", "hosts": 1}, minute]})["results"]
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, shards)
        for _ in range(workers):
            await fleet.join(group_size=workers)
        await until(lambda: sum(fleet.held) == shards, within_s=30)

        await fleet.join()
        await asyncio.sleep(60)

        assert {"min": min(fleet.held), "max": max(fleet.held)} == expected["held"]
        assert fleet.moves("planned") == expected["moves"]["count"]


@pytest.mark.guarantee("many-workers-and-hosts")
@in_virtual_time
async def test_shards_leave_a_busy_worker_and_stay_away() -> None:
    """Of a worker with all load shards go to the other until both do about the same, and no balance takes them back."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 12)
        [first, _] = fleet.workers
        for shard in first.ownership.shards:
            fleet.load[shard] = 15.0

        await fleet.shed()
        moved, held = fleet.moves("load"), fleet.held
        await asyncio.sleep(900)

        assert moved >= 2
        assert fleet.moves("load") == moved
        assert fleet.moves("planned") == 0
        assert fleet.held == held != [6, 6]


@in_virtual_time
async def test_no_round_is_done_from_rows_that_cannot_be_read() -> None:
    """While the rows cannot be read nobody plans by what they said; with the first reading after that all do."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 12)
        await asyncio.sleep(30)
        fleet.store.before = lambda call: StoreUnavailable("no answer") if call == "members" else None
        for shard in fleet.workers[0].ownership.shards:
            fleet.load[shard] = 15.0
        await asyncio.sleep(300)
        assert fleet.skipped("below") == fleet.moves("load") == 0

        fleet.store.before = lambda _: None
        await until(lambda: fleet.skipped("below") == 2, within_s=5)
        await until(lambda: fleet.moves("load") > 0, within_s=600)


@in_virtual_time
async def test_a_shard_that_alone_has_all_load_stays_where_it_is() -> None:
    """Where a move would only make the other worker as busy nothing moves to and fro, and the reason is counted."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 11)
        hot = fleet.shards[0]
        fleet.load[hot] = 90.0
        owner = fleet.owner(hot)

        await asyncio.sleep(600)

        assert fleet.owner(hot) == owner
        assert fleet.moves("planned") == fleet.moves("load") == 0
        assert fleet.skipped("helps_nobody") > 0


@in_virtual_time
async def test_a_newcomer_gets_its_number_beside_what_was_moved() -> None:
    """A third worker gets what it lacks of the shards that number shares out, and a load move stays."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 12, grace_s=3600)
        [first, second] = fleet.workers
        for shard in first.ownership.shards:
            fleet.load[shard] = 15.0
        await fleet.shed()
        given = 6 - first.held_shards
        for shard in fleet.shards:
            fleet.load[shard] = 0.0

        await fleet.join()
        await until(lambda: fleet.workers[2].held_shards == 4, within_s=30)
        await asyncio.sleep(60)

        assert [first.held_shards, second.held_shards] == [4 - given, 4 + given]


@in_virtual_time
async def test_count_moves_nothing_for_its_load() -> None:
    """With the strategy "count" no worker says what it does, and none gives a shard away for it."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 12, strategy="count")
        for shard in fleet.workers[0].ownership.shards:
            fleet.load[shard] = 15.0

        await asyncio.sleep(600)

        assert fleet.held == [6, 6]
        assert fleet.moves("load") == 0
        assert [each.usage for each in await fleet.store.live()] == [None, None]


@in_virtual_time
async def test_a_reload_turns_balance_by_load_off_and_on() -> None:
    """With the strategy "count" workers say nothing of their load any more, also not in their metrics, and move no
    shard for it; with "threshold" they do again."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 12)
        await asyncio.sleep(30)

        def use(strategy: Literal["count", "threshold"]) -> None:
            for each in fleet.workers:
                each.reload(DeliverySettings(), BalanceSettings(strategy=strategy))

        def usages() -> list[float | None]:
            name = "remora_usage_ratio"
            return [sample_value(each.registry, name, {"resource": "cpu"}) for each in fleet.telemetries]

        assert usages() == [0.0, 0.0]
        use("count")
        for shard in fleet.workers[0].ownership.shards:
            fleet.load[shard] = 15.0
        await asyncio.sleep(600)

        assert (fleet.moves("load"), usages()) == (0, [None, None])
        assert [each.usage for each in await fleet.store.live()] == [None, None]
        use("threshold")
        await fleet.shed()
        assert None not in usages()


@in_virtual_time
async def test_a_worker_that_says_nothing_of_its_load_gets_none() -> None:
    """A worker of an older release, or by number only, is no receiver, however idle it seems."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, 12)
        await fleet.join(group_size=2)
        await fleet.join(group_size=2, settings=BalanceSettings(strategy="count"))
        await until(lambda: fleet.held == [6, 6], within_s=30)
        for shard in fleet.workers[0].ownership.shards:
            fleet.load[shard] = 15.0

        await asyncio.sleep(600)

        assert fleet.moves("load") == 0
        assert fleet.skipped("alone") > 0


@in_virtual_time
async def test_a_command_moves_a_shard_to_a_worker() -> None:
    """The owner hands the shard that a command names to the worker that it names, and no balance takes it back."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 12, strategy="count")
        shard = fleet.workers[0].ownership.shards[0]

        holder = await move(fleet.store, shard, "w1")

        assert holder.cookie == "remora/h/b/w1"
        assert not [each for each in fleet.store.announced if each.startswith(COMMAND_COOKIE)]
        await asyncio.sleep(600)

        assert fleet.held == [5, 7]
        assert fleet.moves("load") == 1
        assert fleet.moves("planned") == 0


@in_virtual_time
async def test_a_move_by_command_is_refused_where_it_cannot_be() -> None:
    """A queue that is there already, that no worker holds, or whose receiver is unknown, drains or is frozen stays."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 4)
        held = fleet.workers[0].ownership.shards[0]
        fleet.store.make("free")
        fleet.store.metadata["free"] = a_topic("free", uri="http://h/")
        await fleet.store.announce(Member("remora/h/b/idle", "h", draining=True), 3600)
        await fleet.store.announce(Member("remora/h/b/frozen", "h", 2), 3600)
        began = asyncio.get_running_loop().time()

        for shard, name, why in (
            (held, "w0", "already"),
            (held, "remora/h/b/w0", "already"),
            (Shard("free"), "w1", "no worker holds"),
            (held, "w", "2 live workers begin"),
            (held, "x", "no live worker"),
            (held, "idle", "drains"),
            (held, "frozen", "was not handed over"),
        ):
            with pytest.raises(MoveRefused, match=why):
                await move(fleet.store, shard, name)

        assert asyncio.get_running_loop().time() - began < 2 * MOVE_S
        assert held in fleet.workers[0].ownership.shards
        assert not [each for each in fleet.store.announced if each.startswith(COMMAND_COOKIE)]


@in_virtual_time
async def test_a_shard_that_its_receiver_does_not_come_for_stays() -> None:
    """A worker that is asked to move a shard to one that is frozen keeps it, and offers it for a while only."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, 2)
        await fleet.join()
        await until(lambda: fleet.held == [2])
        frozen = Member("remora/h/b/frozen", "h", 2)
        await fleet.store.announce(frozen, 3600)
        asks = (HandOverRequest(Shard("t"), frozen.cookie),)
        await fleet.store.announce(Member(f"{COMMAND_COOKIE}x", "h", draining=True, asks=asks), 5)
        await asyncio.sleep(4)
        [mine] = [each for each in await fleet.store.live() if each.cookie == "remora/h/b/w0"]
        assert [offer.shards for offer in mine.offers] == [(Shard("t"),)]
        assert mine.skew == -1

        await asyncio.sleep(60)

        [mine] = [each for each in await fleet.store.live() if each.cookie == "remora/h/b/w0"]
        assert mine.offers == ()
        assert mine.skew == 0
        assert fleet.held == [2]


@in_virtual_time
async def test_status_says_what_a_round_would_do_and_changes_nothing() -> None:
    """The status names the moves of a round, or why there are none, however often it is asked."""
    async with AsyncExitStack() as stack:
        fleet = await two(stack, 12, interval_s=100_000)
        [first, second] = fleet.workers
        for shard in first.ownership.shards:
            fleet.load[shard] = 15.0
        await asyncio.sleep(300)

        said = [first.ownership.shedder.status() for _ in range(3)]

        assert said[0] == said[1] == said[2]
        assert said[0]["resources"]["cpu"] == said[0]["usage"] == 0.9
        assert {move["to"] for move in said[0]["moves"]} == {"remora/h/b/w1"}
        assert second.ownership.shedder.status()["skipped"] == "below"
        assert fleet.moves("load") == 0


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@in_virtual_time
async def test_what_is_read_and_what_arrives_is_traffic_of_its_shard(
    mode: Literal["at-least-once", "exactly-once"],
) -> None:
    """The bytes that count for a shard are those listed in its queue and those that the endpoint acknowledged."""
    store, meters, telemetry = FakeStore(tells=True), Meters(), Telemetry()
    store.metadata["t"] = topic = a_topic("t", shards=2)
    for shard in topic.all_shards():
        store.make(shard.queue)
    store.queues["t.1"].append(*(raw_entry(f"k{number % 3}", number) for number in range(50)))
    worker = a_worker(store, FakeEndpoint(), DeliverySettings(mode=mode), telemetry=telemetry, meters=meters)

    async with running(worker):
        await drained(store, within_s=5)
        passed = meters.traffic.take()

    def counted(name: str) -> float:
        return sample_value(telemetry.registry, f"remora_{name}_total", {"topic": "t"}) or 0

    assert passed.read == counted("listed_bytes") > 0
    assert passed.acknowledged == counted("delivered_bytes") > 0
    assert passed.shards == {Shard("t.1"): passed.read + passed.acknowledged}
