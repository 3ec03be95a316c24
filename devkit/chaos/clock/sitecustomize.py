"""Lets a daemon's wall clock be stepped from outside, and its workers be hurt within a move of entries, without a line
for that in the daemon.

Python imports this module by its name before anything else when its folder is in PYTHONPATH. The eight bytes of the
file in CHAOS_CLOCK say by how many nanoseconds `time.time` and `time.time_ns` are wrong, at any moment anew. Clocks
that leases count on are others, and stay right.

The file in CHAOS_MOVES, where there is one, says at which operation of a move a signal is due, and whether before or
after it: the first worker that comes there takes the file away, under its own id, and sends the signal to itself.
"""

import mmap
import os
import sys
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

_moves = os.environ.get("CHAOS_MOVES", "")


def _hurt(step: str, moment: str) -> None:
    """Send oneself the signal that is due here, if it is this one's turn."""
    try:
        with open(_moves) as due:
            wanted, when, number = due.read().split("|")
        if step == wanted and when == moment:
            os.rename(_moves, f"{_moves}.{os.getpid()}")
            os.kill(os.getpid(), int(number))
    except (FileNotFoundError, ValueError):
        pass  # nothing is due, or another one came first


def _hurt_moves() -> None:
    """Have this process, which is a worker, look at each operation of a move whether it is to be hurt there."""
    from typing import Any

    from remora.storage.librados import WriteOp
    from remora.storage.rados.cluster.connection import ClusterConnection

    run = ClusterConnection.run
    stored = set[str]()

    def step_of(operation: object, what: str) -> str:
        """Which step of a move an operation is; none where it is of no move."""
        if not isinstance(operation, WriteOp):
            return ""
        shard = what.rpartition(" ")[2]
        if what.startswith("storing spilled entries of "):
            stored.add(shard)
            return "store"
        if what.startswith("removing from ") and shard in stored:
            stored.discard(shard)
            return "move"
        return "name" if what == "writing to remora.runs" else ""

    async def watched(self: Any, operation: Any, oid: str, what: str, *rest: Any, **named: Any) -> int:
        step = step_of(operation, what)
        if step:
            _hurt(step, "before")
        answer = await run(self, operation, oid, what, *rest, **named)
        if step:
            _hurt(step, "after")
        return answer

    ClusterConnection.run = watched  # type: ignore[method-assign]  # that is what this is for


if _moves and "worker" in sys.orig_argv:
    _hurt_moves()
elif _moves and "run" in sys.orig_argv:
    os.register_at_fork(after_in_child=_hurt_moves)  # the first workers, which the supervisor forks
