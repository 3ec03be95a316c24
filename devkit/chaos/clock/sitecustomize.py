"""Lets a daemon's wall clock be stepped from outside, without a line for that in the daemon.

Python imports this module by its name before anything else when its folder is in PYTHONPATH. The eight bytes of the
file in CHAOS_CLOCK say by how many nanoseconds `time.time` and `time.time_ns` are wrong, at any moment anew. Clocks
that leases count on are others, and stay right.
"""

import mmap
import os
import time

if _file := os.environ.get("CHAOS_CLOCK"):
    with open(_file, "rb") as _opened:
        _offset = mmap.mmap(_opened.fileno(), 8, access=mmap.ACCESS_READ)
    _time_ns = time.time_ns

    def _stepped_ns() -> int:
        return _time_ns() + int.from_bytes(_offset[:8], "little", signed=True)

    def _stepped() -> float:
        return _stepped_ns() / 1e9

    time.time_ns, time.time = _stepped_ns, _stepped
