"""The RADOS store. Start with `store.py`; each part of the store has a module, and all share `connection.py`."""

from remora.storage.rados.logs import RadosLogStore
from remora.storage.rados.store import RadosStore

__all__ = ["RadosLogStore", "RadosStore"]
