"""The disk of `scripts/chaos --ingest --power-loss` keeps what was synced, and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from devkit.chaos.power import power_cut_disk
from devkit.processes.mounts import ext4, with_mount
from devkit.processes.programs import ENVIRONMENT

BLOCK = 4096


def test_what_was_not_synced_is_thrown_away(tmp_path: Path) -> None:
    """After a cut a file has what it had when it was synced, one that was never synced is gone, and the bytes that were
    thrown away are counted."""
    ext4(1, BLOCK)  # whether this machine can

    done = subprocess.run(
        with_mount("true", tmp_path / "disk", [sys.executable, __file__, str(tmp_path / "disk")]),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def main(place: Path) -> None:
    """Write, sync some of it, cut the power, and look."""
    with power_cut_disk(place, megabytes=16) as disk:
        kept, never = place / "kept", place / "never"
        with kept.open("wb", buffering=0) as file:
            file.write(b"s" * BLOCK)
            subprocess.run(["sync", kept, place], check=True)
            file.write(b"u" * BLOCK)
        never.write_bytes(b"n" * BLOCK)
        disk.drop()
        asyncio.run(disk.come_back())
        assert [each.name for each in sorted(place.iterdir())] == ["kept", "lost+found"]
        assert kept.read_bytes() == b"s" * BLOCK
        assert disk.lost_bytes == 2 * BLOCK


if __name__ == "__main__":
    main(Path(sys.argv[1]))
