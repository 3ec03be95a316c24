"""A real Kerberos realm beside the tests' Kafka, and this process as one of its clients."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

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
