"""Limits of tokens and topics at the ingest API: what is charged, what is refused, and what never is."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remora.config import LimitSettings, Settings
from remora.metrics import Telemetry
from remora.model.errors import QueueFull
from remora.model.traffic import Priority
from remora.policy.shaping.rates import Cost, bucket_name
from remora.process.credit import HostCredit
from remora.servers import tokens
from remora.servers.ingest.limits import IngestLimits
from support.credit import Host, shaping
from support.ingest import ScriptedStore, Site, ingest_site, own_topic, records

EVENTS = "/v1/topics/t/events"
RESERVATIONS = "/v1/topics/t/reservations"
BYTES = LimitSettings(name="gw", of="token", bytes=1_000, burst=2_000)
FEW = LimitSettings(name="gw", of="token", events=10, burst_events=20)
TICKS_A_SECOND = 100


class Limited:
    """A server under limits, before a store that takes everything."""

    def __init__(self, site: Site, bank: HostCredit, host: Host, store: ScriptedStore) -> None:
        self.site = site
        self.bank = bank
        self.host = host
        self.store = store

    def reload(self, *limits: LimitSettings) -> None:
        """Configure these limits, as a worker does when the supervisor tells it of other groups."""
        self.bank.learn(self.host.shaper.slots)
        self.site.server.reload(Settings(ingest=replace(self.site.settings.ingest, limit=limits)))

    def level(self, limit: LimitSettings = BYTES, what: str = "bytes") -> int:
        return self.host.level(0, Priority.MAX, bucket_name(limit.name, what))

    async def publish(self, *keys: str, topic: str = "t", **headers: str) -> tuple[int, int]:
        """The status, and for how many seconds to wait."""
        answer = await self.site.ask("POST", f"/v1/topics/{topic}/events", records(*keys), headers)
        return answer.status, int(answer.headers.get("Retry-After", 0))


@asynccontextmanager
async def limited(folder: Path, *limits: LimitSettings, workers: int = 1, **settings: Any) -> AsyncIterator[Limited]:
    store, host = ScriptedStore(own_topic("t"), own_topic("u")), Host(shaping(), workers, limits)
    bank = host.bank()
    async with ingest_site(store, folder, bank=bank, limit=limits, **settings) as site:
        yield Limited(site, bank, host, store)


async def test_a_request_beyond_the_limit_is_told_when_to_come_back(tmp_path: Path) -> None:
    """One request may be larger than what is left; then 429 with the seconds until there is credit again."""
    async with limited(tmp_path, BYTES) as it:
        answer = await it.site.ask("POST", EVENTS, records("a"))
        body = it.site.metric("remora_ingested_events_total", topic="t")
        assert (answer.status, body) == (200, 1)
        spent = 2_000 - it.level()
        it.host.account(0, bucket_name("gw", "bytes")).charge(Priority.MAX, 5_000 - spent)
        assert it.level() == -3_000

        refused = await it.site.ask("POST", EVENTS, records("b"))
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "RateLimited", "4")
        assert "gw" in refused.json["detail"]
        it.host.tick(3 * TICKS_A_SECOND)
        assert await it.publish("b") == (429, 1)
        it.host.tick()
        assert await it.publish("b") == (200, 0)
        assert len(it.store.published) == 2
        assert it.site.metric("remora_ingest_limited_total", of="token") == 2


async def test_a_request_is_charged_its_inflated_bytes(tmp_path: Path) -> None:
    """The whole body counts, compressed or not."""
    async with limited(tmp_path, BYTES) as it:
        await it.publish("a")
        plain = 2_000 - it.level()
        compressed = gzip_of("a")
        await it.site.ask("POST", EVENTS, compressed, {"Content-Encoding": "gzip"})

        assert 2_000 - it.level() == 2 * plain
        assert len(compressed) < plain


def gzip_of(*keys: str) -> bytes:
    return gzip.compress(json.dumps(records(*keys)).encode())


async def test_events_are_counted(tmp_path: Path) -> None:
    """Thirty events pass on the burst of twenty; the next has to wait until the debt is paid back."""
    async with limited(tmp_path, FEW) as it:
        assert await it.publish(*map(str, range(30))) == (200, 0)
        assert it.level(FEW, "events") == -10
        it.host.tick(TICKS_A_SECOND // 2)
        assert await it.publish("a") == (429, 1)
        it.host.tick(TICKS_A_SECOND * 6 // 10)
        assert await it.publish("a") == (200, 0)


async def test_what_was_not_stored_costs_no_events(tmp_path: Path) -> None:
    """A repeat, and a request that the store refuses, have their events back; their bytes were received."""
    both = LimitSettings(name="gw", of="token", bytes=1_000, burst=20_000, events=10, burst_events=20)
    async with limited(tmp_path, both) as it:
        headers = {"Idempotency-Key": "k"}
        for _ in range(2):
            assert await it.publish("a", "b", **headers) == (200, 0)
        assert it.level(both, "events") == 18
        before = it.level(both)
        it.store.error = QueueFull("full")
        assert await it.publish("a", "b") == (503, 1)
        assert it.level(both, "events") == 18
        assert it.level(both) < before


@pytest.mark.parametrize("target", [EVENTS, "/v1/events"])
@pytest.mark.parametrize(
    ("announced", "sent"), [(10**18 - 1, b""), (16 << 20, b""), (1_000_000, b"{")], ids=["too large", "none", "a part"]
)
async def test_a_body_that_does_not_come_costs_nothing(
    tmp_path: Path, target: str, announced: int, sent: bytes
) -> None:
    """A head that announces more than comes, or may come, leaves the limit as it was for the others."""
    everybody = replace(BYTES, match=("*",))
    async with limited(tmp_path, everybody) as it:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "ingest.sock"))
        writer.write(f"POST {target} HTTP/1.1\r\nHost: r\r\nContent-Length: {announced}\r\n\r\n".encode() + sent)
        await writer.drain()
        writer.write_eof()
        await reader.read()
        writer.close()

        assert it.level(everybody) == 2_000
        assert await it.publish("a") == (200, 0)


async def test_a_commit_is_never_refused(tmp_path: Path) -> None:
    """A reservation is charged its rooms; its commit passes at any level and returns what it did not use, and so does
    an abort."""
    async with limited(tmp_path, BYTES) as it:
        rooms = {"events": [{"bucket": "b", "object": "a", "bytes": 4_096}]}
        reserved = await it.site.ask("POST", RESERVATIONS, rooms)
        assert (reserved.status, it.level()) == (201, -2_096)
        refused = await it.site.ask("POST", RESERVATIONS, rooms)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "3")

        committed = await it.site.ask("PUT", f"/v1/reservations/{reserved.json['reservation']}", records("a"))

        assert committed.status == 200
        stored = sum(len(each.payload) for each in it.store.committed[0][1])
        assert it.level() == 2_000 - stored
        before = it.level()
        reserved = await it.site.ask("POST", RESERVATIONS, rooms)
        aborted = await it.site.ask("DELETE", f"/v1/reservations/{reserved.json['reservation']}")
        assert (reserved.status, aborted.status, it.level()) == (201, 204, before)


async def test_a_reservation_that_is_refused_costs_nothing(tmp_path: Path) -> None:
    """Where the store has no room for what is asked, neither bytes nor events of it are charged."""
    both = LimitSettings(name="gw", of="token", bytes=1_000, burst=2_000, events=10, burst_events=20)
    async with limited(tmp_path, both) as it:
        it.store.error = QueueFull("full")
        huge = {"events": [{"bucket": "b", "object": str(number), "bytes": 16 << 20} for number in range(100)]}
        assert (await it.site.ask("POST", RESERVATIONS, huge)).status == 503
        assert (it.level(both), it.level(both, "events")) == (2_000, 20)


def test_a_reservation_that_has_expired_returns_nothing() -> None:
    """What it did not use comes back before its time is over, and not after it: others may have it by then."""
    now, host = 0.0, Host(shaping(), 1, (BYTES,))
    limits = IngestLimits(Telemetry(), host.bank(), reservation_s=60.0, clock=lambda: now)
    limits.configure((BYTES,))
    left = []
    for ends_at in (59.0, 60.0):
        now = 0.0
        receipt = limits.admit("gw", "t")
        receipt.received(500)
        limits.reserved("r", receipt)
        now = ends_at
        limits.ended("r", Cost(100, 0))
        left.append(host.level(0, Priority.MAX, bucket_name(BYTES.name, "bytes")))

    assert left == [1_900, 1_400]


async def test_reads_are_never_limited(tmp_path: Path) -> None:
    """Looks at topics and at the health pass at any level."""
    async with limited(tmp_path, BYTES) as it:
        it.host.account(0, bucket_name("gw", "bytes")).charge(Priority.MAX, 10_000)

        for path in ("/v1/topics", "/v1/topics/t", "/v1/health", "/v1/openapi.json"):
            assert (await it.site.ask("GET", path)).status == 200


async def test_a_request_is_under_the_limits_of_its_token_and_of_its_topic(tmp_path: Path) -> None:
    """The first limit of each kind that fits counts; other tokens and other topics are not charged."""
    file, token, other = tmp_path / "tokens", tokens.new_token(), tokens.new_token()
    file.write_text(f"{tokens.line_of('gw-1', token, '*')}\n{tokens.line_of('other', other, '*')}\n")
    file.chmod(0o600)
    by_token = LimitSettings(name="gw", of="token", match=("gw-*",), events=10, burst_events=20)
    by_topic = LimitSettings(name="small", of="topic", match=("t",), events=2, burst_events=4)
    async with limited(tmp_path, by_token, by_topic, tokens=str(file)) as it:
        mine, others = ({"Authorization": f"Bearer {each}"} for each in (token, other))

        assert await it.publish(*map(str, range(6)), **mine) == (200, 0)
        assert (it.level(by_token, "events"), it.level(by_topic, "events")) == (14, -2)
        assert await it.publish("a", **mine) == (429, 2)
        assert await it.publish("a", **others) == (429, 2)
        assert await it.publish("a", topic="u", **mine) == (200, 0)
        assert await it.publish("a", topic="u", **others) == (200, 0)
        assert (it.level(by_token, "events"), it.level(by_topic, "events")) == (13, -2)


async def test_other_limits_count_at_once(tmp_path: Path) -> None:
    """A limit that is configured while the server runs holds for the next request, and one that is taken away does
    not."""
    async with limited(tmp_path) as it:
        assert await it.publish("a") == (200, 0)
        it.host.shaper.configure(shaping(), [FEW])
        it.reload(FEW)
        it.host.account(0, bucket_name("gw", "events")).charge(Priority.MAX, 100)
        assert await it.publish("a") == (429, 9)
        it.host.shaper.configure(shaping(), [])
        it.reload()
        assert await it.publish("a") == (200, 0)


@pytest.mark.parametrize("workers", [1, 4])
async def test_a_worker_has_its_part_of_a_burst(tmp_path: Path, workers: int) -> None:
    """The burst is divided among the workers, of which any has the whole rate while the others take nothing."""
    limit = LimitSettings(name="gw", of="token", events=100, burst_events=400)
    async with limited(tmp_path, limit, workers=workers) as it:
        assert it.level(limit, "events") == 400 // workers
        it.host.account(0, bucket_name("gw", "events")).charge(Priority.MAX, 1_000)
        before = it.level(limit, "events")
        it.host.tick(5 * TICKS_A_SECOND)
        assert 480 <= it.level(limit, "events") - before <= 500
