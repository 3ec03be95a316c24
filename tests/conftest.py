"""A fixture of many tests; how the suite runs stands in devkit/testing/plugin.py."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["devkit.testing.plugin", "devkit.clusters.rabbitmq"]  # in each folder a broker would be another one


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        yield Path(name)
