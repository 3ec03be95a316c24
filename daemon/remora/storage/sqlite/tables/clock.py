"""The clock that leases and reservations run on: the same for every process of a host, also while it sleeps."""

from __future__ import annotations

import functools
import time
from pathlib import Path


def now_ns() -> int:
    """Nanoseconds since the host's start. Means something only together with `boot_id`."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@functools.cache
def boot_id() -> str:
    """Which start of the host it is that `now_ns` counts from."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
