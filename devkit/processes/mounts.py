"""Mounts that only one process sees, and that end with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from devkit.processes.programs import program


def with_mount(script: str, place: Path, command: Sequence[str]) -> list[str]:
    """A command that runs this one where the script has mounted something at `$0`.

    Where no mount is allowed, it skips the test on a laptop and lets it fail in CI.
    """
    alone = [program("unshare", "util-linux"), "--mount", "--propagation", "private"]
    if os.geteuid():
        alone += ["--user", "--map-root-user"]
    if "CI" not in os.environ and subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs to be allowed a mount")
    return [*alone, "sh", "-c", f'{script} && exec "$@"', str(place), *command]
