"""A real Kerberos realm beside the tests' Kafka, and this process as one of its clients."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from devkit.clusters.kerberos_realm import configure_kdc, kdc_environment, kerberos_program
from devkit.processes.ports import free_port
from devkit.waits import until

if TYPE_CHECKING:
    from devkit.clusters.kafka import Kafka

SBIN = "/usr/sbin"
"""Where Debian has the KDC, which is not on everybody's PATH."""


def has_kdc() -> bool:
    """Whether a KDC can be run here."""
    return bool(shutil.which("krb5kdc", path=SBIN) and shutil.which("kadmin.local", path=SBIN))


def join_realm(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process find the KDC of the cluster. Without one, the test is skipped on a laptop and fails in CI."""
    if "krb5_config" not in kafka.env:
        if "CI" in os.environ:
            pytest.fail("krb5-kdc is missing: run scripts/setup")
        pytest.skip("needs Debian's packages krb5-kdc and krb5-admin-server: run scripts/setup")
    monkeypatch.setenv("KRB5_CONFIG", kafka.env["krb5_config"])
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nonexistent")  # nobody's tickets but those of the keytabs


class Kdc:
    """A second KDC over the realm's own database: for the tests that hurt one, while others log in with the first."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Starts it; returns when it takes connections."""
        self._process = self._launched()
        await until(self._listens, "the second KDC listens")

    def stop(self) -> None:
        """Kills it, frozen or not."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Freezes it: connections to it are opened, and none is answered."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Lets it go on."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def _launched(self) -> subprocess.Popen[bytes]:
        command = [kerberos_program("krb5kdc"), "-n"]
        return subprocess.Popen(command, env=os.environ | kdc_environment(self._folder), start_new_session=True)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
            return True
        return False


@contextlib.asynccontextmanager
async def second_kdc(kafka: Kafka, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kdc]:
    """Runs a second KDC, which this process asks instead of the first; its files lie in `folder`."""
    join_realm(kafka, monkeypatch)
    port = free_port()
    configure_kdc(folder, port, database=Path(kafka.env["krb5_config"]).parent, log=folder / "kdc.log")
    monkeypatch.setenv("KRB5_CONFIG", str(folder / "krb5.conf"))
    kdc = Kdc(folder, port)
    await kdc.start()
    try:
        yield kdc
    finally:
        kdc.stop()
