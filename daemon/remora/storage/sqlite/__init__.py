"""The embedded store. Start with `store.py`; each subject has a folder, and all share `files/`."""

from remora.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
