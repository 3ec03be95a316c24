"""What of a queue is moved to a run, when it is not, and what the runs of a queue are of one moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.clock import in_virtual_time
from remora.codec.queue_ops import decode_head
from remora.codec.queue_state import QueueState, encode_spill, encode_state
from remora.codec.spill import RUN_KEY, encode_owner, encode_page, encode_run, run_key
from remora.model.errors import CodecError, StoreError, StoreFull, StoreMisconfigured, StoreUnavailable
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import LockToken, Shard
from remora.model.spill import Spill, SpilledRun
from remora.storage.librados import WriteOp, operations
from remora.storage.rados.cluster.placement import Locator
from remora.storage.rados.cluster.state import SPILL, STATE, StoredState, stored_state
from remora.storage.rados.queues import runs as runs_module
from remora.storage.rados.queues.queue import HeldProgress, MoveTurns, QueueParts
from remora.storage.rados.queues.releases import Guard, Guards
from remora.storage.rados.queues.runs import Runs, look_with_runs
from remora.storage.rados.queues.spills import RadosSpills
from unit.codec.samples import queue_head

TOKEN = LockToken(Shard("q"), "cookie", "incarnation")
PAGE = Page([b"0/24576", b"0/24600"], [b"fourteen bytes"], truncated=False)


class Librados:
    """Puts any operation together: no step is looked at."""

    def __getattr__(self, _: str) -> Callable[..., int]:
        return lambda *_: 1


class SlowSpills(RadosSpills):
    """Moves of a queue of one entry, whose run takes so long to store, and the look at its head so long."""

    def __init__(self, store_s: float, look_s: float) -> None:
        async def stored(*_: object) -> None:
            await asyncio.sleep(store_s)
            if self.failure is not None:
                raise self.failure

        async def looked(_: Shard) -> None:
            await asyncio.sleep(look_s)

        async def agreed(_: Shard) -> bool:
            return self.may_move

        async def packed(page: Page) -> bytes:
            return encode_page(page)

        self.discarded: list[str] = []
        self.failure: StoreError | None = None
        self.limits: list[int] = []
        self.page = PAGE

        async def discard(runs: Sequence[SpilledRun]) -> None:
            self.discarded += [run.name for run in runs]

        runs: Any = SimpleNamespace(new_name=lambda: ("remora.run.1", ""), packed=packed, write=stored, discard=discard)
        old_heads: Any = SimpleNamespace(settle=looked)
        guards: Any = SimpleNamespace(set=agreed, confirm=agreed)
        nobody: Any = None
        super().__init__(nobody, QueueParts(old_heads, runs, guards, nobody))
        self.sent: list[QueueState] = []
        self.may_move = True

    async def _look(self, _: LockToken, progress: HeldProgress) -> StoredState:
        progress.stored = stored_state(decode_head(queue_head(tail=(0, 24600))), {}, "")
        return progress.stored

    async def list_from(self, *request: Any) -> Page:
        self.limits.append(request[-1])
        return self.page

    async def book(self, _: WriteOp, __: LockToken, progress: HeldProgress, state: QueueState) -> None:
        self.sent.append(state)
        assert progress.stored is not None
        progress.stored = progress.stored._replace(state=state)


@pytest.mark.parametrize(
    ("store_s", "look_s", "is_sent"),
    [(60.0, 0.0, True), (30.0, 30.0, True), (60.5, 0.0, False), (30.0, 30.5, False)],
)
@in_virtual_time
async def test_a_move_is_sent_within_a_lease_of_its_run_or_never(
    monkeypatch: pytest.MonkeyPatch, store_s: float, look_s: float, is_sent: bool
) -> None:
    """A page is moved where its run was stored and the queue's head looked at within 60 s; later nothing is sent, and
    the run is left to the sweep."""
    monkeypatch.setattr(operations, "load", Librados)
    spills = SlowSpills(store_s, look_s)

    if is_sent:
        assert await spills.move(TOKEN) == 1
    else:
        with pytest.raises(StoreUnavailable, match="storing a run took too long"):
            await spills.move(TOKEN)

    assert [each.spill.entries for each in spills.sent] == [1] * is_sent


@pytest.mark.parametrize(
    ("failure", "may_move", "discarded"),
    [
        (StoreFull("the pool's quota is used up"), True, True),
        (StoreMisconfigured("no permission"), True, True),
        (StoreUnavailable("no answer"), True, False),
        (None, False, True),
    ],
    ids=["full", "refused", "without an answer", "released"],
)
@in_virtual_time
async def test_a_run_that_is_refused_takes_nothing_of_the_bounds(
    monkeypatch: pytest.MonkeyPatch, failure: StoreError | None, may_move: bool, discarded: bool
) -> None:
    """A run that the pool refuses, or that is not named since its queue was released, leaves the list of runs at once.
    One without an answer stays there, since it may be stored late."""
    monkeypatch.setattr(operations, "load", Librados)
    spills = SlowSpills(0.0, 0.0)
    spills.failure, spills.may_move = failure, may_move

    with contextlib.suppress(StoreError):
        assert await spills.move(TOKEN) == 0

    assert (spills.sent, spills.discarded) == ([], ["remora.run.1"] * discarded)


@in_virtual_time
async def test_a_ring_of_large_entries_is_listed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move lists about as many entries as a run has room for, by the size of those that were moved before."""
    monkeypatch.setattr(operations, "load", Librados)
    spills = SlowSpills(0.0, 0.0)
    await spills.move(TOKEN)
    spills.page = Page([b"0/24600", b"0/25000"], [bytes(1 << 20)], truncated=True)
    for _ in range(2):
        await spills.move(TOKEN)

    assert spills.limits == [4096, 4096, 4]


class BusyQueue:
    """A queue with many runs, of which an OSD tells three at a time; its state changes after so many looks."""

    def __init__(self, runs: int, changes_after: int = -1) -> None:
        self.looks, self._changes_after = 0, changes_after
        each = [
            SpilledRun(f"run{i}", Position(0, 24576 + 10 * i), Position(0, 24586 + 10 * i), 1, 10, 5, "x")
            for i in range(runs)
        ]
        self._keys = {run_key(run): encode_run(run) for run in each}
        front, end = (each[0].first, each[-1].end) if runs else (Position(0, 24576), Position(0, 24576))
        self._states = [QueueState(front, end, nbytes, spill=Spill(front, 10 * runs, runs)) for nbytes in (0, 1)]

    def __call__(self) -> Any:
        return self

    async def send(self, _: object) -> None:
        self.looks += 1

    def read(self, *_: int) -> Any:
        return SimpleNamespace(data=queue_head(tail=(0, 24600)))

    def xattrs(self) -> Any:
        state = self._states[0 <= self._changes_after <= self.looks]
        return SimpleNamespace(values={STATE: encode_state(state), SPILL: encode_spill(state)})

    def omap_page(self, after: str, prefix: str, _: int) -> Any:
        left = sorted(key for key in self._keys if key > after and key.startswith(prefix))
        return SimpleNamespace(values={key: self._keys[key] for key in left[:3]}, more=len(left) > 3)


@pytest.mark.parametrize(
    ("runs", "changes_after", "looks"), [(0, -1, 1), (3, -1, 1), (4, -1, 2), (10, -1, 4), (10, 2, 3 + 4)]
)
async def test_all_runs_are_seen_of_one_moment(runs: int, changes_after: int, looks: int) -> None:
    """However many runs a queue has, a look has all of them, in order, and begins anew when the queue has changed."""
    queue = BusyQueue(runs, changes_after)

    found = await look_with_runs(queue, queue.send, "looking")

    assert [run.name for run in found.runs] == [f"run{i}" for i in range(runs)]
    assert found.stored.state.nbytes == int(changes_after >= 0)
    assert queue.looks == looks


@in_virtual_time
async def test_a_guard_that_others_have_lifted_is_waited_for_anew() -> None:
    """Moves begin when older workers have had the time to read of the guard that stands, and not of an earlier one."""
    seen: list[Guard] = ["new", "stands", "new", "stands", "stands", "", "stands"]

    async def guard(_: str) -> Guard:
        return seen.pop(0)

    clock = asyncio.get_running_loop()
    releases: Any = SimpleNamespace(guard=guard)
    guards = Guards(SimpleNamespace(), releases, SimpleNamespace(), 4.0)  # type: ignore[arg-type]  # one method is used
    may_move = []
    for pause_s in (0, 3, 1.5, 3, 1, 0, 10):
        await asyncio.sleep(pause_s)
        may_move.append(await guards.set(Shard("q")))

    assert clock.time() == pytest.approx(18.5)
    assert may_move == [False, False, False, False, True, False, False]


@pytest.mark.parametrize("move_first", [True, False])
@in_virtual_time
async def test_who_is_cancelled_while_it_reads_keeps_no_move_out(move_first: bool) -> None:
    """A reader that is cancelled, before or after a move waits for it, is none that a move still waits for."""
    turns, done = MoveTurns(), list[str]()

    async def read(name: str) -> None:
        async with turns.shared():
            await asyncio.sleep(10)
            done.append(name)

    async def move() -> None:
        async with turns.alone():
            done.append("move")

    reading = asyncio.create_task(read("cancelled"))
    await asyncio.sleep(1)
    moving = asyncio.create_task(move()) if move_first else None
    await asyncio.sleep(1)
    late = asyncio.create_task(read("late")) if move_first else None
    await asyncio.sleep(1)
    reading.cancel()
    await (moving or move())
    if late:
        await late

    assert done == ["move"] + ["late"] * move_first


def df(**used: object) -> bytes:
    """What the monitors say of pools of which so much is used."""
    return json.dumps(
        {"pools": [{"name": name, "stats": {"percent_used": part}} for name, part in used.items()]}
    ).encode()


def quota(**stats: int) -> bytes:
    """What they say of a pool that is nearly empty, and has quotas."""
    return json.dumps({"pools": [{"name": "queues", "stats": {"percent_used": 0.01, **stats}}]}).encode()


@pytest.mark.parametrize(
    ("pool", "answer", "why"),
    [
        ("", df(queues=0.85), "pool queues is 85% full"),
        ("", df(queues=0.849, spilled=1.0), ""),
        ("spilled", df(queues=0.1, spilled=0.93), "pool spilled is 93% full"),
        ("spilled", df(queues=1.0), ""),
        ("", StoreUnavailable("no monitor answers"), ""),
        ("", b"not JSON", ""),
        ("", b'{"pools": [{"name": "queues", "stats": {}}]}', ""),
        ("", df(queues="much"), ""),
        ("", df(queues=None), ""),
        ("", b'[{"pools": 1}]', ""),
        ("", b'{"pools": [{"name": "queues", "stats": []}]}', ""),
        ("", quota(stored=85, quota_bytes=100), "pool queues has used 85% of its quota"),
        ("", quota(stored=84, quota_bytes=100, objects=10, quota_objects=0), ""),
        ("", quota(stored=1, quota_bytes=0, objects=950, quota_objects=1000), "pool queues has used 95% of its quota"),
    ],
    ids=[
        "full",
        "less",
        "named",
        "not listed",
        "away",
        "no JSON",
        "without it",
        "no number",
        "null",
        "a list",
        "no stats",
        "quota",
        "less of it",
        "quota of objects",
    ],
)
async def test_a_pool_that_is_nearly_full_is_named(pool: str, answer: bytes | Exception, why: str) -> None:
    """From 85 % of its room or of a quota on the pool takes no new runs, and the reason has its name and how full it
    is; an answer of the monitors that cannot be read is no reason."""

    async def ask_monitors(prefix: str, detail: str) -> bytes:
        assert (prefix, detail) == ("df", "detail")  # it has the quotas only with that
        if isinstance(answer, Exception):
            raise answer
        return answer

    placement = SimpleNamespace(own=Locator("queues", "remora"))
    connection: Any = SimpleNamespace(session=SimpleNamespace(placement=placement, ask_monitors=ask_monitors))

    assert await Runs(connection, pool)._why_full() == why


class ListedRuns(Runs):
    """Runs of two queues, which neither names, in a list that has a value that nobody can read; so are the keys of the
    queue `bad`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unreadable: bytes) -> None:
        place = Locator("queues", "remora")
        connection: Any = SimpleNamespace(
            session=SimpleNamespace(placement=SimpleNamespace(own=place, notif=place)),
            traffic=SimpleNamespace(looked=lambda _: None),
        )
        super().__init__(connection)
        self.deleted: list[str] = []
        self.listed = {f"{RUN_KEY}0": unreadable}
        for number, queue in enumerate(("bad", "good"), 1):
            run = SpilledRun(f"{RUN_KEY}{number}", Position(0, 0), Position(0, 9), 1, 9, 10 * number, "x")
            token = LockToken(Shard(queue), "cookie", "incarnation")
            self.listed[run.name] = encode_owner(token, run, str(self._locator(token.shard)))

        async def all_values(*_: object) -> dict[str, bytes]:
            return self.listed

        monkeypatch.setattr(runs_module, "all_values", all_values)

    async def _named(self, shard: Shard, incarnation: str) -> set[str]:
        if shard.queue == "bad":
            raise CodecError("remora.run.0/0", 0, "damaged")
        return set()

    async def _delete(self, pools: Any) -> None:
        self.deleted += pools

    async def _why_full(self) -> str:
        return ""


UNREADABLE = [b"\xff", encode_owner(TOKEN, SpilledRun("r", Position(0, 0), Position(0, 9), 1, 9, 10, "x"), "").replace(
    b"radosgw", b"another"
)]  # fmt: skip


@pytest.mark.parametrize("unreadable", UNREADABLE, ids=["no value", "an origin that is none"])
async def test_a_run_that_nobody_can_read_keeps_no_other_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unreadable: bytes
) -> None:
    """Others are counted and swept, and the log names it once; of a queue whose keys cannot be read no run is swept."""
    runs = ListedRuns(monkeypatch, unreadable)

    assert (await runs.usage()).by_shard == {Shard("bad"): 10, Shard("good"): 20}
    await runs.sweep(0.0)
    await runs.sweep(4000.0)

    assert runs.deleted == [f"{RUN_KEY}2"]
    assert [each.levelname for each in caplog.records] == ["ERROR"]


@in_virtual_time
async def test_guards_are_lifted_though_runs_cannot_be_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of runs that cannot be read keeps no queue guarded."""
    lifted = asyncio.Event()

    async def sweep(_: float) -> None:
        raise StoreError("a list that nobody can read")

    async def lift_stale() -> None:
        lifted.set()

    nothing: Any = SimpleNamespace()
    guards = Guards(nothing, nothing, nothing, 4.0)
    monkeypatch.setattr(guards, "lift_stale", lift_stale)
    runs: Any = SimpleNamespace(sweep=sweep)
    sweeping = asyncio.create_task(guards.run(runs))
    await asyncio.wait(
        [sweeping, asyncio.create_task(lifted.wait())], return_when=asyncio.FIRST_COMPLETED, timeout=9999
    )

    assert lifted.is_set()
    sweeping.cancel()
