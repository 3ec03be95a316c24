"""Where the ingest server listens: a Unix socket with its mode and without a rival, TCP, and TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import time
from pathlib import Path

import pytest

from devkit.clusters.certificates import Certificate, certificate
from remora.config import IngestSettings
from remora.metrics import Telemetry
from remora.model.errors import ConfigError
from remora.servers import tokens
from support.ingest import ScriptedStore, ingest_site, listening_ingest, own_topic, records

EVENTS = "/v1/topics/t/events"


@pytest.fixture
def store() -> ScriptedStore:
    """A store with one topic."""
    return ScriptedStore(own_topic("t"))


@pytest.mark.parametrize("mode", ["0660", "0600", "666"])
async def test_the_socket_has_its_mode_and_is_taken_away(store: ScriptedStore, tmp_path: Path, mode: str) -> None:
    """Whatever the process's umask, which stays as it was."""
    path = tmp_path / "ingest.sock"
    before = os.umask(0o022)
    try:
        async with ingest_site(store, tmp_path, socket_mode=mode) as site:
            assert stat.S_IMODE(path.stat().st_mode) == int(mode, 8)
            assert (await site.ask("POST", EVENTS, records("a"))).status == 200
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert not path.exists()


async def test_a_socket_that_nobody_listens_on_is_replaced(store: ScriptedStore, tmp_path: Path) -> None:
    """It was left by a daemon that was killed."""
    path = tmp_path / "ingest.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async with ingest_site(store, tmp_path) as site:
        assert (await site.ask("POST", EVENTS, records("a"))).status == 200


async def test_a_second_server_on_a_path_is_refused(store: ScriptedStore, tmp_path: Path) -> None:
    """The first one goes on as if nothing had happened, and its socket stays when the second one has failed."""
    path = tmp_path / "ingest.sock"
    async with ingest_site(store, tmp_path) as site:
        with pytest.raises(ConfigError, match=r"^ingest.listen: cannot listen on .*: another process listens there"):
            async with listening_ingest(IngestSettings(listen=f"unix:{path}"), store, Telemetry()):
                pass
        assert (await site.ask("POST", EVENTS, records("a"))).status == 200


async def test_what_is_no_socket_is_not_replaced(store: ScriptedStore, tmp_path: Path) -> None:
    """A path that was mistyped costs nobody a file."""
    path = tmp_path / "ingest.sock"
    path.write_text("precious")

    with pytest.raises(ConfigError, match="something that is not a socket"):
        async with listening_ingest(IngestSettings(listen=f"unix:{path}"), store, Telemetry()):
            pass
    assert path.read_text() == "precious"


async def test_a_missing_folder_is_a_clear_error(store: ScriptedStore, tmp_path: Path) -> None:
    """It is not made: its rights are somebody's decision."""
    listen = f"unix:{tmp_path}/missing/ingest.sock"

    with pytest.raises(ConfigError, match=r"missing/ingest.sock: No such file or directory"):
        async with listening_ingest(IngestSettings(listen=listen), store, Telemetry()):
            pass


async def test_the_socket_of_a_successor_stays(store: ScriptedStore, tmp_path: Path) -> None:
    """A server that ends late does not take away what another one has put there."""
    path = tmp_path / "ingest.sock"
    async with ingest_site(store, tmp_path):
        path.unlink()
        async with ingest_site(store, tmp_path) as second:
            assert (await second.ask("POST", EVENTS, records("a"))).status == 200
        path.touch()
    assert path.is_file()


async def test_tcp_is_served_and_a_taken_port_is_refused(store: ScriptedStore, tmp_path: Path) -> None:
    """The address that clients use is told, with the port that was free."""
    async with ingest_site(store, tmp_path, listen="127.0.0.1:0") as site:
        assert site.server.address.startswith("http://127.0.0.1:")
        assert (await site.ask("POST", EVENTS, records("a"))).status == 200
        taken = site.server.address.removeprefix("http://")
        with pytest.raises(ConfigError, match=f"^ingest.listen: cannot listen on {taken}: "):
            async with listening_ingest(IngestSettings(listen=taken), store, Telemetry()):
                pass


# ------------------------------------------------------------------------------------------------- TLS


@pytest.fixture
def made(tmp_path: Path) -> Certificate:
    """A certificate for localhost."""
    return certificate(tmp_path / "tls", "localhost")


def tls(made: Certificate) -> dict[str, str]:
    """The settings for it."""
    return {"listen": "127.0.0.1:0", "tls_certificate": str(made.certificate), "tls_key": str(made.key)}


async def handshake(address: str, context: ssl.SSLContext) -> bytes:
    """The certificate that the server shows to a client."""
    host, port = address.removeprefix("https://").rsplit(":", 1)
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(shown, bytes)
    return shown


async def test_tls_is_served_from_version_1_2_on(store: ScriptedStore, tmp_path: Path, made: Certificate) -> None:
    """A client that knows the certificate is served; one that speaks an older version only, or no TLS, is not."""
    async with ingest_site(store, tmp_path, **tls(made)) as site:
        assert site.server.address.startswith("https://127.0.0.1:")
        assert (await site.ask("POST", EVENTS, records("a"))).status == 200
        trusting = ssl.create_default_context(cafile=str(made.certificate))
        assert await handshake(site.server.address, trusting)

        trusting.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        trusting.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await handshake(site.server.address, trusting)
        old = ssl.create_default_context(cafile=str(made.certificate))
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await handshake(site.server.address, old)


async def test_a_renewed_certificate_is_shown_from_then_on(
    store: ScriptedStore, tmp_path: Path, made: Certificate
) -> None:
    """Read again, a good pair replaces the old one; a certificate with another's key does not."""
    async with ingest_site(store, tmp_path, **tls(made)) as site:
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        first = await handshake(site.server.address, anybody)

        other = certificate(tmp_path / "other", "localhost")
        made.certificate.write_bytes(other.certificate.read_bytes())
        site.server.reload(site.settings)
        assert await handshake(site.server.address, anybody) == first
        made.key.write_bytes(other.key.read_bytes())
        site.server.reload(site.settings)
        assert await handshake(site.server.address, anybody) != first


async def test_files_that_do_not_fit_are_refused(store: ScriptedStore, tmp_path: Path, made: Certificate) -> None:
    """At the start, with the option's name: a missing certificate, another's key, and a text that is neither."""
    other = certificate(tmp_path / "other", "localhost")
    noise = tmp_path / "noise"
    noise.write_text("noise")
    for files in ((tmp_path / "missing", made.key), (made.certificate, other.key), (noise, noise)):
        given = tls(Certificate(*files))
        with pytest.raises(ConfigError, match=r"^ingest.tls_certificate: "):
            async with listening_ingest(IngestSettings(**given), store, Telemetry()):  # type: ignore[arg-type]  # texts
                pass


async def test_tokens_are_refused_at_the_start(store: ScriptedStore, tmp_path: Path) -> None:
    """A daemon without its tokens would let nobody in, or everybody."""
    path = tmp_path / "ingest.sock"
    file = tmp_path / "tokens"
    file.write_text(tokens.line_of("x", tokens.new_token(), "*"))
    file.chmod(0o644)

    with pytest.raises(ConfigError, match=r"^ingest.tokens: .*chmod 0640"):
        async with listening_ingest(IngestSettings(listen=f"unix:{path}", tokens=str(file)), store, Telemetry()):
            pass
    assert not path.exists()


async def test_changed_files_are_noticed(store: ScriptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal is needed: a token that was added counts a look later, and one that was taken away no longer."""
    monkeypatch.setattr("remora.servers.ingest.server.LOOK_S", 0.05)
    file = tmp_path / "tokens"
    file.touch(0o600)
    async with ingest_site(store, tmp_path, tokens=str(file)) as site:
        token = tokens.new_token()

        async def until(status: int) -> None:
            deadline = time.monotonic() + 30
            bearer = {"Authorization": f"Bearer {token}"}
            while (answer := await site.ask("GET", "/v1/topics", headers=bearer)).status != status:
                assert time.monotonic() < deadline, answer
                await asyncio.sleep(0.02)

        await until(401)
        file.write_text(tokens.line_of("x", token, "*"))
        await until(200)
        file.write_text("")
        await until(401)
