"""Whether the process that took a lock still lives: each open store keeps a file locked for as long as it does.

Processes are not asked for by number: a number is used again, and means nothing in another container.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

DIRECTORY = "owners"


class Owner:
    """One open store as a holder of locks. To be made and closed under the directory's lock, as `sweep` is run."""

    def __init__(self, directory: Path) -> None:
        self.entity = f"pid-{os.getpid()}.{secrets.token_hex(8)}"
        self._directory = directory / DIRECTORY
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._path = self._directory / self.entity
        self._dead: set[str] = set()
        # Opened first: who may not list the folder leaves no file in it, and no descriptor.
        self._folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.close(self._folder)
            raise
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:  # of a file system that has no such locks, or none left
            self.close()
            raise

    def is_dead(self, entity: str) -> bool:
        """Whether another's process has ended, or closed its store. One that is merely frozen lives."""
        if entity == self.entity:
            return False
        if entity not in self._dead and self._has_ended(entity):
            self._dead.add(entity)  # no name is ever used again
        return entity in self._dead

    def sweep(self) -> None:
        """Delete the files of those that are dead."""
        for path in self._directory.iterdir():
            if self.is_dead(path.name):
                with suppress(OSError):
                    path.unlink()

    def close(self) -> None:
        """Be dead from now on."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        os.close(self._folder)
        os.close(self._descriptor)

    def _has_ended(self, entity: str) -> bool:
        """Asked of the folder that was opened: at its path may lie nothing, while its disk is away."""
        try:
            descriptor = os.open(entity, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:
            # Without a name for the own file somebody has deleted the files of those that live, too. It is asked of the
            # descriptor: by a path the event loop would block.
            return os.fstat(self._descriptor).st_nlink > 0
        except (OSError, ValueError):  # as of a name that is none
            return False  # not known: then its lease decides
        try:
            # Shared, so that several who ask at once do not take each other for the owner.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True
