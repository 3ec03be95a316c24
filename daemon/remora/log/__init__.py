"""Shared logs for programs: append, read, follow, over either store and whichever sequencer serves the log.

    async with open_log("orders") as log:
        position = await log.append(b"hello")
        async for entry in log.follow():
            print(entry.position, entry.data)

It stands above the composition root, which opens the store; `remora.client` reaches a sequencer and knows no store.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from remora import app
from remora.config.document import file_of, load
from remora.config.settings import Settings
from remora.log.entries import Entry, LogTimes
from remora.log.shared import PATIENCE, AppendUnclear, Log, NotAppended
from remora.log.sync import SyncLog
from remora.model.log import LogName

__all__ = ["AppendUnclear", "Entry", "Log", "LogTimes", "NotAppended", "SyncLog", "open_log"]


@asynccontextmanager
async def open_log(
    name: str | LogName, pool: str = "", *, config: str | Path | Settings | None = None, times: LogTimes = PATIENCE
) -> AsyncIterator[Log]:
    """A log, while the block runs: in the store, and with the sequencer, of a configuration.

    `config` is its file, by default the one that commands read, under the same environment; `pool` as in
    `remora log create`. A log that does not exist is an error of the first call: LogUnknown. Where there is no embedded
    store this raises StoreMissing, and makes none.
    """
    if not isinstance(config, Settings):
        file = config or os.environ.get("REMORA_CONFIG")
        config = load(file_of(Path(file) if file else None), os.environ)
    if isinstance(name, str):
        name = LogName((pool or await app.default_log_pool(config)).encode(), name.encode())
    async with (
        app.open_logs(config, waits=False, make=False) as logs,
        Log(logs, name, [config.sequencer.listen], times) as log,
    ):
        yield log
