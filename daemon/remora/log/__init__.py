"""Shared logs for programs: append, read, follow, over either store and whichever sequencer serves the log.

    async with open_log("orders") as log:
        position = await log.append(b"hello")
        async for entry in log.follow():
            print(entry.position, entry.data)

It stands above the composition root, which opens the store; `remora.client` reaches a sequencer and knows no store.
"""

from __future__ import annotations

from remora.log.entries import Entry, LogTimes
from remora.log.opened import open_log
from remora.log.shared import AppendUnclear, Log, NotAppended
from remora.log.sync import SyncLog

__all__ = ["AppendUnclear", "Entry", "Log", "LogTimes", "NotAppended", "SyncLog", "open_log"]
