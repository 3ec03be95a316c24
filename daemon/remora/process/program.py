"""How a process of this program starts, what `ps` shows of it, and how it ends without waiting for what it leaves."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from remora.model.exits import Exit

TUNABLES = "GLIBC_TUNABLES"

MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=33554432:glibc.malloc.mmap_threshold=4194304"
"""How a worker's C library keeps memory, unless the environment says it: in huge pages where the system has them for
who asks (fewer misses when an address is looked up), and 32 MiB at the heap's end are not given back, as the next
listing needs them again. A tenth of a busy worker's processor time. Other C libraries do not know the variable."""

_ARGUMENTS = 45
"""Where /proc/self/stat says, behind the name, from where and up to where a process's arguments stand in memory."""


def environment(of: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that is a worker, or that workers are forked from."""
    return {TUNABLES: MEMORY, **of}


def start_anew() -> None:
    """Have this very process begin again as workers need it; returns where it has, and where that is impossible.

    A forked worker has its C library's settings from here, which that reads when a program starts and never again. And
    what lies in the folder where the daemon happens to be started is no part of it (-P).
    """
    if sys.flags.safe_path and TUNABLES in os.environ:
        return
    with suppress(OSError, IndexError):  # then workers are forked all the same, and keep less memory
        program = [sys.executable, "-P", *sys.orig_argv[1:]]
        os.execve(sys.executable, program, environment(os.environ))  # noqa: S606  # the very program that runs here


def show_as(*words: str) -> None:
    """Have `ps` show this process by these words, as far as there is room where its arguments stood."""
    with suppress(OSError, ValueError, IndexError):  # it helps only who looks
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            first, end = map(int, stat.read().rpartition(")")[2].split()[_ARGUMENTS : _ARGUMENTS + 2])
        text = "\0".join(words).encode()[: end - first - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(first)
            memory.write(text.ljust(end - first, b"\0"))


def end_at_once(code: int) -> NoReturn:
    """Write out what was logged and printed, and end: Python takes nothing apart.

    Threads of librados may still be at work, or wait for a monitor that is away. They would die of SIGSEGV where the
    library is taken apart under them.
    """
    logging.shutdown()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed before the start
        with suppress(OSError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


def end_with(work: Callable[[], int]) -> NoReturn:
    """Do a worker's work, and end the process with the exit code that this gives, whatever it raises.

    All that had to be closed is closed then. The interpreter would go on for a while, unwatched; on a busy host so
    long that it is taken for a hung worker.
    """
    code = int(Exit.FAILURE)
    try:
        code = work()
    except MemoryError:  # before it could watch for that itself
        sys.stderr.write(f"remora: a worker (pid {os.getpid()}) cannot allocate memory to start with; see ulimit -v\n")
        sys.stderr.flush()
        os._exit(Exit.OUT_OF_MEMORY)
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else code
    except BaseException:
        traceback.print_exc()
    end_at_once(code)
