"""Hosts and workers in words: by the name that a host has for people, with the id of its locks behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from remora.model.member import Member, WorkerCookie, is_workers
from remora.model.shard import LockHolder

Names = Mapping[str, str]
"""The names of hosts by their ids."""

NO_NAMES: Names = MappingProxyType({})

SHORT = 8
"""So many characters of an id tell hosts and workers apart for people."""

MOST_NAME = 32


def names_of(rows: Iterable[Member]) -> dict[str, str]:
    """The names that workers announce for their hosts; those of earlier releases announce none."""
    return {each.host: each.hostname for each in rows if each.hostname}


def host_text(host: str, names: Names) -> str:
    """`name (id)`; the id alone where no name is known, or where it is the name."""
    name = names.get(host, "")
    return f"{name} ({host[:SHORT]})" if name and name != host else host


def holder_text(entity: str, cookie: str, names: Names) -> str:
    """Who holds a lock: a worker by its host, anybody else as the lock has it."""
    worker = WorkerCookie.parse(cookie)
    if worker is not None:
        return f"worker {worker.worker[:SHORT]} on {host_text(worker.host, names)}"
    kind = "remora" if is_workers(cookie) else "radosgw or other"
    return f"{kind} {entity} ({cookie})"


def owner_text(holder: LockHolder | None, names: Names = NO_NAMES) -> str:
    """Who holds a lock, for a person; `names` are those of hosts."""
    if holder is None:
        return "nobody"
    expired = " expired" if holder.lease_left_s <= 0 else ""
    return f"{holder_text(holder.entity, holder.cookie, names)}{expired}"
