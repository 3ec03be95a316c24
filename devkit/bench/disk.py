"""What the disk gives."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

_BYTES = 4096
_PLACES = 256


def syncs_per_s(folder: Path, seconds: float = 2.0) -> float:
    """How often a second a page of a file in this folder can be overwritten and synced, by the median time it takes.

    The file's room was taken before, as that of a write-ahead log is after its first round.
    """
    path = folder / "syncs"
    took: list[float] = []
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, bytes(_BYTES * _PLACES), 0)
        os.fsync(file)
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            os.pwrite(file, os.urandom(_BYTES), len(took) % _PLACES * _BYTES)
            os.fdatasync(file)
            took.append(time.monotonic() - began)
    finally:
        os.close(file)
        path.unlink()
    return 1 / statistics.median(took)
