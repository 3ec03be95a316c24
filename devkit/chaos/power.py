"""A disk whose power can be cut: what was not synced is thrown away, names of files as well as their content.

It is an ext4 in an image. A call shuts it down without writing its journal or any page that it still holds in
memory (EXT4_IOC_SHUTDOWN). When it is mounted again its journal is replayed, as at the start of a host; the clock of
the host goes on. Torn pages are not tried here: tests/contract/test_sqlite_power_loss.py does that.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from devkit.processes.mounts import EXT4
from devkit.waits import until

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN of linux/ext4.h."""

_WITHOUT_JOURNAL = struct.pack("I", 2)
_BLOCK = 4096


@dataclass
class PowerCutDisk:
    """A disk at `place`. `lost_bytes` is what its cuts have thrown away, in whole blocks."""

    place: Path
    lost_bytes: int = 0
    _seen: Mapping[str, bytes] = field(default_factory=dict)

    def drop(self) -> None:
        """The power goes: from now on nothing reaches the disk. Whoever writes to it is to stand still already."""
        self._seen = self._contents()
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_JOURNAL)
        finally:
            os.close(descriptor)

    async def come_back(self) -> None:
        """The disk has what was synced, as soon as nobody has a file open there."""
        umount = ["umount", str(self.place)]
        await until(
            lambda: not subprocess.run(umount, check=False, stderr=subprocess.DEVNULL).returncode, "an idle disk"
        )
        _run("mount", "-o", "loop", f"{self.place}.image", self.place)
        kept = self._contents()
        self.lost_bytes += sum(_lost_bytes(data, kept.get(name, b"")) for name, data in self._seen.items())

    def _contents(self) -> Mapping[str, bytes]:
        """All files; without what SQLite keeps in memory, and second names."""
        files = [
            each
            for each in self.place.rglob("*")
            if each.is_file() and not each.name.endswith(("-shm", "-index", "-room"))
        ]
        return {str(each): each.read_bytes() for each in files}


@contextmanager
def power_cut_disk(place: Path, megabytes: int) -> Iterator[PowerCutDisk]:
    """A new disk at a place. This process needs a mount namespace of its own; the image is left beside the place."""
    place.mkdir()
    _run("sh", "-c", EXT4.format(megabytes=megabytes, block=_BLOCK), place)
    try:
        yield PowerCutDisk(place)
    finally:
        _run("umount", "--lazy", place)
        place.rmdir()


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _lost_bytes(before: bytes, after: bytes) -> int:
    blocks = range(0, len(before), _BLOCK)
    return sum(_BLOCK for at in blocks if before[at : at + _BLOCK] != after[at : at + _BLOCK])
