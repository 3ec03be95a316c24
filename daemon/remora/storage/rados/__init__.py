"""The RADOS store. Start with `store.py`; each subject has a folder, and all share `cluster/`."""

from remora.storage.rados.logs.log_store import RadosLogStore
from remora.storage.rados.store import RadosStore

__all__ = ["RadosLogStore", "RadosStore"]
