"""Whose letters are taken on RADOS, where a queue and its letters are two objects and their holder may stand still
between any two operations; the contract suite has real OSDs for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from remora.model.errors import OwnershipLost, StoreError
from remora.model.record import DeadLetter, Page
from remora.model.shard import LockToken, Shard
from remora.storage.librados import operations
from remora.storage.librados.operations import ObjectBytes, ObjectOperation, Omap, WriteOp, Xattrs
from remora.storage.rados.cluster.refusals import ExistsError, MismatchError, MissingError
from remora.storage.rados.queues.dead_letters import REGISTRY, RadosDeadLetters
from support.letters import letters_of
from support.librados_steps import Step, StepRecorder
from unit.codec.samples import queue_head

PAGE = Page([b"0/24576", b"0/24600"], [b"fourteen bytes"], truncated=False)
LETTERS = f"{REGISTRY}.q"


class Osds(StepRecorder):
    """A queue with a lock, and the object of its letters."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = "first"
        self.is_announced = False
        self.names: dict[bytes, bytes] = {}
        self.letters = 0
        self.exists = False

    def change(self, steps: list[Step]) -> None:
        """Carry out a write to the object of letters."""
        for step, *arguments in steps:
            if step == "create" and self.exists:
                raise ExistsError("it is there")
            self.exists = True
            if step == "cmpxattr" and self.names.get(arguments[0], b"") != arguments[2]:
                raise MismatchError("another name stands there")
            if step == "setxattr":
                self.names[arguments[0]] = arguments[1]
            self.letters += step == "omap_set2"


class Process:
    """The connection of a process that has the lock under a cookie. Before the first operation that `stops` says it
    stands still, until it is thawed."""

    def __init__(self, osds: Osds, cookie: str, stops: Callable[[list[Any]], bool] = lambda _: False) -> None:
        self.token = LockToken(Shard("q"), cookie, "incarnation")
        self.letters = RadosDeadLetters(self)  # type: ignore[arg-type]  # it stands for the connection
        self.is_there, self.thaw = asyncio.Event(), asyncio.Event()
        self._osds, self._stops = osds, stops

    def __getattr__(self, _: str) -> Any:
        return self  # session, placement, locators and traffic

    async def walked(self, _: int) -> None:
        """Nothing is metered."""

    async def run(self, operation: ObjectOperation, oid: str, *_: object, **__: object) -> int:
        steps = self._osds.taken()
        if not self.thaw.is_set() and oid == LETTERS and self._stops(steps):
            self.is_there.set()
            await self.thaw.wait()
        if oid == "q":
            if self._osds.holder != self.token.cookie:
                raise OwnershipLost("its lock is not held any more")
            self._osds.is_announced = self._osds.is_announced or isinstance(operation, WriteOp)
        elif oid == LETTERS and isinstance(operation, WriteOp):
            self._osds.change(steps)
        elif oid == LETTERS and not self._osds.exists:
            raise MissingError("there are no letters")
        for cell in operation._cells:
            if isinstance(cell, ObjectBytes):
                cell.data = queue_head(tail=(0, 24600))
            elif isinstance(cell, Xattrs):
                cell.values = {key.decode(): value for key, value in self._osds.names.items()} if oid == LETTERS else {}
            elif isinstance(cell, Omap):
                announced = oid == "q" and self._osds.is_announced
                cell.values = {"remora.parking.0/24576": b""} if announced else {}
        return 1


@pytest.fixture
def osds(monkeypatch: pytest.MonkeyPatch) -> Osds:
    found = Osds()
    monkeypatch.setattr(operations, "load", lambda: found)
    return found


def names(steps: list[Any]) -> bool:
    return any(step[0] == "setxattr" for step in steps)


def looks(steps: list[Any]) -> bool:
    return any(step[0] == "getxattrs" for step in steps)


def stores(steps: list[Any]) -> bool:
    return any(step[0] == "omap_set2" for step in steps)


@pytest.mark.parametrize("stops", [looks, names, stores])
@pytest.mark.parametrize("has_letters", [False, True])
async def test_a_holder_that_stood_still_stores_no_letter(
    osds: Osds, stops: Callable[[list[Any]], bool], has_letters: bool
) -> None:
    """Whatever it stood still before, no letter of it is stored once the next holder has looked for letters: that one
    delivers the entry."""
    osds.exists = has_letters
    first, second = Process(osds, "first", stops), Process(osds, "second")
    storing = asyncio.ensure_future(first.letters.store(first.token, *letters_of(first.token, PAGE)))
    storing.add_done_callback(lambda _: first.is_there.set())
    await first.is_there.wait()
    osds.holder = "second"
    assert list(await second.letters.standing(second.token)) == list[DeadLetter]()

    first.thaw.set()
    with pytest.raises(StoreError):
        await storing

    assert osds.letters == 0


async def test_a_holder_stores_letters_where_none_stood_still(osds: Osds) -> None:
    """Those of a holder that has its lock are stored, also where an earlier one has stored some."""
    for number, cookie in enumerate(("first", "second"), 1):
        osds.holder = cookie
        process = Process(osds, cookie)
        await process.letters.standing(process.token)
        await process.letters.store(process.token, *letters_of(process.token, PAGE))
        assert osds.letters == number
