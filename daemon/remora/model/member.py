"""Workers as they know each other: who lives, how much each holds, and what one offers to another."""

from __future__ import annotations

from dataclasses import dataclass

from remora.model.shard import Shard

WORKER_COOKIE = "remora/"
"""Begins every cookie of remora: `remora/<host id>/<boot id>/<worker uuid>`."""

CLAIM_COOKIE = "remora/claim/"
"""Begins the cookie of a lock that was taken for whichever worker comes first."""


@dataclass(frozen=True, slots=True)
class WorkerId:
    """The parts of a worker's cookie."""

    host: str
    boot: str
    worker: str

    @classmethod
    def of(cls, cookie: str) -> WorkerId | None:
        """The worker whose cookie this is; None for a gateway's, and for that of a claim."""
        if cookie.startswith(CLAIM_COOKIE) or not cookie.startswith(WORKER_COOKIE):
            return None
        parts = cookie.split("/")
        return cls(*parts[1:]) if len(parts) == 4 else None


@dataclass(frozen=True, slots=True)
class Offer:
    """Shards that their owner is about to give to one other worker."""

    to: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as it announces itself to the others.

    `shards` counts the locks that it holds. A draining one takes nothing and gives everything away. `offers` are the
    shards that it is about to release, each for one other worker; `expects` are those that others offer to it, once
    it has seen the offer and until it holds them.
    """

    cookie: str
    host: str
    shards: int = 0
    draining: bool = False
    offers: tuple[Offer, ...] = ()
    expects: tuple[Shard, ...] = ()
