"""Workers as they know each other: who lives, how much each holds, and what one offers to another."""

from __future__ import annotations

from dataclasses import dataclass

from remora.model.shard import Shard

WORKER_COOKIE = "remora/"
"""Begins every cookie of remora: `remora/<host id>/<boot id>/<worker uuid>`."""

CLAIM_COOKIE = "remora/claim/"
"""Begins the cookie of a lock that was taken for whichever worker comes first."""


def is_workers(cookie: str) -> bool:
    """Whether this is the cookie of a worker, and not a gateway's or that of a claim."""
    return cookie.startswith(WORKER_COOKIE) and not cookie.startswith(CLAIM_COOKIE)


@dataclass(frozen=True, slots=True)
class Offer:
    """Shards that their owner is about to give to one other worker."""

    to: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as it announces itself to the others.

    A draining one takes nothing and gives everything away. `offers` are the shards that it is about to release, each
    for one other worker; `expects` are those that others offer to it, from when it has seen the offer until it has
    the shard and sees the offer gone. `shards` counts the locks that it holds, without those that it expects: so each
    shard that is on its way shows as such in any two rows that are read together.
    """

    cookie: str
    host: str
    shards: int = 0
    draining: bool = False
    offers: tuple[Offer, ...] = ()
    expects: tuple[Shard, ...] = ()
