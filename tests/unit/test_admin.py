"""The admin server: what it answers, what it refuses, and that no client can hold it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import Metric

from devkit.waits import PATIENT_S
from remora.cli.admin_client import fetch_shaping
from remora.config import AdminSettings
from remora.metrics import Telemetry
from remora.model.errors import ConfigError
from remora.model.health import Health
from remora.policy.status import readiness
from remora.policy.status.readiness import HostReadiness
from remora.process.sockets import listening_sockets
from remora.servers import admin, routes
from remora.servers.admin import Sources, serve_admin

GOOD = Health(True)
ANY_PORT = "127.0.0.1:0"


@dataclass
class Daemon:
    """Answers as scripted."""

    healthy: Health = GOOD
    useful: Health = GOOD
    said: Mapping[str, object] = field(default_factory=dict)
    telemetry: Telemetry = field(default_factory=Telemetry)
    asked: list[Callable[[HostReadiness], Health]] = field(default_factory=list)

    async def ready(self, question: Callable[[HostReadiness], Health]) -> Health:
        self.asked.append(question)
        return self.useful

    async def status(self) -> Mapping[str, object]:
        return self.said

    async def metrics(self) -> list[Metric]:
        return list(self.telemetry.registry.collect())

    async def shaping(self) -> Mapping[str, object]:
        return {"scopes": []}

    @property
    def sources(self) -> Sources:
        return Sources(lambda: self.healthy, self.ready, self.status, self.metrics, self.shaping)


@asynccontextmanager
async def served(daemon: Daemon, listen: str = ANY_PORT) -> AsyncIterator[str]:
    """The admin server on an address; gives the one that it has."""
    with listening_sockets("admin.listen", listen, 0o600) as sockets:
        async with serve_admin(sockets, daemon.sources) as address:
            yield address


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
    """The form follows the Accept header."""
    daemon = Daemon()
    daemon.telemetry.listed("t", 3, 300)
    async with served(daemon) as address:
        plain = await get(address, "/metrics")
        openmetrics = await get(address, "/metrics", accept="application/openmetrics-text; version=1.0.0")

    assert plain[0] == openmetrics[0] == 200
    assert plain[1].startswith("text/plain")
    assert 'remora_listed_entries_total{topic="t"} 3.0' in plain[2]
    assert openmetrics[1].startswith("application/openmetrics-text")
    assert openmetrics[2].endswith("# EOF\n")


@pytest.mark.parametrize("accept", [
    "application/openmetrics-text; version=abc", "text/plain;version=abc", "text/plain; version=", "nonsense", ";", "",
    'application/openmetrics-text; version="1.0.0"',
])  # fmt: skip
async def test_metrics_are_served_whatever_is_accepted(accept: str) -> None:
    """A version that is none gets plain text; one in quotes, as HTTP has them, is that version."""
    async with served(Daemon()) as address:
        status, content_type, _ = await get(address, "/metrics", accept=accept)

    assert status == 200
    assert content_type.startswith("application/openmetrics-text" if "1.0.0" in accept else "text/plain")


async def test_a_long_status_is_compressed_for_those_who_take_it_so() -> None:
    """The answer is the same, gzip-encoded or not; a short one is never encoded."""
    daemon = Daemon(said={"text": "t" * admin.PLAIN_BYTES})
    async with served(daemon) as address, aiohttp.ClientSession(auto_decompress=False) as session:

        async def asked(encoding: str) -> tuple[str | None, bytes]:
            headers = {"Accept-Encoding": encoding, "Connection": "close"}
            async with session.get(f"http://{address}/-/status", headers=headers) as answer:
                return answer.headers.get("Content-Encoding"), await answer.read()

        plain, encoded = await asked("identity"), await asked("br, gzip")
        encodings = ["GZIP", "gzip;q=0.5, br", "br;q=0, gzip ; q=1"]
        encodings += ["gzip;q=0", "br, gzip; q=0.000", "notgzip", ""]
        others = [(await asked(each))[0] for each in encodings]
        daemon.said = {"text": "short"}
        short = await asked("gzip")

    assert (plain[0], encoded[0], short) == (None, "gzip", (None, b'{"text":"short"}\n'))
    assert gzip.decompress(encoded[1]) == plain[1]
    assert others == ["gzip"] * 3 + [None] * 4


async def test_only_a_status_that_the_page_knows_has_a_page() -> None:
    """A process without queues serves no page for browsers."""
    async with served(Daemon()) as address:
        assert (await get(address, "/"))[0] == 404
        assert (await get(address, "/-/page.js"))[0] == 404


@pytest.mark.parametrize("path", ["/-/live", "/-/ready", "/-/ready/ingest", "/-/ready/delivery"])
async def test_health_is_a_status_code_with_reasons(path: str) -> None:
    """A yes is 200, a no is 503, and both say why."""
    daemon = Daemon()
    async with served(daemon) as address:
        good = await get(address, path)
        daemon.healthy = daemon.useful = Health(False, ("draining", "the store does not answer"))
        bad = await get(address, path)

    assert (good[0], json.loads(good[2])) == (200, {"ok": True, "reasons": []})
    assert (bad[0], json.loads(bad[2])) == (
        503,
        {"ok": False, "reasons": ["draining", "the store does not answer"]},
    )


async def test_each_path_asks_its_own_question() -> None:
    """Whether the host is ready, takes events in and delivers are three questions with a path each."""
    daemon = Daemon()
    async with served(daemon) as address:
        for path in ("/-/ready", "/-/ready/ingest", "/-/ready/delivery"):
            await get(address, path)

    assert daemon.asked == [readiness.ready, readiness.ready_to_ingest, readiness.ready_to_deliver]


async def test_not_ready_does_not_mean_not_live() -> None:
    """A daemon whose broker is away is not restarted for that."""
    daemon = Daemon(useful=Health(False, ("no progress",)))
    async with served(daemon) as address:
        assert (await get(address, "/-/live"))[0] == 200
        assert (await get(address, "/-/ready"))[0] == 503


async def test_status_is_json_of_whatever_the_daemon_says() -> None:
    """Frozen values inside the status are written as objects."""
    daemon = Daemon(said={"version": "1", "health": Health(True, ("a",))})
    async with served(daemon) as address:
        code, content_type, body = await get(address, "/-/status")

    assert (code, content_type) == (200, "application/json")
    assert json.loads(body) == {"version": "1", "health": {"ok": True, "reasons": ["a"]}}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_reading_is_possible(method: str) -> None:
    """What shows something changes nothing."""
    async with served(Daemon()) as address:
        for path in ("/metrics", "/-/live", "/-/ready", "/-/status", "/-/shaping"):
            assert (await get(address, path, method))[0] == 405


async def test_shaping_is_shown_to_all() -> None:
    """How traffic is shaped is read like the status, over the address of the settings."""
    async with served(Daemon()) as address:
        assert await fetch_shaping(AdminSettings(listen=address)) == {"scopes": []}


async def test_a_server_that_failed_is_begun_again_on_its_sockets() -> None:
    """Its end leaves the sockets open: the next one answers on them, and those who came meanwhile wait for it."""
    daemon = Daemon()
    with listening_sockets("admin.listen", ANY_PORT, 0o600) as sockets:
        with pytest.raises(RuntimeError, match="a defect"):
            async with serve_admin(sockets, daemon.sources) as address:
                raise RuntimeError("a defect")
        meanwhile = asyncio.create_task(get(address, "/-/live"))
        async with serve_admin(sockets, daemon.sources):
            assert (await meanwhile)[0] == (await get(address, "/-/live"))[0] == 200


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (b"HTTP/1.1\r\n", 400),
        (b"HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400),
        (b"HTTP/1.1\r\nHost: a/b\r\n", 400),
        (b"HTTP/1.1\r\nHost: \xff\r\n", 400),
        (b"HTTP/1.1\r\nHost: a:9750\r\n", 200),
        (b"HTTP/1.1\r\nHost:\r\n", 200),
        (b"HTTP/1.0\r\n", 200),
    ],
)
async def test_a_request_names_its_host_once(hosts: bytes, status: int) -> None:
    """One of HTTP/1.1 without a Host is refused, and any with two or with what can be none."""
    async with served(Daemon()) as address:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"GET /-/live " + hosts + b"\r\n")
        answered = await reader.read()
        writer.close()

    assert answered.split()[1] == b"%d" % status


async def test_head_answers_without_a_body_and_other_paths_are_unknown() -> None:
    """HEAD works wherever GET does, and there is nothing else to find."""
    async with served(Daemon()) as address:
        assert await get(address, "/-/live", "HEAD") == (200, "application/json", "")
        assert (await get(address, "/"))[0] == 404


async def test_a_unix_socket_is_served_and_taken_away(tmp_path: Path) -> None:
    """The socket replaces a stale one, answers, and is gone afterwards."""
    path = tmp_path / "admin.sock"
    for _ in range(2):
        async with served(Daemon(), f"unix:{path}") as address:
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
    async with served(Daemon()) as address:
        with pytest.raises(ConfigError, match=r"admin\.listen: cannot listen on .* in use"):
            async with served(Daemon(), address):
                pass
        assert (await get(address, "/-/live"))[0] == 200


async def test_the_socket_of_another_daemon_is_left_alone(tmp_path: Path) -> None:
    """A second server on a Unix socket in use is refused and takes nothing away; so is one without a folder."""
    path = tmp_path / "admin.sock"
    for wrong, why in ((path, "another process listens there"), (tmp_path / "none" / "admin.sock", "No such file")):
        async with served(Daemon(), f"unix:{path}"):
            with pytest.raises(ConfigError, match=rf"admin\.listen: cannot listen on unix:{wrong}: {why}"):
                async with served(Daemon(), f"unix:{wrong}"):
                    pass
            assert path.is_socket()


async def test_a_silent_connection_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never asks anything loses its connection, and one that asked gets one answer."""
    async with asyncio.timeout(PATIENT_S), served(Daemon()) as address:
        host, port = address.split(":")
        asking, asking_writer = await asyncio.open_connection(host, int(port))
        asking_writer.write(b"GET /-/live HTTP/1.1\r\nHost: x\r\n\r\nGET /-/live HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = await asking.read()
        monkeypatch.setattr(routes, "CONNECTION_S", 0.05)  # a client that asks has the usual time for it
        silent, silent_writer = await asyncio.open_connection(host, int(port))

        assert await is_cut(silent)
        assert answers.count(b"HTTP/1.1 200 OK") == 1
        for writer in (silent_writer, asking_writer):
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /-/live HTTP/1.1\r\nHo", b"GET /-/status HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_clients_that_are_waited_for_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """One that asks in time is answered however many do not, or do not read: the oldest of those loses its connection,
    and the others keep theirs."""
    monkeypatch.setattr(routes, "MOST_CONNECTIONS", 3)
    daemon = Daemon(said={"text": "t" * (32 << 20)})  # more than the sockets keep for a client
    async with asyncio.timeout(PATIENT_S), served(daemon) as address:
        host, port = address.split(":")
        held = [await asyncio.open_connection(host, int(port), limit=1) for _ in range(3)]
        for _, writer in held:
            writer.write(sent)
        if b"status" in sent:
            for reader, _ in held:
                await reader.readexactly(1)

        assert (await get(address, "/-/live"))[0] == 200

        reader, writer = held[0]
        with suppress(ConnectionResetError):
            assert not (await reader.read()).endswith(b"}\n")
        if b"status" not in sent:
            held[1][1].write(b"GET /-/live HTTP/1.1\r\nHost: x\r\n\r\n"[len(sent) :])
            assert (await held[1][0].read()).startswith(b"HTTP/1.1 200 OK")
        for _, writer in held:
            writer.close()


async def test_connections_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """While as many are answered as there may be the next one is closed at once, and a freed place is used again."""
    monkeypatch.setattr(routes, "MOST_CONNECTIONS", 3)
    go_on, asked = asyncio.Event(), asyncio.Queue[None]()

    async def waits() -> Mapping[str, object]:
        asked.put_nowait(None)
        await go_on.wait()
        return {}

    with listening_sockets("admin.listen", ANY_PORT, 0o600) as sockets:
        async with (
            asyncio.timeout(PATIENT_S),
            serve_admin(sockets, replace(Daemon().sources, status=waits)) as address,
            asyncio.TaskGroup() as answers,
        ):
            answered = [answers.create_task(get(address, "/-/status")) for _ in range(3)]
            for _ in range(3):
                await asked.get()
            surplus, surplus_writer = await asyncio.open_connection(*address.split(":"))
            surplus_writer.write(b"GET /-/live HTTP/1.1\r\nHost: x\r\n\r\n")

            assert await is_cut(surplus)

            surplus_writer.close()
            go_on.set()
            assert [(await each)[0] for each in answered] == [200] * 3
            assert (await get(address, "/-/live"))[0] == 200


async def test_a_defect_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An answer that fails is a 500 that says nothing, the log has its traceback, and the server goes on."""

    async def fails() -> Mapping[str, object]:
        raise ZeroDivisionError("a secret")

    daemon = Daemon()
    with listening_sockets("admin.listen", ANY_PORT, 0o600) as sockets:
        sources = replace(daemon.sources, status=fails)
        async with serve_admin(sockets, sources) as address:
            code, _, body = await get(address, "/-/status")
            assert (await get(address, "/-/live"))[0] == 200

    assert (code, body) == (500, "500: the daemon's log has the reason\n")
    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [ZeroDivisionError]


async def test_a_wrong_method_says_which_are_right() -> None:
    """405 names the methods of the path."""
    async with (
        served(Daemon()) as address,
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}/-/live") as reply,
    ):
        assert (reply.status, reply.headers["Allow"]) == (405, "GET,HEAD")


async def test_nobody_keeps_an_answer() -> None:
    """Each says that it is not to be stored, and that its connection ends."""
    async with served(Daemon()) as address, aiohttp.ClientSession() as session:
        for path in ("/-/live", "/-/status", "/-/nothing"):
            async with session.get(f"http://{address}{path}") as reply:
                assert (reply.headers["Cache-Control"], reply.headers["Connection"]) == ("no-store", "close")
