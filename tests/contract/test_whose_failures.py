"""Whose failures are whose, as real answers have them: a host's, or those of one path or topic alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from devkit.processes.ports import free_port
from devkit.receivers.receiver import DROPPED, Arrival, Reply, receiving, status
from remora.config import HttpSettings, Settings
from remora.endpoints.http import HttpEndpoint
from remora.model.errors import EndpointError
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from support.kafka_sender import INCARNATION, make_records

SHARD = Shard("shard", Origin.REMORA)
QUICK = Settings(http=HttpSettings(request_timeout_s=0.5, connect_timeout_s=20.0))


@pytest.fixture
async def endpoint() -> AsyncIterator[HttpEndpoint]:
    """A running endpoint that waits half a second for an answer."""
    async with HttpEndpoint(QUICK) as running:
        yield running


async def failures(endpoint: HttpEndpoint, url: str, count: int = 1) -> list[EndpointError]:
    """Why each lane failed that pushes so many records of different keys."""
    async with endpoint.route(SHARD, INCARNATION, Target(url, "", "t"), quick_retries=False) as route:
        batches, _ = route.pack(make_records(0, count, keys=count))
        found = await asyncio.gather(*map(route.push, batches), return_exceptions=True)
    return [each for each in found if isinstance(each, EndpointError)]


@pytest.mark.parametrize(
    ("reply", "kind", "retry_after_s"),
    [
        (status(500), "answered", None),
        (status(503, "Retry-After: 3600\r\n"), "answered", 300),
        (status(429, "Retry-After: 30\r\n"), "answered", 30),
        (Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", ends=True), "answered", None),
        (Reply(b"220 mail ready\r\n", ends=True), "answered", None),
        (status(404), "configuration", None),
        (DROPPED, "unavailable", None),
    ],
)
async def test_what_a_path_answers_is_not_its_hosts(
    endpoint: HttpEndpoint, reply: Reply, kind: str, retry_after_s: float | None
) -> None:
    """Whatever begins an answer is about the path, with the time that it asks for; no answer is about the host."""
    async with receiving(lambda _: reply) as receiver:
        [failed] = await failures(endpoint, f"{receiver.url}/x")

    assert (failed.kind, failed.retry_after_s) == (kind, retry_after_s)


async def test_no_answer_in_time_is_about_the_host(endpoint: HttpEndpoint) -> None:
    """A host that is silent has time-outs."""
    ends = asyncio.Event()
    async with receiving(lambda _: Reply(until=ends)) as receiver:
        [failed] = await failures(endpoint, f"{receiver.url}/x")
        ends.set()

    assert failed.kind == "timeout"


async def test_no_connection_is_about_the_host(endpoint: HttpEndpoint) -> None:
    """Where nobody listens a connection fails, in a push as in the opening of the next way."""
    url = f"http://127.0.0.1:{free_port()}/x"

    [failed] = await failures(endpoint, url)
    assert failed.kind == "connect"
    with pytest.raises(EndpointError) as caught:
        await failures(endpoint, url)
    assert caught.value.kind == "connect"


async def test_requests_that_end_beside_one_that_failed_count_for_nobody(endpoint: HttpEndpoint) -> None:
    """Of all lanes of a path only those have a failure that got an answer; the others ended since one failed."""
    asked = 0

    def plan(_: Arrival) -> Reply:
        nonlocal asked
        asked += 1
        return status(503)

    async with receiving(plan) as receiver:
        kinds = [each.kind for each in await failures(endpoint, f"{receiver.url}/x", 200)]

    assert kinds.count("answered") == asked
    assert set(kinds) <= {"answered", "aborted"}


def a_path(line: str) -> str:
    return line.split(" ")[1]


@pytest.mark.parametrize("path", ["/busy", "/silent"])
async def test_a_path_gets_its_share_of_the_connections_to_a_host(path: str) -> None:
    """Where another path asks for many times the connections that its host may have, a request is answered at once."""
    settings = HttpSettings(connections=32, request_timeout_s=60.0, connect_timeout_s=20.0)
    ends = asyncio.Event()
    beside = {"/busy": status(503), "/silent": Reply(until=ends, counts=False)}

    def plan(arrival: Arrival) -> Reply:
        return beside.get(a_path(arrival.line), status(204))

    async with receiving(plan) as receiver, HttpEndpoint(Settings(http=settings)) as endpoint:
        others = [asyncio.create_task(failures(endpoint, f"{receiver.url}{path}", 60)) for _ in range(5)]
        while len(receiver.came) < 30 and not all(each.done() for each in others):  # noqa: ASYNC110  # other tasks' work
            await asyncio.sleep(0)
        assert await failures(endpoint, f"{receiver.url}/good") == []

        assert not ends.is_set()
        ends.set()
        await asyncio.gather(*others)
