"""Translates the errno of a refused operation into an error of the store."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from types import MappingProxyType

from remora.model.errors import (
    OwnershipLost,
    QueueFull,
    ShardGone,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreUnavailable,
)
from remora.storage.librados import MISMATCH


class FrontMovedError(StoreError):
    """A queue's front has moved since it was read; never leaves the store."""


class ChangedError(StoreError):
    """An object has changed since it was read; never leaves the store."""


class ExistsError(StoreError):
    """An object to be created exists already; never leaves the store."""


class MismatchError(StoreError):
    """An attribute or a key does not have the value that the operation demands; never leaves the store."""


class MissingError(StoreError):
    """An object or a pool does not exist; never leaves the store."""


class PoolMissing(StoreMisconfigured):
    """There is no pool of this name."""


Refusals = Mapping[int, tuple[type[StoreError], str]]
"""The errors that single errnos mean for one kind of operation, each with the words after the operation's name."""

PLAIN: Refusals = MappingProxyType(
    {
        errno.ENOENT: (MissingError, "there is no such object"),
    }
)

QUEUE: Refusals = MappingProxyType(
    {
        errno.ENOENT: (ShardGone, "there is no such queue"),
        errno.EINVAL: (StoreError, "the object is no queue, or it is damaged"),
    }
)

_FRONT_BYTES = 16

UNLOCKED: Refusals = MappingProxyType(
    {
        **QUEUE,
        **{MISMATCH + byte: (FrontMovedError, "its front has moved") for byte in range(_FRONT_BYTES)},
    }
)

HELD: Refusals = MappingProxyType(
    {
        **QUEUE,
        errno.ECANCELED: (ShardGone, "the queue is another one than was locked"),
        errno.EBUSY: (OwnershipLost, "its lock is not held any more"),
    }
)

FULL: Refusals = MappingProxyType(
    {
        errno.ENOSPC: (StoreFull, "the cluster is full"),
        errno.EDQUOT: (StoreFull, "the pool's quota is used up"),
    }
)

OWN: Refusals = MappingProxyType(
    {
        **PLAIN,
        **FULL,
        errno.EEXIST: (ExistsError, "there is one already"),
        errno.ECANCELED: (MismatchError, "it is not as it was expected to be"),
    }
)

RESERVED: Refusals = MappingProxyType(
    {
        **QUEUE,
        **FULL,
        errno.ENOSPC: (QueueFull, "the queue has no room for it"),
        errno.ERANGE: (ChangedError, "the queue has changed"),
        errno.EOVERFLOW: (ChangedError, "the queue has been made anew"),
        errno.ECANCELED: (MismatchError, "the queue is another one, or closed"),
    }
)

_DENIED = (errno.EPERM, errno.EACCES)

_AWAY = (
    errno.ETIMEDOUT,
    errno.ESHUTDOWN,  # also means: this client is blocklisted
    errno.ENOTCONN,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EAGAIN,
    errno.EIO,
    errno.ENOSPC,
    errno.EDQUOT,
)


def refusal(code: int, what: str, user: str, where: str, table: Refusals) -> StoreError:
    """The error for an operation that failed with this errno."""
    meaning = table.get(code)
    if meaning is not None:
        kind, words = meaning
        return kind(f"{what}: {words}")
    if code in _DENIED:
        return StoreMisconfigured(f"{what}: {user} has no permission for this{where and f' in pool {where}'}")
    kind = StoreUnavailable if code in _AWAY else StoreError
    return kind(f"{what}: {os.strerror(code)} [{errno.errorcode.get(code, code)}]")
