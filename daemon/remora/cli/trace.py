"""The trace of a command that changes a store, and so asks no daemon: a line in the system log of its host.

systemd's journal adds who wrote the line, as the kernel has it: `journalctl -t remora -o verbose`.
"""

from __future__ import annotations

import logging
import os
import socket
import syslog
from contextlib import suppress
from pathlib import Path

from remora.config import Settings
from remora.metrics.logs import TextFormatter
from remora.model.caller import Caller

SOCKET = Path("/dev/log")
"""Where the system log takes lines; a container has none."""

_STARTED_BY = os.getuid()
"""Root becomes the owner of an embedded store when a command opens it, and it is still root who asked."""

WRITE_S = 1.0
"""How long a system log that is full is waited for."""


def myself(settings: Settings) -> Caller:
    """The process of this command, for those who are to know who changed something."""
    return Caller(uid=_STARTED_BY, pid=os.getpid(), host=settings.ownership.host)


def trace(event: str, text: str, **fields: object) -> None:
    """Write a line like those of the daemon to the system log, where there is one."""
    record = logging.makeLogRecord({"msg": text, "levelname": "INFO", "event": event, "fields": fields})
    _, _, line = TextFormatter(journal=True).format(record).partition(">")  # a datagram has its own level
    priority = syslog.LOG_DAEMON | syslog.LOG_INFO
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.settimeout(WRITE_S)
        log.connect(str(SOCKET))
        log.send(f"<{priority}>remora[{os.getpid()}]: {line}".encode())
