"""The admin server: what it answers, what it refuses, and that no client can hold it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from remora.config import AdminSettings
from remora.metrics import Telemetry
from remora.model.errors import ConfigError
from remora.servers import admin
from remora.servers.admin import Health, Sources, serve_admin

GOOD = Health(True)
ANY_PORT = AdminSettings(listen="127.0.0.1:0")


@dataclass
class Daemon:
    """Answers as scripted."""

    live: Health = GOOD
    ready: Health = GOOD
    status: Mapping[str, object] = field(default_factory=dict)

    @property
    def sources(self) -> Sources:
        return Sources(lambda: self.live, lambda: self.ready, lambda: self.status)


async def get(address: str, path: str, method: str = "GET", accept: str = "*/*") -> tuple[int, str, str]:
    """Status, content type and body of one request."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{address}{path}", headers={"Accept": accept}) as reply,
    ):
        return reply.status, reply.headers.get("Content-Type", ""), await reply.text()


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Wait for the connection's end, which came without any answer."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_metrics_are_served_as_text_and_as_openmetrics() -> None:
    """The form follows the Accept header, and the readiness is part of it."""
    telemetry = Telemetry()
    telemetry.listed("t", 3, 300)
    async with serve_admin(ANY_PORT, telemetry, Daemon().sources) as address:
        plain = await get(address, "/metrics")
        openmetrics = await get(address, "/metrics", accept="application/openmetrics-text; version=1.0.0")

    assert plain[0] == openmetrics[0] == 200
    assert plain[1].startswith("text/plain")
    assert 'remora_listed_entries_total{topic="t"} 3.0' in plain[2]
    assert "remora_ready 1.0" in plain[2]
    assert openmetrics[1].startswith("application/openmetrics-text")
    assert openmetrics[2].endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/-/live", "/-/ready"])
async def test_health_is_a_status_code_with_reasons(path: str) -> None:
    """A yes is 200, a no is 503, and both say why."""
    daemon = Daemon()
    async with serve_admin(ANY_PORT, Telemetry(), daemon.sources) as address:
        good = await get(address, path)
        daemon.live = daemon.ready = Health(False, ("draining", "the store does not answer"))
        bad = await get(address, path)

    assert (good[0], json.loads(good[2])) == (200, {"ok": True, "reasons": []})
    assert (bad[0], json.loads(bad[2])) == (
        503,
        {"ok": False, "reasons": ["draining", "the store does not answer"]},
    )


async def test_not_ready_does_not_mean_not_live() -> None:
    """A daemon whose broker is away is not restarted for that."""
    daemon = Daemon(ready=Health(False, ("no progress",)))
    async with serve_admin(ANY_PORT, Telemetry(), daemon.sources) as address:
        assert (await get(address, "/-/live"))[0] == 200
        assert "remora_ready 0.0" in (await get(address, "/metrics"))[2]


async def test_status_is_json_of_whatever_the_daemon_says() -> None:
    """Frozen values inside the status are written as objects."""
    daemon = Daemon(status={"version": "1", "health": Health(True, ("a",))})
    async with serve_admin(ANY_PORT, Telemetry(), daemon.sources) as address:
        code, content_type, body = await get(address, "/-/status")

    assert (code, content_type) == (200, "application/json")
    assert json.loads(body) == {"version": "1", "health": {"ok": True, "reasons": ["a"]}}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_reading_is_possible(method: str) -> None:
    """Nothing can be changed through this server."""
    async with serve_admin(ANY_PORT, Telemetry(), Daemon().sources) as address:
        for path in ("/metrics", "/-/live", "/-/ready", "/-/status"):
            assert (await get(address, path, method))[0] == 405


async def test_head_answers_without_a_body_and_other_paths_are_unknown() -> None:
    """HEAD works wherever GET does, and there is nothing else to find."""
    async with serve_admin(ANY_PORT, Telemetry(), Daemon().sources) as address:
        assert await get(address, "/-/live", "HEAD") == (200, "application/json", "")
        assert (await get(address, "/"))[0] == 404


async def test_a_unix_socket_is_served_and_taken_away(tmp_path: Path) -> None:
    """The socket replaces a stale one, answers, and is gone afterwards."""
    path = tmp_path / "admin.sock"
    settings = AdminSettings(listen=f"unix:{path}")
    for _ in range(2):
        async with serve_admin(settings, Telemetry(), Daemon().sources) as address:
            connector = aiohttp.UnixConnector(str(path))
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.get("http://localhost/-/live") as reply,
            ):
                assert reply.status == 200

        assert address == f"unix:{path}"
        assert not path.exists()


async def test_an_address_that_is_taken_is_refused() -> None:
    """A second server on the same address is refused with the option's name, and the first goes on."""
    async with serve_admin(ANY_PORT, Telemetry(), Daemon().sources) as address:
        with pytest.raises(ConfigError, match=r"admin\.listen: cannot listen on .* in use"):
            async with serve_admin(AdminSettings(listen=address), Telemetry(), Daemon().sources):
                pass
        assert (await get(address, "/-/live"))[0] == 200


async def test_the_socket_of_another_daemon_is_left_alone(tmp_path: Path) -> None:
    """A second server on a Unix socket in use is refused and takes nothing away; so is one without a folder."""
    path = tmp_path / "admin.sock"
    for wrong, why in ((path, "another process listens there"), (tmp_path / "none" / "admin.sock", "No such file")):
        async with serve_admin(AdminSettings(listen=f"unix:{path}"), Telemetry(), Daemon().sources):
            with pytest.raises(ConfigError, match=rf"admin\.listen: cannot listen on unix:{wrong}: {why}"):
                async with serve_admin(AdminSettings(listen=f"unix:{wrong}"), Telemetry(), Daemon().sources):
                    pass
            assert path.is_socket()


async def test_a_silent_connection_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never asks anything loses its connection, and one that asked gets one answer."""
    monkeypatch.setattr(admin, "CONNECTION_S", 0.05)
    async with serve_admin(ANY_PORT, Telemetry(), Daemon().sources) as address:
        host, port = address.split(":")
        silent, silent_writer = await asyncio.open_connection(host, int(port))
        asking, asking_writer = await asyncio.open_connection(host, int(port))
        asking_writer.write(b"GET /-/live HTTP/1.1\r\nHost: x\r\n\r\nGET /-/live HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = await asking.read()
        for writer in (silent_writer, asking_writer):
            writer.close()

        assert await is_cut(silent)

    assert answers.count(b"HTTP/1.1 200 OK") == 1


async def test_connections_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients hold a connection, the next one is closed at once, and a freed place is used again."""
    monkeypatch.setattr(admin, "MOST_CONNECTIONS", 3)
    async with serve_admin(ANY_PORT, Telemetry(), Daemon().sources) as address:
        host, port = address.split(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        surplus, surplus_writer = await asyncio.open_connection(host, int(port))
        refused = await surplus.read()
        surplus_writer.close()
        held[0][1].write(b"GET /-/live HTTP/1.1\r\nHost: x\r\n\r\n")
        answered = await held[0][0].read()
        for _, writer in held:
            writer.close()

        assert refused == b""
        assert answered.startswith(b"HTTP/1.1 200 OK")
        assert (await get(address, "/-/live"))[0] == 200
