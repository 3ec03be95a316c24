"""A package that is installed as far as its metadata tell, and offers endpoints or commands as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def offer(
    folder: Path,
    points: Mapping[str, str],
    name: str = "remora-sink",
    version: str = "1.0",
    group: str = "remora.endpoints",
) -> Path:
    """Write the metadata of a package with these entry points by scheme or command; what has to be on Python's path."""
    place = folder / "offered"
    info = place / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = "".join(f"{each} = {what}\n" for each, what in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    return place
