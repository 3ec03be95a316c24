"""A package that is installed as far as its metadata tell, and offers endpoints as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def offer(folder: Path, points: Mapping[str, str], name: str = "remora-sink") -> Path:
    """Write the metadata of a package with these entry points by scheme; what has to be on Python's path."""
    place = folder / "offered"
    info = place / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{scheme} = {what}\n" for scheme, what in points.items())
    (info / "entry_points.txt").write_text(f"[remora.endpoints]\n{lines}")
    return place
