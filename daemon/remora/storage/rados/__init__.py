"""The RADOS store. Start with `store.py`; each face of the store has a file, and `connection.py` serves them all."""

from remora.storage.rados.store import RadosStore

__all__ = ["RadosStore"]
