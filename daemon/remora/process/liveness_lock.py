"""How a worker shows that it lives: a file named by its uuid, which it keeps locked until its process ends.

So a worker that starts on this host distinguishes an earlier one that was killed from one that is frozen, and need not
wait for the leases of the former. Processes are not asked for by number: a number is used again, and means nothing in
another container. A file that is missing says nothing, since another container's folder is another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path


class LivenessLock:
    """One worker's own file, and a look at those of others on the same store.

    Raises OSError where the folder cannot be used.
    """

    def __init__(self, folder: Path, worker: str, store: str) -> None:
        """`store` tells this store from others: who clears after the dead of one does not know those of another."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder / "workers"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._store = store.encode()
        self._path = self._folder / worker
        # Locked before it has its name: no process may ever see it unlocked.
        unnamed = self._folder / f".{worker}"
        self._descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._descriptor, self._store)
        unnamed.rename(self._path)

    def dead(self) -> frozenset[str]:
        """The uuids of workers whose files are there and unlocked."""
        others = [path for path in self._folder.iterdir() if path.name[0] != "." and path != self._path]
        return frozenset(path.name for path in others if _is_free(path, self._store))

    def forget(self, workers: frozenset[str]) -> None:
        """Delete the files of workers that are dead and hold no locks any more."""
        for worker in workers:
            with contextlib.suppress(OSError):
                (self._folder / worker).unlink()

    def close(self) -> None:
        """End without locks: no other worker needs to look for any."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def remember_store(folder: Path, store: str) -> None:
    """Note that a store has been in use on this host. Raises OSError where the folder cannot be used."""
    noted = folder / "stores"
    noted.mkdir(mode=0o700, parents=True, exist_ok=True)
    (noted / _name(store)).write_text(store)


def has_been_used(folder: Path, store: str) -> bool:
    """Whether a store has been in use on this host, as far as the folder tells: it may be a new one since then."""
    return (folder / "stores" / _name(store)).exists()


def _name(store: str) -> str:
    return hashlib.sha256(store.encode()).hexdigest()[:16]


def _is_free(path: Path, store: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # gone meanwhile, or not known: then the lease decides
    try:
        # Shared, so that several who ask at once do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.read(descriptor, len(store) + 1) == store
    except OSError:
        return False
    finally:
        os.close(descriptor)
