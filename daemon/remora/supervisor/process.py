"""The supervisor's process: its sockets, the workers that it starts with, and its event loop, in this order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from remora.app import import_for_workers, listeners
from remora.config import Settings
from remora.metrics import configure_logging
from remora.model.exits import Exit
from remora.supervisor.first_workers import FirstWorkers, Work
from remora.supervisor.supervisor import Supervisor


def run(settings: Settings, file: Path | None, work: Work, retired: Sequence[str] = ()) -> Exit:
    """Deliver until a signal; returns the exit code. Raises WorkerFailed when a worker ends before it is ready.

    `file` is the configuration file that was given, `work` what a worker process does, `retired` what to say of options
    of the file that are none any longer.
    """
    configure_logging(settings.log)
    import_for_workers(settings)
    workers = FirstWorkers(work)
    with listeners(settings) as listening:
        supervisor = Supervisor(settings, file, workers.spawn, retired, listening)
        with workers.forked(supervisor.count, supervisor.inherited), asyncio.Runner() as runner:
            return runner.run(supervisor.run())
