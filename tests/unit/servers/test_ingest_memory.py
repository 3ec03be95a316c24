"""Requests that wait for memory: at their headers, in their order, over all workers of a host."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.waits import PATIENT_S, until
from remora.config import IngestSettings, Settings
from remora.metrics import Telemetry
from remora.process.host_load import HostLoad, clear, shared_memory
from remora.servers.http import connection
from remora.servers.http.begun import begin
from remora.servers.ingest import server
from remora.servers.ingest.body_budget import BodyBudget
from remora.servers.ingest.problems import SLOW_DOWN, RefusedRequest
from support.ingest import Answer, ScriptedStore, Site, ingest_site, own_topic, records

EVENTS = "/v1/topics/t/events"
LARGE = 100_000
BOUNDS = {"max_request_bytes": LARGE, "max_held_bytes": 2 * LARGE}
"""One request of `LARGE` bytes makes all others wait."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server does every second, or gives some seconds to, is done sooner here."""
    monkeypatch.setattr(server, "LOOK_S", 0.05)
    monkeypatch.setattr(connection, "LINGER_S", 0.3)


@pytest.fixture
def store() -> ScriptedStore:
    """A store with one topic, which answers no request until its gate is opened."""
    store = ScriptedStore(own_topic("t"))
    store.gate.clear()
    return store


@pytest.fixture
def memory() -> Iterator[int]:
    """Memory for two workers."""
    descriptor = shared_memory(2)
    yield descriptor
    os.close(descriptor)


def body(key: str, nbytes: int = LARGE) -> bytes:
    """Events of this many bytes."""
    plain = json.dumps(records(key)).encode()
    return plain + b" " * (nbytes - len(plain))


def head(*lines: str) -> bytes:
    """The head of a request with events."""
    first = (f"POST {EVENTS} HTTP/1.1", "Host: remora", "Content-Type: application/json")
    return "\r\n".join([*first, *lines, "", ""]).encode()


def ask(site: Site, given: bytes | AsyncIterator[bytes], **headers: str) -> asyncio.Future[Answer]:
    """A request that is sent while the test goes on."""
    return asyncio.ensure_future(site.ask("POST", EVENTS, given, headers))


def keys(store: ScriptedStore) -> list[str]:
    """The keys of the requests that were stored, in that order."""
    return [events[0].key.decode().removeprefix("b:") for _, events, _ in store.published]


async def test_requests_wait_and_are_let_in_in_their_order(store: ScriptedStore, tmp_path: Path) -> None:
    """None is refused, one at a time is in memory, and one without a body is answered meanwhile."""
    async with ingest_site(store, tmp_path, **BOUNDS) as site:
        asked = []
        for number in range(4):
            asked.append(ask(site, body(f"k{number}")))
            await until(lambda: site.server.held_bytes == LARGE and site.server.waiting == len(asked) - 1)
        assert (await site.ask("GET", "/v1/topics/t")).status == 200
        await until(lambda: site.metric("remora_ingest_waiting_requests") == 3)
        assert site.metric("remora_ingest_paused") == 1

        most = 0
        store.gate.set()
        while not all(each.done() for each in asked):
            most = max(most, site.server.held_bytes)
            await asyncio.sleep(0)

        assert [each.result().status for each in asked] == [200] * 4
        assert keys(store) == ["k0", "k1", "k2", "k3"]
        assert most == LARGE
        assert site.metric("remora_ingest_wait_seconds_count") == 3
        assert site.metric("remora_ingest_pauses_total") == 1
        await until(lambda: site.metric("remora_ingest_paused") == 0)


async def test_a_waiting_request_is_left_in_the_socket(store: ScriptedStore, tmp_path: Path) -> None:
    """Of its body no more is read than came with its headers, so that its sender cannot send on."""
    nbytes = 8 << 20
    bounds = {"max_request_bytes": nbytes, "max_held_bytes": 2 * nbytes}
    async with ingest_site(store, tmp_path, **bounds) as site:
        first = ask(site, body("first", nbytes))
        await store.asked.wait()
        with socket.socket(socket.AF_UNIX) as eager:
            eager.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(eager, str(tmp_path / "ingest.sock"))
            await loop.sock_sendall(eager, head(f"Content-Length: {nbytes}"))
            await until(lambda: site.server.waiting == 1)
            ahead, sent = memoryview(body("second", nbytes)), 0
            for _ in range(100):
                try:
                    sent += eager.send(ahead[sent:])
                except BlockingIOError:
                    await site.ask("GET", "/v1/health")
            assert sent < 1 << 20

            store.gate.set()
            await asyncio.wait_for(loop.sock_sendall(eager, ahead[sent:]), PATIENT_S)
            assert (await first).status == 200
            await until(lambda: keys(store) == ["first", "second"])


async def test_a_waiting_request_is_refused_when_its_time_is_over(store: ScriptedStore, tmp_path: Path) -> None:
    """503 SlowDown with Retry-After, and the client that asks before it sends its body is never told to."""
    async with ingest_site(store, tmp_path, request_timeout_s=0.3, **BOUNDS) as site:
        first = ask(site, body("first"))
        await store.asked.wait()
        refused = await site.ask("POST", EVENTS, body("second"), {"Expect": "100-continue"})

        assert (refused.status, refused.code) == (503, "SlowDown")
        assert refused.headers["Retry-After"] == "1"
        store.gate.set()
        assert (await first).status == 200
        assert keys(store) == ["first"]


@pytest.mark.parametrize("form", ["chunked", "gzip"])
async def test_bodies_of_unknown_length_do_not_wait_for_each_other(
    store: ScriptedStore, tmp_path: Path, form: str
) -> None:
    """Several that have begun, together larger than the memory: the oldest one may go on, and all are stored."""
    go_on = asyncio.Event()

    async def halves(whole: bytes) -> AsyncIterator[bytes]:
        yield whole[: len(whole) // 2]
        await go_on.wait()
        yield whole[len(whole) // 2 :]

    def request(key: str) -> asyncio.Future[Answer]:
        if form == "chunked":
            return ask(site, halves(body(key)))
        return ask(site, halves(gzip.compress(body(key), 0)), **{"Content-Encoding": "gzip"})

    store.gate.set()
    async with ingest_site(store, tmp_path, **BOUNDS) as site:
        asked = [request(f"k{number}") for number in range(5)]
        await until(lambda: site.server.held_bytes >= LARGE)
        go_on.set()

        assert [each.status for each in await asyncio.wait_for(asyncio.gather(*asked), PATIENT_S)] == [200] * 5
        assert sorted(keys(store)) == ["k0", "k1", "k2", "k3", "k4"]
        assert site.server.held_bytes == 0


@pytest.mark.parametrize(
    "begun",
    [
        head(f"Content-Length: {LARGE}") + b"{",
        head("Transfer-Encoding: chunked") + f"{LARGE:x}\r\n".encode() + body("half") + b"\r\n",
    ],
    ids=["length", "chunked"],
)
async def test_a_client_that_sleeps_in_its_body_is_cut_and_others_go_on(
    store: ScriptedStore, tmp_path: Path, begun: bytes
) -> None:
    """It holds the memory that it has announced or filled until its time is over, and no longer."""
    store.gate.set()
    async with ingest_site(store, tmp_path, request_timeout_s=0.5, **BOUNDS) as site:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "ingest.sock")
        writer.write(begun)
        await until(lambda: site.server.held_bytes == LARGE)
        answers = [await site.ask("POST", EVENTS, body("k")) for _ in range(4)]

        assert {each.status for each in answers} <= {200, 503}
        assert answers[-1].status == 200
        assert b" 408 " in await asyncio.wait_for(reader.readline(), PATIENT_S)
        writer.close()


async def test_a_client_that_leaves_while_it_waits_stores_nothing(store: ScriptedStore, tmp_path: Path) -> None:
    """It is forgotten when its turn comes, and who waits behind it goes on."""
    async with ingest_site(store, tmp_path, **BOUNDS) as site:
        first = ask(site, body("first"))
        await store.asked.wait()
        _, writer = await asyncio.open_unix_connection(tmp_path / "ingest.sock")
        writer.write(head(f"Content-Length: {LARGE}") + b"{")
        await until(lambda: site.server.waiting == 1)
        behind = ask(site, body("behind"))
        await until(lambda: site.server.waiting == 2)
        writer.close()
        store.gate.set()

        assert [(await each).status for each in (first, behind)] == [200, 200]
        assert keys(store) == ["first", "behind"]
        await until(lambda: site.server.held_bytes == 0 and site.server.waiting == 0)
        assert site.metric("remora_crashes_total") == 0


async def test_what_another_worker_holds_makes_requests_wait(store: ScriptedStore, tmp_path: Path, memory: int) -> None:
    """Until it is less than half of the limit, or its process has ended; nobody has to send anything for that."""
    other = HostLoad(memory, 2, 1)
    store.gate.set()
    async with ingest_site(store, tmp_path, load=HostLoad(memory, 2, 0), **BOUNDS) as site:
        for frees in ("answers", "ends"):
            other.hold_bodies(LARGE)
            waits = ask(site, body("k", 1000))
            await until(lambda: site.server.waiting == 1)
            other.hold_bodies(LARGE // 2)
            assert (await site.ask("GET", "/v1/health")).status == 200
            assert site.server.waiting == 1
            if frees == "answers":
                other.hold_bodies(LARGE // 2 - 1)
            else:
                clear(memory, 1)

            assert (await asyncio.wait_for(waits, PATIENT_S)).status == 200


async def test_a_larger_limit_counts_at_once(store: ScriptedStore, tmp_path: Path) -> None:
    """Those that wait are let in by a reload, without the end of any other request."""
    async with ingest_site(store, tmp_path, **BOUNDS) as site:
        asked = [ask(site, body(f"k{number}")) for number in range(3)]
        await until(lambda: site.server.waiting == 2)
        larger: dict[str, Any] = BOUNDS | {"max_held_bytes": 10 * LARGE}
        site.server.reload(Settings(ingest=IngestSettings(**larger)))
        await until(lambda: site.server.held_bytes == 3 * LARGE)

        store.gate.set()
        assert [(await each).status for each in asked] == [200] * 3


async def test_a_stop_answers_those_that_wait(store: ScriptedStore, tmp_path: Path) -> None:
    """503 ServiceUnavailable at once, and what has its body goes on."""
    async with ingest_site(store, tmp_path, request_timeout_s=3600.0, **BOUNDS) as site:
        first = ask(site, body("first"))
        await store.asked.wait()
        second = ask(site, body("second"))
        await until(lambda: site.server.waiting == 1)
        site.server.end()

        refused = await asyncio.wait_for(second, PATIENT_S)
        assert (refused.status, refused.code) == (503, "ServiceUnavailable")
        store.gate.set()
        assert (await first).status == 200
    assert keys(store) == ["first"]


async def test_a_request_is_let_in_before_its_task_begins() -> None:
    """What ends between a request's refusal at its headers and the first step of its task lets it in all the same."""
    budget, started = BodyBudget(10, HostLoad.alone(), Telemetry()), list[Coroutine[Any, Any, None]]()
    first, second = budget.share(Socket()), budget.share(Socket())

    async def waits() -> None:
        with second:
            assert not second.begin(10)
            await second.wait(3600.0)

    assert first.begin(10)
    begin(waits(), started.append)
    first.__exit__(None, None, None)

    await asyncio.wait_for(started[0], PATIENT_S)
    assert budget.waiting == 0


class Clients:
    """Requests at several workers of a host, which share its memory."""

    def __init__(self, memory: int, workers: int, limit: int, chance: Random) -> None:
        loads = [HostLoad(memory, workers, place) for place in range(workers)]
        self.budgets = [BodyBudget(limit, each, Telemetry()) for each in loads]
        self.most = 0
        self.stored = self.refused = self.left = 0
        self._chance = chance

    async def request(self, most_bytes: int) -> None:
        """One request, with a body of known or unknown length, whose client may leave."""
        chance = self._chance
        await asyncio.sleep(chance.random() * 2)
        stays_s = chance.choice([0.2, 3600, 3600])
        try:
            async with asyncio.timeout(stays_s):
                await self._send(chance.choice(self.budgets), chance.randint(1, most_bytes))
        except TimeoutError:
            self.left += 1
        except RefusedRequest as exc:
            self.refused += exc.kind is SLOW_DOWN
        else:
            self.stored += 1

    async def _send(self, budget: BodyBudget, nbytes: int) -> None:
        chance = self._chance
        with budget.share(Socket()) as share:
            length, patience_s = nbytes if chance.random() < 0.6 else None, chance.choice([1, 1000])
            if not share.begin(length):
                await share.wait(patience_s)
            for received in range(1, nbytes + 1):
                await share.cover(received)
                self.most = max(self.most, sum(each.nbytes for each in self.budgets))
                await asyncio.sleep(chance.random() * 0.05)
            await asyncio.sleep(chance.random())


class Socket:
    """A connection that nobody reads."""

    def hold_for_memory(self) -> None:
        """Nothing."""

    def go_on_for_memory(self) -> None:
        """Nothing."""


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 3), limit=st.integers(10, 40))
def test_no_schedule_of_requests_passes_the_bound_or_stops_ingest(seed: int, workers: int, limit: int) -> None:
    """Of any bodies at several workers whose clients stay or leave, all are stored or answered, none waits for ever,
    and what they hold passes the limit by one announced body and one that grows, at most."""

    @in_virtual_time
    async def play() -> None:
        descriptor = shared_memory(workers)
        clients = Clients(descriptor, workers, limit, Random(seed))
        os.close(descriptor)
        async with asyncio.timeout(8 * PATIENT_S), asyncio.TaskGroup() as tasks:
            for _ in range(25):
                tasks.create_task(clients.request(10))

        assert clients.stored + clients.refused + clients.left == 25
        assert clients.stored
        assert clients.most < limit + 20
        assert all(each.nbytes == each.waiting == 0 for each in clients.budgets)
        assert not any(each.look() for each in clients.budgets)

    play()
