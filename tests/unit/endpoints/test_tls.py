"""The file that a topic names for its certificate authorities: what is read of it, and what is said of others."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.clusters.certificates import certificate, encrypt
from remora.config import KafkaSettings
from remora.endpoints.tls import MOST_CA_BYTES, Tls, TlsFiles, build_context, read_trust
from remora.model.errors import EndpointMisconfigured


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory that is allowed."""
    (tmp_path / "allowed").mkdir()
    return tmp_path / "allowed"


@pytest.fixture
def pem(tmp_path: Path) -> bytes:
    """A good certificate, which lies where a topic may not look."""
    return certificate(tmp_path / "elsewhere", "localhost").certificate.read_bytes()


def authorities(path: Path | str, folder: Path) -> int:
    """How many certificate authorities a topic that names this path trusts."""
    return len(context(path, folder).get_ca_certs())


def context(path: Path | str, folder: Path) -> ssl.SSLContext:
    return build_context(read_trust(Tls(str(path)), TlsFiles((str(folder),))))


def refusal(path: Path | str, folder: Path) -> str:
    """What is said of a path, without the path."""
    with pytest.raises(EndpointMisconfigured) as caught:
        context(path, folder)
    return str(caught.value).removeprefix(f"ca-location {path}: ")


@pytest.mark.parametrize("comment", ["# Zürich CA\n".encode(), "# Zürich CA\n".encode("latin-1"), b"\x7fELF\0\n"])
def test_only_the_certificates_count(folder: Path, pem: bytes, comment: bytes) -> None:
    """What stands before, between and behind the certificates of a file may be in any encoding."""
    (folder / "ca.pem").write_bytes(comment + pem + comment + pem + comment)

    assert authorities(folder / "ca.pem", folder) == 1


def test_windows_line_ends(folder: Path, pem: bytes) -> None:
    """A certificate whose lines end as on Windows is one."""
    (folder / "ca.pem").write_bytes(pem.replace(b"\n", b"\r\n"))

    assert authorities(folder / "ca.pem", folder) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF" + bytes(range(256)) * 100,
        b"-----BEGIN CERTIFICATE-----\n" * 1000,
        "-----BEGIN CERTIFICATE-----\nZürich\n-----END CERTIFICATE-----\n".encode(),
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n=A=\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ],
)
def test_what_is_no_certificate(folder: Path, content: bytes) -> None:
    """A file without a certificate is the topic's misconfiguration, whatever stands in it."""
    (folder / "ca.pem").write_bytes(content)

    assert "no certificate authority in PEM form" in refusal(folder / "ca.pem", folder)


def test_a_large_file(folder: Path, pem: bytes) -> None:
    """A file is read up to 1 MiB; beyond that it is refused, also where its beginning would do."""
    (folder / "ca.pem").write_bytes(pem + b"\n" * (MOST_CA_BYTES - len(pem)))
    assert authorities(folder / "ca.pem", folder) == 1

    (folder / "ca.pem").write_bytes(pem + b"\n" * (MOST_CA_BYTES - len(pem) + 1))
    assert refusal(folder / "ca.pem", folder) == "larger than 1 MiB"


def test_a_directory(folder: Path, pem: bytes) -> None:
    """Of a directory the files with the names that OpenSSL looks for are read, and nothing else."""
    (folder / "a.pem").write_bytes(pem)
    assert "no certificate authority in PEM form" in refusal(folder, folder)

    (folder / "0123abcd.0").symlink_to("a.pem")
    assert authorities(folder, folder) == 1

    os.mkfifo(folder / "0123abcd.1")
    assert refusal(folder, folder) == "missing or not readable"


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
def test_other_places(folder: Path, tmp_path: Path, pem: bytes) -> None:
    """A path that does not lie below an allowed directory is refused by its name alone, be there a file or not."""
    for path in (tmp_path / "elsewhere/certificate.pem", tmp_path / "nothing", f"{folder}/../elsewhere", f"{folder}x"):
        assert refusal(path, folder) == "not below a directory of kafka.ca_directories"
    assert refusal("ca.pem", folder) == "not below a directory of kafka.ca_directories"


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
def test_one_text_for_all_that_cannot_be_read(folder: Path, tmp_path: Path, pem: bytes) -> None:
    """Missing, not permitted, no file, a link to another place or to nowhere: what is said of them is the same."""
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to(tmp_path / "nothing")
    (folder / "elsewhere").symlink_to(tmp_path / "elsewhere")
    (folder / "file").symlink_to(tmp_path / "elsewhere/certificate.pem")
    (folder / "device").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")

    for name in ("nothing", "loop", "nowhere", "elsewhere", "elsewhere/certificate.pem", "file", "device", "pipe"):
        assert refusal(folder / name, folder) == "missing or not readable", name
    assert refusal(folder / "a\0b", folder) == "missing or not readable"


def test_a_device_is_not_read(folder: Path) -> None:
    """A device or a pipe below an allowed directory is refused without reading it."""
    os.mkfifo(folder / "pipe")

    assert refusal("/dev/zero", Path("/dev")) == "missing or not readable"
    assert refusal(folder / "pipe", Path("/")) == "missing or not readable"


def test_links_inside(folder: Path, pem: bytes) -> None:
    """A symbolic link is followed where it stays below an allowed directory, which may be one itself."""
    (folder / "real").mkdir()
    (folder / "real/ca.pem").write_bytes(pem)
    (folder / "link.pem").symlink_to(folder / "real/ca.pem")
    (folder.parent / "alias").symlink_to(folder)

    assert authorities(folder / "link.pem", folder) == 1
    assert authorities(folder.parent / "alias/link.pem", folder.parent / "alias") == 1


def test_defaults() -> None:
    """Where the system keeps certificates, and where remora and Ceph are configured, a topic's file may lie."""
    places = KafkaSettings().ca_places

    assert {"/etc/ssl", "/etc/pki", "/etc/ceph", "/etc/remora", "/usr/share/ca-certificates"} <= set(places)
    assert KafkaSettings(ca_directories="").ca_places == ()


# --------------------------------------------------------------------------------- client certificates


def client(folder: Path, key: str = "key.pem", password: str = "") -> Tls:
    return Tls("", True, str(folder / "certificate.pem"), str(folder / key), password)


def load(tls: Tls, folder: Path) -> ssl.SSLContext:
    return build_context(read_trust(tls, TlsFiles(clients=(str(folder),))))


def why_not(tls: Tls, folder: Path) -> str:
    with pytest.raises(EndpointMisconfigured) as caught:
        load(tls, folder)
    return str(caught.value)


@pytest.mark.parametrize("password", ["", "geheim"])
def test_a_client_certificate(folder: Path, password: str) -> None:
    """Server and client know each other by certificates of the allowed directory, also with an encrypted key."""
    own = certificate(folder / "own", "localhost")
    if password:
        own.key.write_bytes(encrypt(own.key, password))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own.certificate, own.key, password=lambda: password)
    server.load_verify_locations(own.certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    tls = replace(client(folder / "own", password=password), ca_location=str(own.certificate))
    trust = read_trust(tls, TlsFiles((str(folder),), (str(folder),)))

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = build_context(trust).wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (ours, theirs, ours, theirs):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()

    assert theirs.getpeercert() == ours.getpeercert()
    assert ours.getpeercert()


def test_what_makes_no_client_certificate(folder: Path) -> None:
    """A key of another certificate, an encrypted one without or with a wrong password, and other files are named."""
    own, other = certificate(folder / "own", "localhost"), certificate(folder / "other", "localhost")
    (folder / "own/other.pem").write_bytes(other.key.read_bytes())
    (folder / "own/locked.pem").write_bytes(encrypt(own.key, "geheim"))
    (folder / "own/text.pem").write_text("nothing")

    assert "does not belong to the certificate" in why_not(client(folder / "own", "other.pem"), folder)
    assert "ssl-key-password is empty" in why_not(client(folder / "own", "locked.pem"), folder)
    assert "ssl-key-password is wrong" in why_not(client(folder / "own", "locked.pem", "falsch"), folder)
    assert "no private key in PEM form" in why_not(client(folder / "own", "text.pem"), folder)
    assert "ssl-key-location" in why_not(client(folder / "own", "nothing.pem"), folder)
    assert "missing or not readable" in why_not(client(folder / "own", "."), folder)
    own.certificate.write_text("nothing")
    assert "no certificate in PEM form" in why_not(client(folder / "own"), folder)


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
def test_client_certificates_of_others(folder: Path, tmp_path: Path) -> None:
    """A certificate or key outside of the allowed directories, directly or through a link, is not used."""
    certificate(tmp_path / "other", "localhost")
    certificate(folder / "own", "localhost")
    (folder / "own/link.pem").symlink_to(tmp_path / "other/key.pem")

    assert "not below a directory of kafka.client_files" in why_not(client(tmp_path / "other"), folder)
    assert "missing or not readable" in why_not(client(folder / "own", "link.pem"), folder)


def test_identity_of_a_client_certificate(folder: Path) -> None:
    """A renewed certificate is another trust, and no trust shows a key, its password or their digest."""
    own, files = certificate(folder / "own", "localhost"), TlsFiles(clients=(str(folder),))
    own.key.write_bytes(encrypt(own.key, "geheim"))
    tls = client(folder / "own", password="geheim")
    one = read_trust(tls, files)
    same = read_trust(tls, files)
    shutil.rmtree(folder / "own")
    certificate(folder / "own", "localhost")

    assert one == same
    assert one != read_trust(tls, files)
    assert one.client
    assert one.client.digest not in repr(one)
    assert "geheim" not in f"{one!r} {tls!r}"
