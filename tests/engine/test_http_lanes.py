"""HTTP's real routes and a worker before scripted receivers, on the virtual clock: how much they are sent at a time.

A receiver that has too much is met twice, by the route of today and by one with the former rule. That began with 64
lanes, took a step each time when it was opened anew for a backlog before slow answers, and none back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeStore
from engine.runs import QUICK, a_topic, a_worker, running
from remora.config import Settings
from remora.endpoints.http import HttpEndpoint
from remora.endpoints.http.answers import Answer
from remora.endpoints.http.connection import ExchangeFailed, Lost
from remora.endpoints.http.endpoint import HttpRoute
from remora.endpoints.http.pool import ConnectionKey, Pools
from remora.endpoints.http.posts import Posting
from remora.policy.delivery.lane_steps import SLOW_S

TIMEOUT_S = 10.0
FORMER_LANES = (64, 256, 1024)
SIBLING = pytest.mark.full("another receiver of a kind that the gate has one of")


class FormerRoute(HttpRoute):
    """With the former rule. A receiver's lanes are kept where those of batches are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lanes = max(FORMER_LANES[0], self._receiver.batched_lanes)

    @property
    def stale(self) -> bool:
        receiver = self._receiver
        if self._has_backlog and receiver.mean_s > SLOW_S:
            wanted = next((each for each in FORMER_LANES if each > self._lanes), self._lanes)
            receiver.batched_lanes = max(receiver.batched_lanes, wanted)
        return self._has_backlog and receiver.batched_lanes > self._lanes

    @property
    def width(self) -> int:
        return self._lanes


Seconds = Callable[[int], float]
Refuses = Callable[[int], int | None]


class SlowService:
    """A receiver: it takes `seconds(requests under way)`, and at once answers with what `refuses` says of them."""

    def __init__(self, seconds: Seconds = lambda _: 0.5, refuses: Refuses = lambda _: None) -> None:
        self._seconds = seconds
        self._refuses = refuses
        self._began_at = asyncio.get_running_loop().time()
        self.under_way = 0
        self.most = 0
        self.came: list[float] = []
        self.refused: list[float] = []
        self.taken: list[bytes] = []

    @property
    def now(self) -> float:
        """Seconds since it was made."""
        return asyncio.get_running_loop().time() - self._began_at

    async def answer(self, request: bytes) -> int:
        """The status of one request; no answer comes once the time for it is over."""
        self.came.append(self.now)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        status = self._refuses(self.under_way)
        seconds = self._seconds(self.under_way) if status is None else 0.05
        try:
            await asyncio.sleep(min(seconds, TIMEOUT_S))
        finally:
            self.under_way -= 1
        if seconds > TIMEOUT_S:
            raise ExchangeFailed(Lost.SILENT)
        if status is None:
            self.taken.append(request)
            return 200
        self.refused.append(self.now)
        return status


class ServiceConnections:
    """In place of a pool: each connection leads to the service."""

    def __init__(self, service: SlowService) -> None:
        self._service = service

    @asynccontextmanager
    async def connection(self, _peer: ConnectionKey, _path: str = "") -> AsyncIterator[ServiceConnections]:
        yield self

    async def addresses(self, _peer: ConnectionKey, _timeout_s: float) -> list[str]:
        return []

    async def prove(self, _peer: ConnectionKey) -> None:
        """It is there."""

    async def run(self, posting: Posting) -> Answer | None:
        now = asyncio.get_running_loop().time
        while (request := posting.next_request()) is not None:
            began = now()
            status = await self._service.answer(request)
            if status != 200:
                return Answer(status, "", stays=True)
            posting.acked(now() - began)
        return None


@dataclass(frozen=True)
class Met:
    """What a receiver was sent until the backlog had gone or the time was over; `seconds` is when that was."""

    seconds: float
    came: int
    taken: int
    refused: int
    most: int
    knowing: int
    """Requests that came once it had answered with a refusal."""


async def met(service: SlowService, entries: int, within_s: float) -> Met:
    """Let a worker deliver a backlog to a receiver, for so long at most."""
    store = FakeStore()
    queue = store.make("t", *(raw_entry(f"k{i}", i) for i in range(entries)))
    store.metadata["t"] = a_topic(uri="http://receiver")
    endpoint = HttpEndpoint(Settings())
    endpoint._pools = cast(Pools, ServiceConnections(service))
    async with running(a_worker(store, endpoint, ownership=replace(QUICK, schemes=("http",)))):
        while queue.waiting and service.now < within_s:  # noqa: ASYNC110  # the clock is virtual
            await asyncio.sleep(0.05)
        first = service.refused[0] if service.refused else float("inf")
        came, taken, refused = len(service.came), len(service.taken), len(service.refused)
        return Met(service.now, came, taken, refused, service.most, sum(each > first for each in service.came))


async def met_both(
    make: Callable[[], SlowService], entries: int, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[Met, Met]:
    """The same by the route of today, and by the former one."""
    today = await met(make(), entries, within_s)
    monkeypatch.setattr("remora.endpoints.http.endpoint.HttpRoute", FormerRoute)
    return today, await met(make(), entries, within_s)


def with_room_for(most: int) -> SlowService:
    """It refuses what is more than so many at once."""
    return SlowService(refuses=lambda under_way: 503 if under_way > most else None)


def with_a_rate(per_s: int) -> SlowService:
    """It refuses what is more than so many within a second."""
    accepted: deque[float] = deque()

    def refuses(_: int) -> int | None:
        while accepted and accepted[0] <= service.now - 1:
            accepted.popleft()
        if len(accepted) >= per_s:
            return 429
        accepted.append(service.now)
        return None

    service = SlowService(refuses=refuses)
    return service


def with_a_line(per_s: int) -> SlowService:
    """It answers so many a second, one after the other: more at a time wait longer."""
    return SlowService(lambda under_way: 0.1 + under_way / per_s)


def away_from(moment: float) -> SlowService:
    """It is well until then, and refuses everything behind."""
    service = SlowService(refuses=lambda _: 503 if service.now > moment else None)
    return service


@in_virtual_time
async def test_a_backlog_before_a_slow_receiver() -> None:
    """Within a second all lanes that may be are under way before a receiver that takes half a second, and stay so until
    little is left."""
    found = await met(SlowService(), 4000, 60)

    assert (found.most, found.came) == (1024, 4000)
    assert found.seconds < 4.5  # a second of steps, two with all lanes, and the last keys of a lane


@pytest.mark.parametrize(
    ("make", "entries", "within_s"),
    [
        pytest.param(partial(with_room_for, 100), 1500, 5, id="room for 100"),
        pytest.param(partial(with_room_for, 300), 2500, 8, id="room for 300", marks=SIBLING),
        pytest.param(partial(with_room_for, 600), 2500, 8, id="room for 600", marks=SIBLING),
        pytest.param(partial(with_a_rate, 100), 2500, 8, id="100 a second", marks=SIBLING),
        pytest.param(partial(with_a_rate, 600), 2500, 8, id="600 a second", marks=SIBLING),
    ],
)
@in_virtual_time
async def test_a_receiver_that_refuses_what_is_too_much(
    make: Callable[[], SlowService], entries: int, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets fewer requests that it refuses than it formerly did, and fewer at all for as many that it takes."""
    today, former = await met_both(make, entries, within_s, monkeypatch)

    assert 0 < today.refused < former.refused / 2
    assert today.came / today.taken < former.came / former.taken


@pytest.mark.parametrize(
    ("moment", "entries"),
    [(0.01, 1000), (1.2, 3000), *(pytest.param(each, 5000, marks=SIBLING) for each in (0.7, 2.2, 2.7))],
)
@in_virtual_time
async def test_a_receiver_that_begins_to_refuse_everything(
    moment: float, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many were under way then, once it has answered so it gets no more than it formerly got."""
    today, former = await met_both(partial(away_from, moment), entries, 4, monkeypatch)

    assert today.refused > 0
    assert today.knowing <= former.knowing


@pytest.mark.parametrize("per_s", [pytest.param(128, marks=SIBLING), 400])
@in_virtual_time
async def test_a_receiver_whose_answers_grow(per_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has as much as it can do gets 256 at a time at most, and formerly got more, up to 1,024."""
    today, former = await met_both(partial(with_a_line, per_s), 2000, 5, monkeypatch)

    assert today.most <= 256 < former.most
    assert today.came <= former.came
    assert today.taken >= 0.7 * former.taken
