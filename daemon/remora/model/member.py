"""The workers as they know each other: which live, how much each owns, and what one offers to another."""

from __future__ import annotations

from dataclasses import dataclass

from remora.model.shard import Shard

WORKER_COOKIE = "remora/"
"""The beginning of every cookie of remora: `remora/<host id>/<boot id>/<worker uuid>`."""

CLAIM_COOKIE = "remora/claim/"
"""The beginning of the cookie of a lock that is kept for the first worker that asks for it."""


def is_workers(cookie: str) -> bool:
    """Whether this is a worker's cookie, and not a gateway's or that of a claim."""
    return cookie.startswith(WORKER_COOKIE) and not cookie.startswith(CLAIM_COOKIE)


@dataclass(frozen=True, slots=True)
class Offer:
    """Shards that their owner is about to give to one other worker."""

    to: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as it announces itself to the others.

    A draining worker takes no shards and gives all away. `offers` are the shards that it is about to release, each for
    one other worker; `expects` are those that others offer to it, from when it has seen the offer until it owns the
    shard and the offer is gone. `shards` counts the locks that it holds, without those that it expects. So in any two
    rows that are read together, each shard on its way shows as such.
    """

    cookie: str
    host: str
    shards: int = 0
    draining: bool = False
    offers: tuple[Offer, ...] = ()
    expects: tuple[Shard, ...] = ()
