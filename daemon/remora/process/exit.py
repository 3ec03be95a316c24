"""How a process of remora ends without waiting for what it has left behind."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from remora.model.exits import Exit


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
