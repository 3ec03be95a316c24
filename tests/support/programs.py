"""Programs that some tests need and that pip cannot install."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """The program's path. Missing, it skips the test on a laptop and fails it in CI."""
    path = shutil.which(name)
    if path is None:
        if "CI" in os.environ:
            pytest.fail(f"{name} is missing: install Debian's package {package}")
        pytest.skip(f"needs {name} of Debian's package {package}")
    return path
