"""Copies of the package to which a test adds something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import remora

ROOT = Path(__file__).parents[2]


def copied(folder: Path, *, part: str, into: str, module: str, table: str, line: str) -> Path:
    """The package with a folder of `tests/support` more, and a line more in a table of a module; what holds it."""
    copy = folder / "copy"
    shutil.copytree(Path(remora.__file__).parent, copy / "remora", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "support" / part, copy / "remora" / into / part)
    file = copy / "remora" / f"{module}.py"
    before, found, after = file.read_text().partition(table)
    assert found
    head, brace, rest = after.partition("MappingProxyType({\n")
    file.write_text(before + found + head + brace + line + rest)
    return copy


def checked_imports(copy: Path) -> str:
    """What import-linter says against a copy; empty where every contract holds."""
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copytree(ROOT / "devkit", copy / "devkit", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout if done.returncode else ""
