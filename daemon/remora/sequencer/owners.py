"""Which sequencers of this host have ended, so that the next one need not wait for their leases.

The embedded store knows that by itself, from the files of its owners. On RADOS a server is known by its file in
`sequencer.run_directory`, which it keeps locked until its process ends; a server that is frozen keeps it, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from remora.config.settings import Settings
from remora.process.liveness_lock import LivenessLock

LEASES_KEPT = 2
"""For this many leases the file of a server that has ended is kept. Its last lock ends within one."""

_log = logging.getLogger(__name__)


class Owners:
    """The servers of this host; none is known to have ended before `present` is entered."""

    def __init__(self, settings: Settings) -> None:
        self._folder = Path(settings.sequencer.run_directory)
        self._store = settings.store_name
        self._needs_files = settings.store.kind == "rados"
        self._kept_s = LEASES_KEPT * settings.sequencer.lease_s
        self._lock: LivenessLock | None = None
        self._dead_since: dict[str, float] = {}

    def is_dead(self, owner: str) -> bool:
        """Whether a server of this host had this name, and has ended."""
        with suppress(OSError):  # the folder was taken away: then leases decide
            return self._lock is not None and owner in self._lock.dead()
        return False

    def sweep(self, now: float) -> None:
        """Delete the files of servers that ended so long ago that their locks have ended by themselves; to be called
        again and again, with the time of a monotonic clock in seconds."""
        if self._lock is None:
            return
        with suppress(OSError):  # the folder was taken away: then leases decide
            self._dead_since = {name: self._dead_since.get(name, now) for name in self._lock.dead()}
            ended = (name for name, since in self._dead_since.items() if now - since > self._kept_s)
            self._lock.forget(frozenset(ended))

    @contextmanager
    def present(self, owner: str) -> Iterator[None]:
        """Show that a server of this name lives while the block runs; without its folder leases alone decide."""
        if self._needs_files:
            try:
                self._lock = LivenessLock(self._folder, owner, self._store)
            except OSError as exc:
                _log.warning(
                    "after a kill the next sequencer waits for the lease: sequencer.run_directory cannot be used: %s",
                    exc,
                    extra={"event": "run_directory_unusable"},
                )
        try:
            yield
        finally:
            if self._lock is not None:
                self._lock.close()
