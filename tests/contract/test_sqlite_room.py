"""Room on the disk for what delivery needs: others take every byte that is left, and delivery goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.processes.mounts import TMPFS, ext4, with_mount
from devkit.processes.programs import ENVIRONMENT

MEGABYTES = 32


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("block", [0, 4096, 1024], ids=["tmpfs", "ext4", "ext4 of small blocks"])
async def test_delivery_goes_on_where_others_take_the_disk(block: int, tmp_path: Path) -> None:
    """With no byte free, and none left free for a moment, whatever delivery does succeeds, also after a start; events
    are refused and the store says so; and all is well again when there is room."""
    mount = ext4(MEGABYTES, block) if block else TMPFS.format(megabytes=MEGABYTES)
    disk = tmp_path / "disk"
    disk.mkdir()
    story = [sys.executable, "-W", "error", "-m", "support.crowded_disk", str(disk / "store"), str(disk / "others")]

    done = await asyncio.to_thread(
        subprocess.run, with_mount(mount, disk, story), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )

    assert done.stdout == "as told\n", done.stderr
