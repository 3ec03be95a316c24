"""The embedded store. Start with `store.py`; each face of the store has a file, and `files.py` serves them all."""

from remora.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
