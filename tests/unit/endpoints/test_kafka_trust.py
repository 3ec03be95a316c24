"""How often the file of a topic's certificate authorities is read: as often as it changes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from devkit.clusters.certificates import certificate
from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.endpoints.tls import RACY_S, Tls, TlsFiles, TrustCache, build_context
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target


@pytest.fixture
def one(tmp_path: Path) -> bytes:
    return certificate(tmp_path / "one", "localhost").certificate.read_bytes()


@pytest.fixture
def other(tmp_path: Path) -> bytes:
    return certificate(tmp_path / "other", "localhost").certificate.read_bytes()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is ahead of every file that the test makes, as if it had been made a while ago."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + RACY_S + 1)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was opened, by name."""
    opened: Counter[str] = Counter()
    open_ = os.open

    def counted(path: str, flags: int) -> int:
        opened[Path(path).name] += 1
        return open_(path, flags)

    monkeypatch.setattr(os, "open", counted)
    return opened


def replace(path: Path, content: bytes) -> None:
    """As deployments do it: another file under the same name."""
    (path.parent / "new").write_bytes(content)
    os.replace(path.parent / "new", path)


@pytest.mark.usefixtures("later")
async def test_looks_at_a_destination(tmp_path: Path, one: bytes, reads: Counter[str]) -> None:
    """Looks at a destination that names a file of authorities read it once, and once more when it was replaced."""
    file = tmp_path / "ca.pem"
    file.write_bytes(one)
    meant = Target("kafka://127.0.0.1:1", f"use-ssl=true&ca-location={file}", "t")
    async with KafkaEndpoint(KafkaSettings(connect_timeout_s=30, ca_directories=str(tmp_path))) as endpoint:
        for _ in range(5):
            await endpoint.up(meant)
        assert reads["ca.pem"] == 1

        replace(file, one)
        for _ in range(5):
            await endpoint.up(meant)
        assert reads["ca.pem"] == 2


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("change", [Path.write_bytes, replace], ids=["written over", "replaced"])
def test_a_file_that_changes(tmp_path: Path, one: bytes, other: bytes, change: Callable[[Path, bytes], object]) -> None:
    """Another certificate in the file makes another trust, whichever way it came there; the old one is not used."""
    file = tmp_path / "ca.pem"
    file.write_bytes(one)
    cache, meant = TrustCache(TlsFiles([str(tmp_path)])), Tls(str(file))
    first = cache.read(meant)
    assert cache.read(meant) is first

    change(file, other)

    second = cache.read(meant)
    assert second.digest != first.digest
    assert build_context(second).get_ca_certs() != build_context(first).get_ca_certs()
    assert build_context(second) is build_context(cache.read(meant))


@pytest.mark.usefixtures("later")
def test_a_directory_that_changes(tmp_path: Path, one: bytes, other: bytes) -> None:
    """A certificate that is added to a directory, or taken from it, is noticed."""
    folder = tmp_path / "ca"
    folder.mkdir()
    (folder / "0123abcd.0").write_bytes(one)
    cache, meant = TrustCache(TlsFiles([str(tmp_path)])), Tls(str(folder))
    first = cache.read(meant)

    (folder / "0123abcd.1").write_bytes(other)
    assert cache.read(meant).digest != first.digest

    (folder / "0123abcd.1").unlink()
    assert cache.read(meant).digest == first.digest


@pytest.mark.usefixtures("later")
def test_what_may_no_longer_be_read(tmp_path: Path, one: bytes) -> None:
    """A file that was read and now lies elsewhere, behind a link, is refused as it would have been at first."""
    (tmp_path / "allowed").mkdir()
    (tmp_path / "secret.pem").write_bytes(one)
    file = tmp_path / "allowed/ca.pem"
    file.write_bytes(one)
    cache, meant = TrustCache(TlsFiles([str(tmp_path / "allowed")])), Tls(str(file))
    cache.read(meant)

    file.unlink()
    with pytest.raises(EndpointMisconfigured, match="missing or not readable"):
        cache.read(meant)
    file.symlink_to(tmp_path / "secret.pem")
    with pytest.raises(EndpointMisconfigured, match="missing or not readable"):
        cache.read(meant)


def test_a_file_that_changed_just_now(tmp_path: Path, one: bytes, reads: Counter[str]) -> None:
    """A file is read each time for a while after it changed: two changes may have the same time."""
    file = tmp_path / "ca.pem"
    file.write_bytes(one)
    cache = TrustCache(TlsFiles([str(tmp_path)]))

    for _ in range(3):
        cache.read(Tls(str(file)))

    assert reads["ca.pem"] == 3
