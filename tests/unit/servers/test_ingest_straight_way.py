"""A request to publish that waits for the store alone is checked as all others are: tokens, limits, sizes and the stop.

Each topic is known when the request comes; the store says how often it was asked to call back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from remora.config import LimitSettings
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.topic import Topic
from remora.servers import tokens
from remora.servers.ingest import desk
from support.credit import Host, shaping
from support.ingest import PromptStore, Site, ingest_site, own_topic, records

PUBLISH = "/v1/topics/{}/events"


class CountingStore(PromptStore):
    """Counts what came the straight way, and how often a topic was looked up."""

    straight = finds = 0

    async def find(self, name: str) -> Topic | None:
        self.finds += 1
        return await super().find(name)

    def publish_soon(
        self,
        topic: Topic,
        events: Sequence[RoutedEvent],
        once: IdempotencyKey | None,
        done: Callable[[PublishResult | Exception], None],
    ) -> None:
        self.straight += 1
        super().publish_soon(topic, events, once, done)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    """A store whose topics stay known, however slow the machine is."""
    monkeypatch.setattr(desk, "FRESH_S", 3600.0)
    return CountingStore(own_topic("t"), own_topic("u"))


@asynccontextmanager
async def knowing(store: CountingStore, folder: Path, token: str = "", **settings: Any) -> AsyncIterator[Site]:
    """A server that knows both topics."""
    async with ingest_site(store, folder, **settings) as site:
        for name in ("t", "u"):
            assert (await site.ask("GET", f"/v1/topics/{name}", headers=bearer(token))).status == 200
        yield site


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def test_what_is_taken(store: CountingStore, tmp_path: Path) -> None:
    """A plain request to a known topic is stored, and has no task while it waits for the store."""
    async with knowing(store, tmp_path) as site:
        store.gate.clear()
        asking = asyncio.ensure_future(site.ask("POST", PUBLISH.format("t"), records("a")))
        await store.asked.wait()
        tasks = [each.get_name() for each in asyncio.all_tasks()]
        store.gate.set()
        answer = await asking

    assert "ingest request" not in tasks

    assert (answer.status, answer.json["stored"]) == (200, 1)
    assert store.straight == len(store.published) == 1


async def test_a_topic_is_looked_up_anew(store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request to a topic that has been known for long enough looks it up, and it is known again then."""
    monkeypatch.setattr(desk, "FRESH_S", 0.0)
    async with knowing(store, tmp_path) as site:
        monkeypatch.setattr(desk, "FRESH_S", 3600.0)
        before = store.finds
        for _ in range(2):
            assert (await site.ask("POST", PUBLISH.format("t"), records("a"))).status == 200

    assert store.finds == before + 1


async def test_a_token_may_send_to_its_topics_only(store: CountingStore, tmp_path: Path) -> None:
    """No token and an unknown one are 401, one of another topic is 403, and nothing of these is stored."""
    of_t, of_all = tokens.new_token(), tokens.new_token()
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"{tokens.line_of('x', of_t, 't')}\n{tokens.line_of('y', of_all, '*')}\n")

    async with knowing(store, tmp_path, of_all, tokens=str(path)) as site:
        for token, topic, expected in (("", "t", 401), (tokens.new_token(), "t", 401), (of_t, "u", 403)):
            answer = await site.ask("POST", PUBLISH.format(topic), records("a"), bearer(token))
            assert answer.status == expected
        assert store.is_untouched
        assert (await site.ask("POST", PUBLISH.format("t"), records("a"), bearer(of_t))).status == 200

    assert store.straight == 1


async def test_rights_are_those_of_the_tokens_as_they_are_now(store: CountingStore, tmp_path: Path) -> None:
    """A request whose head has the bytes of one before is refused once its token is another topic's, or gone, and taken
    again when the token has its right back."""
    token = tokens.new_token()
    path = tmp_path / "tokens"
    path.touch(0o600)
    of = [(token, "t"), (token, "u"), (tokens.new_token(), "t")]
    lines = [tokens.line_of("x", each, topic) for each, topic in of]
    path.write_text(lines[0])

    async with ingest_site(store, tmp_path, tokens=str(path)) as site:
        for line, expected in ((lines[0], 200), (lines[1], 403), (lines[2], 401), (lines[0], 200)):
            path.write_text(line)
            site.server.reload(site.settings)
            answers = [await site.ask("POST", PUBLISH.format("t"), records("a"), bearer(token)) for _ in range(2)]
            assert {each.status for each in answers} == {expected}


PAGES = [
    {"Origin": "https://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "http://remora"},  # a foreign name that was made to mean this host
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Origin": "", "Sec-Fetch-Site": "none"},
]
LONG_WAY = {"Content-Encoding": "identity"}


@pytest.mark.parametrize("way", [{}, LONG_WAY], ids=["straight", "long"])
@pytest.mark.parametrize("page", PAGES, ids=str)
async def test_a_web_page_is_refused_first(
    store: CountingStore, tmp_path: Path, page: dict[str, str], way: dict[str, str]
) -> None:
    """Whatever else is wrong with what a page in a browser sends, it is 403, and stores nothing."""
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"{tokens.line_of('x', tokens.new_token(), 't')}\n")
    plain = {"Content-Type": "text/plain"}
    async with ingest_site(store, tmp_path) as site:
        assert (await site.ask("GET", "/v1/topics/t")).status == 200
        for method, target in (("POST", PUBLISH.format("t")), ("POST", "/nothing"), ("OPTIONS", PUBLISH.format("t"))):
            answer = await site.ask(method, target, records("a"), page | way | plain)
            assert (answer.status, answer.code) == (403, "CrossOrigin")
        for method, target in (
            ("GET", "/v1/topics"),
            ("POST", "/v1/topics/t/reservations"),
            ("PUT", "/v1/reservations/t.1"),
        ):
            assert (await site.ask(method, target, b"", page)).code == "CrossOrigin"
    async with ingest_site(store, tmp_path, tokens=str(path)) as site:
        assert (await site.ask("POST", PUBLISH.format("t"), records("a"), page | way)).code == "CrossOrigin"

    assert store.is_untouched


async def test_an_address_that_a_user_typed_is_no_page(store: CountingStore, tmp_path: Path) -> None:
    """A browser may show the document of the API, or whether requests are taken."""
    async with ingest_site(store, tmp_path) as site:
        for path in ("/v1/openapi.json", "/v1/health"):
            assert (await site.ask("GET", path, headers={"Sec-Fetch-Site": "none"})).status == 200


async def test_both_ways_refuse_the_same(store: CountingStore, tmp_path: Path) -> None:
    """Each refusal that a head alone can have is the same, and in the same order, on the straight and the long way."""
    of_all = tokens.new_token()
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"{tokens.line_of('x', of_all, '*')}\n")
    limit = LimitSettings(name="few", of="topic", events=1, burst_events=1)
    bank = Host(shaping(), 1, (limit,)).bank()
    wrong = [
        {"Origin": "https://elsewhere.example"},
        {"Authorization": ""},
        {"Authorization": "Bearer unknown"},
        {"Content-Type": "text/html"},
        {"Idempotency-Key": "a b"},
    ]

    async with knowing(store, tmp_path, of_all, tokens=str(path), bank=bank, limit=(limit,)) as site:
        for count in range(len(wrong)):
            headers = bearer(of_all)
            for each in reversed(wrong[count:]):  # of all that is wrong the first is told
                headers |= each
            straight = await site.ask("POST", PUBLISH.format("t"), records("a"), headers)
            long = await site.ask("POST", PUBLISH.format("t"), records("a"), headers | LONG_WAY)
            assert (straight.status, straight.body) == (long.status, long.body)
            assert straight.status == [403, 401, 401, 415, 400][count]
        assert store.is_untouched
        assert (await site.ask("POST", PUBLISH.format("t"), records("a", "b"), bearer(of_all))).status == 200
        for way in ({}, LONG_WAY):
            answer = await site.ask("POST", PUBLISH.format("t"), records("a"), bearer(of_all) | way)
            assert (answer.status, answer.code) == (429, "RateLimited")

    assert store.straight == len(store.published) == 1


async def test_limits_count(store: CountingStore, tmp_path: Path) -> None:
    """What is taken is charged, and beyond the limit a request is told when to come back, and stores nothing."""
    limit = LimitSettings(name="few", of="topic", events=1, burst_events=2)
    bank = Host(shaping(), 1, (limit,)).bank()

    async with knowing(store, tmp_path, bank=bank, limit=(limit,)) as site:
        first = await site.ask("POST", PUBLISH.format("t"), records("a", "b", "c"))
        second = await site.ask("POST", PUBLISH.format("t"), records("d"))

    assert (first.status, second.status, second.code) == (200, 429, "RateLimited")
    assert int(second.headers["Retry-After"]) >= 1
    assert store.straight == len(store.published) == 1


async def test_a_body_beyond_the_limit_is_refused(store: CountingStore, tmp_path: Path) -> None:
    """A body longer than a request may have is 413, however short the bodies are that go this way."""
    async with knowing(store, tmp_path, max_request_bytes=1024) as site:
        answer = await site.ask("POST", PUBLISH.format("t"), records("a" * 1000, "b"))

    assert answer.status == 413
    assert store.is_untouched


async def test_nothing_is_taken_while_the_daemon_stops(store: CountingStore, tmp_path: Path) -> None:
    """A request whose head began before the stop and is complete after it is refused: nobody waits for its answer."""
    body = b'{"Records":[]}'
    async with knowing(store, tmp_path) as site:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "ingest.sock"))
        writer.write(b"POST /v1/topics/t/events HTTP/1.1\r\nHost: x\r\n")
        while not site.server.receiving:  # noqa: ASYNC110  # it becomes so within a turn or two of the loop
            await asyncio.sleep(0)

        site.server.end()
        writer.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        status = await reader.readline()
        writer.close()

    assert status.startswith(b"HTTP/1.1 503 ")
    assert store.is_untouched
