"""Processes: what they cost, from /proc, whether they run, and how they are frozen."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from devkit.waits import PATIENT_S

T = TypeVar("T")

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process with all that it has started and that these have started: a daemon with its workers."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not been reaped; none once it has ended."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """Processor time of a process and its family with all their threads, user and system.

    What a member has used that ends just now is in its parent's time only once that has waited for it: it is nothing.
    """
    return _cpu_s(pid) + sum(_of_one(each, _cpu_s, 0.0) for each in family(pid)[1:])


def _of_one(pid: int, look: Callable[[int], T], gone: T) -> T:
    try:
        return look(pid)
    except (FileNotFoundError, ProcessLookupError):
        return gone


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


_WRITE_LOCK = "120 120"
"""The byte of a `-shm` file that who writes to the database holds (SQLite's WAL_WRITE_LOCK)."""


def is_writing(pid: int) -> bool:
    """Whether a process is in the midst of a transaction that writes to an embedded store."""
    locks = Path("/proc/locks").read_text().splitlines()
    return any(f" WRITE {pid} " in each and each.endswith(_WRITE_LOCK) for each in locks)


def state(pid: int) -> str:
    """The state of a process as the kernel names it, such as T for one that is stopped; empty for one that is gone."""
    return _of_one(pid, lambda each: Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0], "")


async def gone(pids: Sequence[int], within_s: float = PATIENT_S) -> None:
    """Return when none of these processes runs any more. Raises TimeoutError."""
    await _all_in(pids, ("Z", "X", ""), within_s)


async def freeze(pids: Sequence[int], within_s: float = PATIENT_S) -> None:
    """SIGSTOP processes, the last one first, and return when all of them stand still. Raises TimeoutError.

    None is stopped within a write to an embedded store: nobody else could write to that file meanwhile.
    """
    while True:
        _send(signal.SIGSTOP, reversed(pids))
        await _all_in(pids, ("T", "Z", ""), within_s)
        if not any(map(is_writing, pids)):
            return
        thaw(pids)
        await asyncio.sleep(0.005)


def thaw(pids: Iterable[int]) -> None:
    """SIGCONT processes."""
    _send(signal.SIGCONT, pids)


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)


async def _all_in(pids: Sequence[int], states: Sequence[str], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while late := [pid for pid in pids if state(pid) not in states]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"still running: {late}")
        await asyncio.sleep(0.002)


def children_cpu_s() -> float:
    """Processor time of the programs that this process has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def machine_busy_s() -> float:
    """Processor time that was not idle, of all processors; what a hypervisor took away counts as busy."""
    user, nice, system, _, _, irq, softirq, steal, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) * _TICK_S


def memory_bytes(pid: int) -> tuple[int, int]:
    """Resident memory of a process and its family: now, and the most that each of them ever had."""
    each = [_memory_bytes(pid), *(_of_one(one, _memory_bytes, (0, 0)) for one in family(pid)[1:])]
    return sum(now for now, _ in each), sum(most for _, most in each)


def proportional_bytes(pid: int) -> tuple[int, int]:
    """Memory of a process and its family in which each page counts once, whoever shares it (PSS), and how much of it is
    no file's. The share of a file's pages, such as a library's, depends on what else runs on the machine."""
    found = [_proportional_bytes(pid), *(_of_one(one, _proportional_bytes, (0, 0)) for one in family(pid)[1:])]
    return sum(all_ for all_, _ in found), sum(own for _, own in found)


def _proportional_bytes(pid: int) -> tuple[int, int]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    all_, own = (int(lines[name].split()[0]) * 1024 for name in ("Pss", "Pss_Anon"))
    return all_, own


def _memory_bytes(pid: int) -> tuple[int, int]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, most = (int(lines.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # the dead have none
    return now, most


def spent(pids: Mapping[str, int]) -> dict[str, float]:
    """Processor time so far of each of these, of this process as `bench`, and of the machine as `machine`."""
    ours = {name: cpu_s(pid) for name, pid in pids.items()} | {"bench": _cpu_s(os.getpid())}
    return ours | {"machine": machine_busy_s()}


@contextmanager
def preferred(pids: Iterable[int], niceness: int) -> Iterator[None]:
    """Other niceness for these processes meanwhile; less than 0 needs root.

    Linux weighs sessions against each other before the processes in one, so it is the session's that is set, and
    the threads' only where sessions are not weighed.
    """
    weights = [weight for pid in pids if niceness for weight in _weights(pid)]
    for weight in weights:
        weight(niceness)
    try:
        yield
    finally:
        for weight in weights:
            weight(0)


def _weights(pid: int) -> Iterator[Callable[[int], None]]:
    session = Path(f"/proc/{pid}/autogroup")
    if session.exists():
        yield partial(_weigh_session, session)
    for each in family(pid):
        for task in Path(f"/proc/{each}/task").iterdir():
            yield partial(_weigh_thread, int(task.name))


def _weigh_session(session: Path, niceness: int) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        session.write_text(str(niceness))


def _weigh_thread(thread: int, niceness: int) -> None:
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
