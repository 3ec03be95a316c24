"""OSDs whose disk is as slow as is asked, whatever the disk below them is.

A library that a C compiler makes of slow_syncs.c is preloaded into them: their `fdatasync` syncs nothing and waits
instead. So what it takes does not depend on who else writes to this host's disk, and an OSD that is killed with
its host may lose what it has acknowledged.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from devkit.clusters.state import DevError

SOURCE = Path(__file__).with_suffix(".c")

_MICROSECONDS = struct.Struct("=Q")


class SlowSyncs:
    """How long the syncs of processes of one name take that run with this `environment`; nothing at first."""

    def __init__(self, folder: Path, of: str = "ceph-osd") -> None:
        """`folder` is where the library is compiled to. Raises DevError where there is no C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            raise DevError("there is no C compiler (Debian's package gcc)")
        library, delay = folder / "slow_syncs.so", folder / "delay_us"
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        done = subprocess.run(
            [compiler, *flags, "-o", library, SOURCE, "-ldl"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DevError(f"{SOURCE.name} does not compile: {done.stderr}")
        delay.write_bytes(_MICROSECONDS.pack(0))
        with delay.open("r+b") as file:
            self._delay = mmap.mmap(file.fileno(), _MICROSECONDS.size)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library), "SLOW_SYNCS": str(delay), "SLOW_SYNCS_OF": of,
        }  # fmt: skip

    @contextmanager
    def waiting(self, seconds: float) -> Iterator[None]:
        """Each sync takes this long meanwhile, from the next one on; then nothing again."""
        self._write(seconds)
        try:
            yield
        finally:
            self._write(0)

    def _write(self, seconds: float) -> None:
        self._delay[:] = _MICROSECONDS.pack(round(seconds * 1e6))
