"""The sequencer over TLS: clients show a certificate, and are served as plain ones are."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.certificates import certificate
from devkit.waits import PATIENT_S
from remora.client import SequencerClient
from remora.codec import speedups
from remora.codec.sequencer import INIT_LOG, Core, packed_reply, reply
from remora.config import SequencerSettings
from remora.model.errors import ConfigError
from remora.servers.sequencer import Closed, Rounds, SecureConnections, tls_context
from remora.servers.sequencer import secure as module
from support.full_names import known_by_its_full_name
from support.sequencer import FAR, LOG, OTHER, listening

PATIENCE_S = 5 * PATIENT_S


@dataclass(frozen=True)
class Files:
    """A server's settings, and what a client with a certificate and one without know."""

    settings: SequencerSettings
    known: ssl.SSLContext
    nameless: ssl.SSLContext


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    authority = certificate(folder / "authority", "authority")
    server = certificate(folder / "server", "localhost", authority)
    client = certificate(folder / "client", "client", authority)
    known, nameless = (ssl.create_default_context(cafile=str(authority.certificate)) for _ in range(2))
    known.load_cert_chain(client.certificate, client.key)
    settings = SequencerSettings(
        tls_certificate=str(server.certificate), tls_key=str(server.key), tls_client_ca=str(authority.certificate)
    )
    return Files(settings, known, nameless)


def a_core(bound: int = FAR) -> Core:
    core = speedups.SequencerCore(lambda _log, _result: None)
    core.serve(LOG, 1, 0, bound)
    core.serve(OTHER, 1, 0, FAR)
    return core


def request() -> bytes:
    body = b"\x08\x01\x12%c%b\x1a%c%b\x20\x01" % (len(LOG.pool), LOG.pool, len(LOG.name), LOG.name)
    return struct.pack(">I", len(body)) + body


@asynccontextmanager
async def serving(files: Files, core: Core, **options: Any) -> AsyncIterator[tuple[Rounds, int]]:
    """Rounds on a port of loopback, with TLS; and the port."""
    context = tls_context(files.settings)
    assert context is not None
    with listening(None) as listener:
        async with asyncio.timeout(PATIENCE_S):
            async with Rounds(core, [listener], secure=SecureConnections(core, context, **options)) as rounds:
                yield rounds, listener.getsockname()[1]


async def until(condition: Any) -> None:
    """Let the loop go round until something is so; `serving` bounds the time."""
    while not condition():  # noqa: ASYNC110  # the rounds tell nobody
        await asyncio.sleep(0)


async def test_a_client_with_a_certificate_is_served(files: Files) -> None:
    """Remora's own client gets its positions over TLS, thousands of them, each once and in order."""
    async with serving(files, a_core()) as (rounds, port):
        async with SequencerClient([f"127.0.0.1:{port}"], tls=files.known) as client:
            tokens = await asyncio.gather(*(client.next(LOG) for _ in range(5000)))
            assert rounds.connections == 1

        assert [token.position for token in tokens] == list(range(1, 5001))
        await until(lambda: not rounds.connections)


def test_a_server_by_its_full_name(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate of a host is that of its full name, too, which ends in a dot.

    On asyncio's loop: uvloop's asks the host's resolver by itself.
    """
    known_by_its_full_name(monkeypatch)

    async def ask() -> int:
        async with serving(files, a_core()) as (rounds, port):
            async with SequencerClient([f"localhost.:{port}"], tls=files.known) as client:
                found = await client.next(LOG)
            await until(lambda: not rounds.connections)
        return found.position

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        assert runner.run(ask()) == 1


async def test_a_client_without_a_certificate_is_refused(files: Files) -> None:
    """Neither TLS without a certificate nor plain requests get an answer, and nothing is handed out."""
    core = a_core()
    async with serving(files, core) as (rounds, port):
        with suppress(OSError):  # when the refusal arrives is for TLS to say
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.nameless)
            writer.write(request())
            assert await reader.read() == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        assert not (await reader.read()).startswith(bytes(3))  # an alert of TLS, or nothing
        writer.close()

        await until(lambda: rounds.figures.closed[Closed.HANDSHAKE] == 2)
        assert core.counters[LOG].position == 0
        assert not rounds.connections


async def test_networks_that_may_be_plain_are(files: Files) -> None:
    """ZLog's clients know no TLS: where their network is allowed the same port answers them plainly."""
    async with serving(files, a_core(), may_be_plain=lambda _: True) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())

        assert await reader.readexactly(6) == reply(1)
        writer.close()


async def test_replies_of_many_positions_over_tls(files: Files) -> None:
    """Thousands of requests for a hundred positions each get all their replies, though they are not read at first."""
    async with serving(files, a_core()) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.known)
        frame = request()
        transport: Any = writer.transport
        transport.pause_reading()
        writer.write((struct.pack(">I", len(frame) - 2) + frame[4:] + b"\x28\x64") * 3000)
        for _ in range(100):
            await asyncio.sleep(0)
        transport.resume_reading()

        wanted = b"".join(packed_reply(first, 100) for first in range(1, 300_001, 100))
        assert await reader.readexactly(len(wanted)) == wanted
        writer.close()


async def test_requests_in_pieces_and_bad_ones_over_tls(files: Files) -> None:
    """A frame split at every byte is answered, and what stands before a malformed one, which closes the connection."""
    async with serving(files, a_core()) as (rounds, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.known)
        for byte in request():
            writer.write(bytes([byte]))
            await writer.drain()
        writer.write(request() + bytes(4) + request())

        assert await reader.read() == reply(1) + reply(2)
        await until(lambda: rounds.figures.closed[Closed.MALFORMED] == 1)
        writer.close()


async def test_who_meets_the_bound_waits_over_tls_too(files: Files) -> None:
    """It goes on when the bound is raised or the log is not served any more; one that goes meanwhile is forgotten."""
    core = a_core(bound=1)
    async with serving(files, core) as (rounds, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.known)
        writer.write(request() * 4)
        assert await reader.readexactly(6) == reply(1)
        await until(lambda: list(rounds.awaited) == [LOG])

        core.raise_bound(LOG, 1, 2)
        rounds.resume(LOG)
        assert await reader.readexactly(6) == reply(2)
        core.forget(LOG)
        rounds.resume(LOG)
        assert await reader.readexactly(2 * len(INIT_LOG)) == INIT_LOG * 2

        assert not rounds.awaited
        writer.close()


async def test_a_part_of_a_frame_closes_its_connection_over_tls_too(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time a frame that does not get whole closes the connection; an idle one stays."""
    monkeypatch.setattr(module, "PARTIAL_FRAME_S", 0.0)
    monkeypatch.setattr("remora.servers.sequencer.rounds.SWEEP_S", 0.01)
    async with serving(files, a_core()) as (rounds, port):
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.known)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.known)
        writer.write(request()[:9])

        assert await reader.read() == b""
        idle_writer.write(request())
        assert await idle_reader.readexactly(6) == reply(1)
        assert rounds.figures.closed[Closed.PARTIAL] == 1
        for each in (writer, idle_writer):
            each.close()


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_the_three_options_of_tls_belong_together(missing: str) -> None:
    """One that is missing is named."""
    options: dict[str, Any] = {name: "x" for name in ("tls_certificate", "tls_key", "tls_client_ca") if name != missing}

    with pytest.raises(ConfigError, match=f"sequencer.{missing}: belongs together"):
        SequencerSettings(**options)


def test_an_address_that_others_reach_needs_certificates_or_networks() -> None:
    """It is refused without either, and taken with one of them."""
    reached = "0.0.0.0:5678"

    with pytest.raises(ConfigError, match=r"sequencer\.listen: .* can be reached from other hosts"):
        SequencerSettings(listen=reached)
    SequencerSettings(listen=reached, allow=("10.0.0.0/8",))
    options: dict[str, Any] = dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca"), "x")
    SequencerSettings(listen=reached, **options)


def test_files_that_cannot_be_used_are_refused_by_name(files: Files, tmp_path: Path) -> None:
    """A missing authority and a key that does not fit its certificate are told by their option."""
    with pytest.raises(ConfigError, match="tls_client_ca"):
        tls_context(SequencerSettings(tls_certificate="x", tls_key="x", tls_client_ca=str(tmp_path / "none")))
    settings = files.settings
    with pytest.raises(ConfigError, match="tls_certificate"):
        tls_context(
            SequencerSettings(
                tls_certificate=settings.tls_certificate,
                tls_key=settings.tls_client_ca,
                tls_client_ca=settings.tls_client_ca,
            )
        )
