"""The `remora` command, and each worker's process, which starts without the parser of the command line."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

COLLECT_AFTER = 50_000
"""This many objects are made before Python looks for garbage in cycles. A listing makes thousands, all of which go by
themselves, and so do the imports of a start, which make only what stays: by default, seven hundred, that was a tenth
of a start's processor time, and of a busy worker's."""


def main() -> None:
    """Run the command that the arguments name."""
    gc.set_threshold(COLLECT_AFTER)
    match sys.argv[1:]:
        case ["worker", channel] if channel.isdecimal():
            _work(int(channel))
    from remora import cli

    cli.main()


def _work(channel: int) -> NoReturn:
    """Work for the supervisor at the other end of the inherited socket, and end the process."""
    from remora.model.exits import Exit

    try:
        from remora import worker

        code = worker.run(channel)
    except MemoryError:  # before it could watch for that itself
        sys.stderr.write(f"remora: a worker (pid {os.getpid()}) cannot allocate memory to start with; see ulimit -v\n")
        sys.stderr.flush()
        os._exit(Exit.OUT_OF_MEMORY)
    from remora.process.exit import end_at_once

    # All that had to be closed is closed. The interpreter would go on for a while, unwatched; on a busy host so
    # long that it is taken for a hung worker.
    end_at_once(code)


if __name__ == "__main__":
    main()
