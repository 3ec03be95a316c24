"""A small typed binding of librados.so.2 for asyncio.

Why not python3-rados, Debian's binding: a lock belongs to one client instance together with a cookie, and remora
needs the lock, its check and the queue's own call in one compound operation. python3-rados cannot put a class
call into a compound read, has no assert_exists in a write, and hides its handle, so that such calls would have
to come from a second instance, which could not share the first one's locks. So one instance does everything,
through these few ctypes calls. The tests use python3-rados as the independent second client.
"""

from remora.storage.librados.cluster import Cluster, IoCtx
from remora.storage.librados.completions import Completions
from remora.storage.librados.library import LibradosError, load
from remora.storage.librados.operations import MISMATCH, ObjectOperation, ReadOp, WriteOp
from remora.storage.librados.watches import NotifyOp, ObjectWatch, UnwatchOp, WatchOp

__all__ = [
    "MISMATCH",
    "Cluster",
    "Completions",
    "IoCtx",
    "LibradosError",
    "NotifyOp",
    "ObjectOperation",
    "ObjectWatch",
    "ReadOp",
    "UnwatchOp",
    "WatchOp",
    "WriteOp",
    "load",
]
