"""How property tests run: without a stopwatch, and in CI on the same cases each time; a fixture of many tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("unhurried"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "unhurried")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        yield Path(name)
