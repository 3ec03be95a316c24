"""The workers as they know each other: cookies, which live, how much each owns, and what one offers to another."""

from __future__ import annotations

from dataclasses import dataclass

from remora.model.caller import Caller
from remora.model.shard import Shard

WORKER_COOKIE = "remora/"
"""The beginning of every cookie of remora: `remora/<host id>/<boot id>/<worker uuid>`."""

CLAIM_COOKIE = "remora/claim/"
"""The beginning of the cookie of a lock that is kept for the first worker that asks for it:
`remora/claim/<host id>/<user's number>/<process id>/<uuid>`, without the middle from earlier releases."""

COMMAND_COOKIE = "remora/command/"
"""The beginning of the cookie of a command that announces itself to the workers, to ask them for something."""


def is_workers(cookie: str) -> bool:
    """Whether this is a worker's cookie, and not a gateway's or that of a claim or command."""
    return cookie.startswith(WORKER_COOKIE) and not cookie.startswith((CLAIM_COOKIE, COMMAND_COOKIE))


def claim_cookie(by: Caller, unique: str) -> str:
    """The cookie of a claim by this process, with its host, its user and its number."""
    return f"{CLAIM_COOKIE}{by.host}/{by.uid}/{by.pid}/{unique}"


def claimed_by(cookie: str) -> Caller | None:
    """Who made a claim, as the claim says; None for another cookie, and for a claim that does not say."""
    match cookie.split("/"):
        case ["remora", "claim", host, uid, pid, _] if uid.isdecimal() and pid.isdecimal():
            return Caller(uid=int(uid), pid=int(pid), host=host)
    return None


@dataclass(frozen=True, slots=True)
class Offer:
    """Shards that their owner is about to give to one other worker.

    `load` is None for shards that even out numbers. For shards that move for their load, or by command, it is the part
    of the owner's usage that goes with them, and `bytes` are theirs per second. `moved_s` is None for shards that have
    not come to their owner for their load; else so long before this offer the last of them had.
    """

    to: str
    shards: tuple[Shard, ...]
    load: float | None = None
    bytes: float = 0.0
    moved_s: float | None = None


@dataclass(frozen=True, slots=True)
class HandOverRequest:
    """A command's request to a shard's owner: hand it to the worker with the cookie `to`."""

    shard: Shard
    to: str


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as it announces itself to the others.

    A draining worker takes no shards and gives all away. `offers` are the shards that it is about to release, each for
    one other worker; `expects` are those that others offer to it, from when it has seen the offer until it owns the
    shard and the offer is gone. `shards` counts the locks that it holds, without those that it expects. So in any two
    rows that are read together, each shard on its way shows as such.

    `usage` and `history` are fractions of what the worker can do, now and with its past; `bytes` are per second, of its
    shards together. `usage` is None for a worker that takes no part in balance by load, as those of older releases.
    `skew` counts the shards that it received for their load, without those that it gave: shards on their way count as
    received by who expects them, and as given by who offers them.

    `quarantined` are the destinations that it leaves to others, by the names that the status has for them.

    `wants` is what it wants of the groups of traffic whose limits all workers share, by `policy.split.key_of`: bytes a
    second, or all (None).

    `asks` are those of a command, whose row is no worker's. `hostname` is what people call the host, `release` the
    release of its remora; both are empty in rows of releases that did not have them, which pass over them.
    """

    cookie: str
    host: str
    shards: int = 0
    draining: bool = False
    offers: tuple[Offer, ...] = ()
    expects: tuple[Shard, ...] = ()
    usage: float | None = None
    history: float = 0.0
    bytes: float = 0.0
    skew: int = 0
    quarantined: tuple[str, ...] = ()
    wants: tuple[tuple[int, int | None], ...] = ()
    asks: tuple[HandOverRequest, ...] = ()
    hostname: str = ""
    release: str = ""


@dataclass(frozen=True, slots=True)
class WorkerCookie:
    """A worker process: its host, the host's boot and the worker's id."""

    host: str
    boot: str
    worker: str

    @classmethod
    def parse(cls, text: str) -> WorkerCookie | None:
        """The worker of a cookie; None for every other cookie, such as a gateway's or that of a claim by hand."""
        match text.split("/"):
            case ["remora", host, boot, worker] if host and boot and worker:
                return cls(host, boot, worker)
        return None

    def __str__(self) -> str:
        return f"remora/{self.host}/{self.boot}/{self.worker}"
