"""A distribution of another project whose import package has the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import remora

PACKAGE = Path(remora.__file__).parent


@pytest.mark.parametrize(
    ("installed", "files", "is_refused"),
    [
        ("remora-1.0", "remora/__init__.py,,\nremora/core.py,,\n", True),
        ("remora-0.1.0", "__editable__.remora-0.1.0.pth,,\n", False),
        ("remora_tools-1.0", "remora/__init__.py,,\n", False),
    ],
    ids=["files in the same folder", "a checkout of the release before", "another name"],
)
def test_a_distribution_with_files_in_the_same_folder_is_refused(
    tmp_path: Path, installed: str, files: str, is_refused: bool
) -> None:
    """Where another distribution's files lie among ours, each command says so and what to type; else it runs."""
    (tmp_path / "remora").symlink_to(PACKAGE)
    about = tmp_path / f"{installed}.dist-info"
    about.mkdir()
    name, _, version = installed.rpartition("-")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (about / "RECORD").write_text(files)

    done = subprocess.run(
        [sys.executable, "-m", "remora", "--version"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == (1 if is_refused else 0)
    assert ("pip uninstall remora remorad && pip install remorad" in done.stderr) is is_refused
    assert done.stdout == ("" if is_refused else f"remora, version {remora.__version__}\n")
