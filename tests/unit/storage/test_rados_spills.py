"""When a page is not moved to a run: the move would come too late, or the pool of runs is nearly full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.clock import in_virtual_time
from remora.codec.queue_ops import decode_head
from remora.codec.queue_state import QueueState
from remora.model.errors import StoreUnavailable
from remora.model.record import Page
from remora.model.shard import LockToken, Shard
from remora.storage.librados import WriteOp, operations
from remora.storage.rados.placement import Locator
from remora.storage.rados.queue import HeldProgress, QueueParts
from remora.storage.rados.runs import Runs
from remora.storage.rados.spills import RadosSpills
from remora.storage.rados.state import StoredState, stored_state
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

        async def looked(_: Shard) -> None:
            await asyncio.sleep(look_s)

        async def agreed(_: Shard) -> bool:
            return True

        runs: Any = SimpleNamespace(new_name=lambda: ("remora.run.1", ""), write=stored)
        old_heads: Any = SimpleNamespace(settle=looked)
        guards: Any = SimpleNamespace(set=agreed, confirm=agreed)
        nobody: Any = None
        super().__init__(nobody, QueueParts(old_heads, runs, guards, nobody))
        self.sent: list[QueueState] = []

    async def _look(self, _: LockToken, progress: HeldProgress) -> StoredState:
        progress.stored = stored_state(decode_head(queue_head(tail=(0, 24600))), {}, "")
        return progress.stored

    async def list_from(self, *_: object) -> Page:
        return PAGE

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


def df(**used: object) -> bytes:
    """What the monitors say of pools of which so much is used."""
    return json.dumps(
        {"pools": [{"name": name, "stats": {"percent_used": part}} for name, part in used.items()]}
    ).encode()


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
    ],
    ids=["full", "less", "named", "not listed", "away", "no JSON", "without it", "no number", "null"],
)
async def test_a_pool_that_is_nearly_full_is_named(pool: str, answer: bytes | Exception, why: str) -> None:
    """From 85 % on the pool takes no new runs, and the reason has its name and how full it is; an answer of the
    monitors that cannot be read is no reason."""

    async def ask_monitors(prefix: str) -> bytes:
        assert prefix == "df"
        if isinstance(answer, Exception):
            raise answer
        return answer

    placement = SimpleNamespace(own=Locator("queues", "remora"))
    connection: Any = SimpleNamespace(session=SimpleNamespace(placement=placement, ask_monitors=ask_monitors))

    assert await Runs(connection, pool)._why_full() == why
