"""Tells systemd how the daemon is doing, by the sd_notify protocol; does nothing where no service manager listens.

The protocol is a datagram of `KEY=value` lines to the socket that $NOTIFY_SOCKET names, see sd_notify(3).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from types import TracebackType

BEAT_S = 5.0
"""How often the status line is looked at where no watchdog asks for more."""


class Notifier:
    """The channel to the service manager. Nothing here waits: what cannot be sent now goes with the next message."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises OSError when $NOTIFY_SOCKET cannot be an address at all."""
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._unsent: dict[str, str] = {}
        self._status = ""
        self.watchdog_s = _watchdog_s(environ) if self._address else None

    def __enter__(self) -> Notifier:
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ready(self) -> None:
        """Start-up, or a reload, is complete."""
        self._send(READY="1")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))

    def stopping(self) -> None:
        """The daemon drains and will end."""
        self._send(STOPPING="1")

    def extend(self, seconds: float) -> None:
        """What is under way (start or stop) may take this much longer, counted from now."""
        self._send(EXTEND_TIMEOUT_USEC=str(int(seconds * 1_000_000)))

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent only when it changed."""
        line = " ".join(text.split())
        if line != self._status:
            self._status = line
            self._send(STATUS=line)

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send(WATCHDOG="1")

    async def run(self, is_alive: Callable[[], bool], status: Callable[[], str]) -> None:
        """Feed the watchdog while `is_alive` says so, and keep the status line current, until cancelled.

        It beats twice in the watchdog's time, as sd_watchdog_enabled(3) advises. A loop that hangs cannot
        get here, and loops that make no progress say no: either way systemd restarts the daemon.
        """
        beat = min(BEAT_S, self.watchdog_s / 2) if self.watchdog_s else BEAT_S
        while True:
            self.status(status())
            if self.watchdog_s and is_alive():
                self.alive()
            await asyncio.sleep(beat)

    def _send(self, **values: str) -> None:
        if self._socket is None:
            return
        for key, value in values.items():
            self._unsent.pop(key, None)  # the later value goes to the end
            self._unsent[key] = value
        message = "\n".join(f"{key}={value}" for key, value in self._unsent.items())
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:  # the manager is busy or being replaced; a daemon must not die or wait for that
            return
        self._unsent.clear()


def _address(name: str) -> str | bytes:
    """The socket's address; a leading @ stands for the abstract namespace."""
    if not name:
        return ""
    if not name.startswith(("/", "@")):
        raise OSError(f"NOTIFY_SOCKET must be an absolute path or begin with '@', not {name!r}")
    return b"\0" + os.fsencode(name[1:]) if name.startswith("@") else name


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """The watchdog's time, when there is one and it is meant for this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    return int(usec) / 1_000_000 if usec.isascii() and usec.isdecimal() and int(usec) else None
