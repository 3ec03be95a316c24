"""The embedded store. Start with `store.py`; each part of the store has a module, and all share `files.py`."""

from remora.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
