"""What delivering needs of a store.

A store is used through its parts, such as `store.queue.read(...)`. The parts that act on a queue take the lock token
that `locks.acquire` returned, and the store checks it in the same operation: OwnershipLost when another worker holds
the lock by now, ShardGone when the queue does not exist or was deleted and created anew; then nothing was read or
changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from remora.model.errors import StoreError
from remora.model.ledger import Balance, Tally
from remora.model.member import Member
from remora.model.record import Attempt, DeadLetter, Page
from remora.model.shard import LockHolder, LockToken, Shard, ShardStats
from remora.model.topic import Topic
from remora.ports.mends import Mending
from remora.ports.orders import Holds, Releases
from remora.ports.peaks import Peaks
from remora.ports.spill import Spilling

MOST_ATTEMPTS = 1024
"""For how many entries of a queue, the oldest ones, a store keeps how often they were tried."""


class Catalog(Protocol):
    """The queues and topics that exist. Reads only; needs no lock."""

    async def shards(self) -> Sequence[Shard]:
        """Every registered queue, in name order. While nothing changed, the answer may be the same object as before."""

    async def topics(self) -> Mapping[Shard, Topic]:
        """The persistent topics whose metadata is readable, by their (first) shard.

        A topic is missing here when its metadata cannot be read or decoded; its queue is then served with the
        attributes that its entries carry. While nothing changed, the answer may be the same object as before.
        """
        ...

    async def changed(self) -> None:
        """Return when told, by whoever tells, that any of it may be another. Called by one task."""

    async def peek(self, shard: Shard) -> bytes | None:
        """The first entry of a queue, read without the lock, or None. Corrupt: CorruptBytes; no queue: ShardGone."""


class Locks(Protocol):
    """The exclusive lock of each shard: at most one holder, for at most one lease unless renewed.

    A lease runs on the store's clock and starts between the call and its answer, so a worker counts it from before the
    call. "Another worker holds it" is an answer and not an error.
    """

    async def acquire(self, shard: Shard, cookie: str, lease_s: float) -> LockToken | LockHolder:
        """Take the lock, or extend one that this very client already has; else say who holds it.

        Sets the queue's incarnation when it has none. Never creates a queue: raises ShardGone.
        """
        ...

    async def renew_all(self, tokens: Sequence[LockToken], lease_s: float) -> Sequence[StoreError | None]:
        """Extend locks that are still held; the answer has for each, in order, None or its error.

        OwnershipLost: the lock is not held any more (a late renewal never becomes a new lock). ShardGone: the queue is
        not the one that was locked. After StoreUnavailable the outcome is unknown.
        """
        ...

    async def release(self, token: LockToken) -> None:
        """Give the lock back. Releasing one that is not held any more, or whose queue is gone, is no error."""
        ...

    async def evict(self, shard: Shard, holder: LockHolder) -> None:
        """Break exactly this holder's lock; no error when it has gone meanwhile."""
        ...

    async def evict_all(self, is_dead: Callable[[str], bool]) -> Sequence[Shard]:
        """Break every lock whose holder's cookie is dead, of all registered queues; returns those that are free now.

        `is_dead` is asked of cookies of any form. A queue that cannot be looked at now keeps its lock.
        """
        ...


class Members(Protocol):
    """The workers that deliver this store's shards, as they told each other lately. Only a lock permits anything."""

    async def announce(self, member: Member, ttl_s: float) -> None:
        """Publish this worker's row, in place of its last one; without another announcement it ends after `ttl_s`."""
        ...

    async def withdraw(self, cookie: str) -> None:
        """Remove a worker's row; an unknown one is no error."""
        ...

    async def live(self) -> Sequence[Member]:
        """Every live worker, in the order of their cookies; also the one that asks, if it has announced itself."""
        ...


class Queue(Protocol):
    """The committed entries of a held shard, oldest first."""

    @property
    def poll_cost_s(self) -> float:
        """About how many seconds of a server's or of this host's processor one look into a queue takes."""
        ...

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        """Up to `limit` entries from position `start` on; from the oldest one when `start` is empty.

        Where the store can tell that an entry is not what was committed, the answer says so.
        """
        ...

    async def remove(self, token: LockToken, upto: bytes, count: int, tally: Tally) -> None:
        """Remove the oldest `count` entries, all those before position `upto`, and add `tally` to the shard's ledger.

        Both happen in one operation or not at all. `upto` comes from an answer to `read` with this token, and the
        tally says of each of the entries why it leaves. Removing up to the queue's front again, or up to what it has
        passed, is no error and counts nothing; a count of 0 only checks the lock. Where the front has moved to a place
        before `upto`, because an earlier removal of unknown outcome was carried out, nothing is removed:
        StoreUnavailable, and the queue is to be read anew from its front.
        """
        ...

    async def expire_all(self, tokens: Sequence[LockToken], older_than_s: float) -> Sequence[StoreError | None]:
        """Free the room of reservations older than this, in several queues; their commits are refused from then on.

        The answer has for each queue, in order, None or its error; a lost lock may go unnoticed where nothing expires.
        A reservation's age is counted from when it was made, on a clock that all who share the store have in common, or
        from when this token's calls first saw it, on the monotonic clock: never as older than it is.
        """
        ...


class Attempts(Protocol):
    """How often entries of a held shard were tried in vain, kept for its next owner."""

    async def note(self, token: LockToken, attempts: Mapping[bytes, Attempt]) -> None:
        """Keep these by position, at most `MOST_ATTEMPTS`, in place of all that were kept before.

        They are forgotten when the last of their entries is removed. Need not survive a power cut.
        """
        ...

    async def noted(self, token: LockToken) -> Mapping[bytes, Attempt]:
        """What was kept last; it may name entries that have been removed since."""
        ...


class Arrivals(Protocol):
    """Notice of new entries, where the store can give it."""

    @property
    def notifies(self) -> bool:
        """Whether `wait` names each queue that gets entries, from any process; otherwise queues have to be polled."""
        ...

    async def wait(self) -> Sequence[Shard]:
        """Wait for commits, and answer which queues got entries since the last answer, each once.

        Called again and again by one task. A named queue may be empty; unless it `notifies`, others need not be.
        """
        ...


class LetterStorage(Protocol):
    """Stores dead letters: entries that leave their queue undelivered. At one position there is one letter at most.

    An entry whose letter is stored is done, though it stands in its queue until it is removed: the shard's owner does
    not send it, and commands leave its letter alone, or it would be sent while it is kept, or twice.
    """

    async def store(self, token: LockToken, *letters: DeadLetter) -> None:
        """Store letters durably. Only when this returns may their entries be removed.

        Raises OwnershipLost when the shard is another owner's who has asked for the `standing` letters. After any error
        some letters may be stored, or will be yet, unless another owner asks before.
        """
        ...

    async def standing(self, token: LockToken) -> Sequence[DeadLetter]:
        """The letters of entries that stand in the held queue yet, in order.

        No earlier owner's letter is stored once this has answered. It costs little, however many letters there are.
        """
        ...

    async def counts(self) -> Mapping[str, int]:
        """How many letters are stored of each queue that has any, held or not. Those of damaged parts are left out."""
        ...


class Inspection(Protocol):
    """Looks at queues from outside: no lock is taken, and a front that moves meanwhile is no error."""

    async def backlog(self, shards: Sequence[Shard]) -> Sequence[ShardStats]:
        """Figures of many queues, those left out that are empty, gone, or cannot be looked at now."""
        ...

    async def stats(self, shard: Shard, *, exact: bool = False) -> ShardStats:
        """Figures of one queue; with `exact` its entries are listed and counted. Raises ShardGone."""
        ...

    def dump(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        """Position and raw bytes of each pending entry, oldest first, without removing any.

        Those of a corrupt entry are CorruptBytes.
        """
        ...


class Balances(Protocol):
    """What was committed to each held queue, measured independently of what is known to have left it."""

    async def balances(self, tokens: Sequence[LockToken]) -> Sequence[Balance]:
        """The balances of held shards, each of one moment and by its oldest entries, which costs little however much
        waits. Those that are lost, gone, or cannot be looked at now are left out."""
        ...


class DeliveryStore(Protocol):
    """A store as the engine sees it, by its parts."""

    @property
    def kind(self) -> str: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def releases(self) -> Releases: ...
    @property
    def holds(self) -> Holds: ...
    @property
    def locks(self) -> Locks: ...
    @property
    def members(self) -> Members: ...
    @property
    def queue(self) -> Queue: ...
    @property
    def attempts(self) -> Attempts: ...
    @property
    def arrivals(self) -> Arrivals: ...
    @property
    def letters(self) -> LetterStorage: ...
    @property
    def inspection(self) -> Inspection: ...
    @property
    def ledger(self) -> Balances: ...
    @property
    def mends(self) -> Mending: ...
    @property
    def spill(self) -> Spilling: ...
    @property
    def peaks(self) -> Peaks: ...
