"""Paths of files in the form that Spark takes."""

from __future__ import annotations

import re
from pathlib import Path


def location(path: Path) -> str:
    """A path of this host's file system as Spark writes to it, whatever its default file system is."""
    return f"file://{path.resolve()}"


def pattern(path: Path) -> str:
    """The same as Spark reads it, where it would expand some characters."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", location(path))
