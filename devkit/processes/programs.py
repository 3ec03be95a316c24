"""Programs that tests run: those that pip cannot install, and what the tests' own need."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
"""What a Python program of the tests needs to find every module that the tests find."""


def program(name: str, package: str) -> str:
    """The program's path. Missing, it skips the test on a laptop and fails it in CI."""
    path = shutil.which(name)
    if path is None:
        if "CI" in os.environ:
            pytest.fail(f"{name} is missing: install Debian's package {package}")
        pytest.skip(f"needs {name} of Debian's package {package}")
    return path
