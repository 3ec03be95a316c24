"""What the engine asks of the outside world, as small protocols that state their promises.

`storage` implements the first group, `endpoints` the second. Both are written against these docstrings, and
the suites under tests/contract hold every adapter to them. Methods that wait never block the event loop and
never wait for ever: an adapter bounds each call and raises `StoreUnavailable` or `EndpointUnavailable`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from remora.model.errors import StoreError
from remora.model.ingest import Once, Placed, Removed, Room, Stored
from remora.model.ledger import Balance, Tally
from remora.model.member import Member
from remora.model.record import Again, Attempt, DeadLetter, LetterTotals, Listing, Record
from remora.model.shard import Hold, LockHolder, Shard, ShardStats
from remora.model.topic import Target, Topic

# --------------------------------------------------------------------------------------------- storage

MOST_ATTEMPTS = 1024
"""For how many entries of a queue, the oldest ones, a store keeps how often they were tried."""


class Catalog(Protocol):
    """What queues and topics there are. Reads only; nothing here needs or takes a lock."""

    async def shards(self) -> Sequence[Shard]:
        """Every registered queue, in name order, however many there are.

        While nothing changed, the answer may be the very object of the last time.
        """
        ...

    async def topics(self) -> Mapping[Shard, Topic]:
        """The persistent topics whose metadata is readable, by their (first) shard.

        A topic is missing here when its metadata cannot be read or decoded; its queue is then served with
        the attributes that its entries carry. While nothing changed, the answer may be the very object of the
        last time.
        """
        ...

    async def peek(self, shard: Shard) -> bytes | None:
        """The first entry of a queue, read without the lock; None when it is empty, CorruptBytes where it is corrupt.

        Raises ShardGone when there is no such queue.
        """
        ...


class Locks(Protocol):
    """The exclusive lock of each shard: at most one holder, for at most one lease unless renewed.

    A lease runs on the store's clock and starts between the call and its answer, so whoever trusts it counts
    from before the call. "Somebody else holds it" is an answer and not an error.
    """

    async def acquire(self, shard: Shard, cookie: str, lease_s: float) -> Hold | LockHolder:
        """Take the lock, or extend one that this very client already has; else say who holds it.

        Sets the queue's incarnation when it has none. Never creates a queue: raises ShardGone.
        """
        ...

    async def renew(self, hold: Hold, lease_s: float) -> None:
        """Extend a lock that is still held.

        Raises OwnershipLost when it is not (a late renewal never becomes a new lock), and ShardGone when the
        queue is not the one that was locked. After StoreUnavailable the outcome is unknown.
        """
        ...

    async def renew_all(self, holds: Sequence[Hold], lease_s: float) -> Sequence[StoreError | None]:
        """Extend several locks; the answer has for each, in order, None or what `renew` would raise."""
        ...

    async def release(self, hold: Hold) -> None:
        """Give the lock back. Releasing one that is not held any more, or whose queue is gone, is no error."""
        ...

    async def evict(self, shard: Shard, holder: LockHolder) -> None:
        """Break exactly this holder's lock; no error when it has gone meanwhile."""
        ...

    async def evict_all(self, is_dead: Callable[[str], bool]) -> Sequence[Shard]:
        """Break every lock whose holder's cookie is dead, of all registered queues; returns those that are free now.

        `is_dead` is asked of cookies of any form. A queue that cannot be looked at now is passed over: its lease
        decides.
        """
        ...


class Releases(Protocol):
    """The queues of radosgw's that every worker leaves to it, until they are claimed.

    Which ones these are is kept where the workers of all hosts see it, and outlives them. Nothing here keeps a lock
    from being taken: whoever has not read of a release yet gives the queue back when it has.
    """

    async def released(self) -> frozenset[Shard]:
        """These queues; while nothing changed, the answer may be the very object of the last time."""
        ...

    async def set_released(self, shards: Sequence[Shard], *, released: bool) -> None:
        """Leave queues to radosgw from now on, or no more; ValueError for remora's own, to which no radosgw comes."""
        ...


class Members(Protocol):
    """The workers that deliver this store's shards, as they announce themselves to each other.

    Nothing here permits anybody anything: only a lock does. What is read may be a moment old.
    """

    async def announce(self, member: Member, ttl_s: float) -> None:
        """Let the others know of this worker, in place of what it announced before.

        Without another announcement within `ttl_s`, nobody who asks every few seconds counts it any more.
        """
        ...

    async def withdraw(self, cookie: str) -> None:
        """Let nobody count this worker any more; unknown ones are no error."""
        ...

    async def members(self) -> Sequence[Member]:
        """Every live worker, in the order of their cookies; also the one that asks, if it has announced itself."""
        ...


class Queue(Protocol):
    """The committed entries of a held shard, oldest first.

    Each call is checked by the store in the same operation: OwnershipLost when the lock is not held by this
    hold, ShardGone when the queue does not exist or is another incarnation; then nothing was read or changed.
    """

    async def read(self, hold: Hold, start: bytes, limit: int) -> Listing:
        """Up to `limit` entries from position `start` on; from the oldest one when `start` is empty.

        Where the store can tell that an entry is not what was committed, the listing says so.
        """
        ...

    async def remove(self, hold: Hold, upto: bytes, count: int, tally: Tally) -> None:
        """Remove the oldest `count` entries, all those before position `upto`, and add `tally` to the shard's ledger.

        Both happen in one operation or not at all. `upto` must come from a Listing of this hold, and the tally must
        say of each of the entries why it leaves. Removing up to the queue's front again, or up to what it has passed,
        is no error and counts nothing; a count of 0 only checks the hold. Where the front has moved to a place before
        `upto`, because an earlier removal of unknown outcome was carried out, nothing is removed: StoreUnavailable,
        and the queue is to be listed anew from its front.
        """
        ...

    async def expire_reservations(self, hold: Hold, older_than_s: float) -> None:
        """Free the room of reservations older than this; their commits are refused from then on.

        No wall clock counts. A reservation's age is counted from when it was made, on a clock that all who share the
        store have in common, or from when this holder's calls first saw it, on the monotonic clock. So it is never
        taken for older than it is, and to be called often is what frees it in time.
        """
        ...

    async def expire_all(self, holds: Sequence[Hold], older_than_s: float) -> Sequence[StoreError | None]:
        """Expire in several queues; the answer has for each, in order, None or what `expire_reservations` would raise.

        That a hold was lost need not be noticed where there is nothing to expire.
        """
        ...


class Attempts(Protocol):
    """How often entries of a held shard were tried in vain, kept for whoever holds it next. Checked as in Queue."""

    async def note_attempts(self, hold: Hold, attempts: Mapping[bytes, Attempt]) -> None:
        """Keep these by position, at most `MOST_ATTEMPTS`, in place of all that were kept before.

        They are forgotten when the last of their entries is removed. Need not survive a power cut.
        """
        ...

    async def attempts(self, hold: Hold) -> Mapping[bytes, Attempt]:
        """What was kept last; it may name entries that have been removed since."""
        ...


class Arrivals(Protocol):
    """New entries announce themselves, where the store can tell."""

    @property
    def tells_arrivals(self) -> bool:
        """Whether `arrivals` tells of every commit, whoever made it; otherwise queues have to be looked into."""
        ...

    async def arrivals(self) -> Sequence[Shard]:
        """Wait for commits, and answer which queues got entries since the last answer, each once.

        Asked again and again by one caller; only where `tells_arrivals`. A queue may be named although its
        entries have been read meanwhile, never the other way round.
        """
        ...


class DeadLetters(Protocol):
    """Entries that left their queue undelivered. Parking twice at one position keeps one record.

    An entry whose letter is stored is done, though it stands in its queue until it is removed: who holds the shard
    does not send it, and commands leave its letter alone, or it would be sent while it is kept, or twice.
    """

    async def park(self, hold: Hold, *letters: DeadLetter) -> None:
        """Store letters durably. Only when this returns may their entries be removed.

        Raises OwnershipLost when the shard is another holder's who has asked for `standing_letters`. After any error
        some letters may be stored, or will be yet, unless another holder asks before.
        """
        ...

    async def standing_letters(self, hold: Hold) -> Sequence[DeadLetter]:
        """The letters of entries that stand in the held queue yet, in order. Checked as in Queue.

        No earlier holder's letter is stored once this has answered. It costs little, however many letters there are
        of entries that left.
        """
        ...

    def letters(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every stored letter, of one queue or of all, in position order within each queue and incarnation."""
        ...

    async def still_standing(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Those of these letters, of any queues, whose entries stand in their queue yet; may be a moment old."""
        ...

    async def drop(self, letters: Sequence[DeadLetter]) -> int:
        """Forget letters of one queue for good; answers how many of them that was.

        Letters that are gone are left out, and those whose entries stand in their queue.
        """
        ...

    async def redrive(self, shard: Shard, topic: Topic | None, again: Sequence[Again]) -> int:
        """Commit entries to a queue, in order, and forget their letters, which are of one queue.

        No entry is committed twice, whoever re-drives it at the same time and however often this is cut short and
        repeated: letters that are gone are left out, and those whose entries stand in their queue. Answers how many
        were re-driven, of which those that two re-drive at the same time may count for both. A topic of remora's own
        is named, as `own_topic` gave it.

        Raises ShardGone or TopicUnknown, TopicClosed, QueueFull and StoreFull; then nothing was committed. After
        StoreUnavailable the outcome is unknown, and the same call again finds it out.
        """
        ...

    async def letter_totals(self) -> Mapping[str, LetterTotals]:
        """What commands have done with the letters of each queue."""
        ...


class Inspection(Protocol):
    """Looks at queues from outside: no lock is taken, and a front that moves meanwhile is no error."""

    async def stats(self, shard: Shard, *, exact: bool = False) -> ShardStats:
        """Figures of one queue; with `exact` its entries are listed and counted. Raises ShardGone."""
        ...

    async def survey(self, shards: Sequence[Shard]) -> Sequence[ShardStats]:
        """Figures of many queues, those left out that are empty, gone, or cannot be looked at now."""
        ...

    def dump(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        """Position and raw bytes of each pending entry, oldest first, without removing any.

        Those of a corrupt entry are CorruptBytes.
        """
        ...


class Ledger(Protocol):
    """What was committed to each queue, measured independently of what is known to have left it.

    A queue's ledger begins with the queue, or where it was when remora first kept ledgers there, and ends with it.
    Each removal is booked in its own operation. What a radosgw or another tool removed while nobody of remora held
    the queue is booked as removed elsewhere when the shard is taken.
    """

    async def balance(self, shard: Shard) -> Balance:
        """One shard's balance, looked at without its lock, with all waiting entries looked at. Raises ShardGone."""
        ...

    async def balances(self, holds: Sequence[Hold]) -> Sequence[Balance]:
        """The balances of held shards, each of one moment; for this to cost little however much waits, only the oldest
        entries of each are looked at. Those that are lost, gone, or cannot be looked at now are left out.
        """
        ...


class TwoPhase(Protocol):
    """The producing side, as a gateway uses it: room is reserved first, so that a commit cannot be refused."""

    async def reserve(self, shard: Shard, entries: int, nbytes: int) -> int:
        """Reserve room and answer the reservation's id. Raises QueueFull."""
        ...

    async def commit(self, shard: Shard, reservation: int, payloads: Sequence[bytes]) -> None:
        """Append the payloads in order, all or none, and end the reservation."""
        ...

    async def abort(self, shard: Shard, reservation: int) -> None:
        """End the reservation; unknown ones are no error."""
        ...


class Topics(Protocol):
    """Topics of remora's own. Those of a radosgw are never touched by this: TopicRefused."""

    async def own_topic(self, name: str) -> Topic | None:
        """The topic of this name as it is now; None where there is none."""
        ...

    async def create_topic(self, topic: Topic) -> Topic:
        """Make a topic with its empty queues, all or nothing, and answer it with its id.

        A creation that was cut short is finished by the same call. Raises TopicRefused when there is one already.
        """
        ...

    async def change_topic(self, topic: Topic) -> None:
        """Replace the attributes of the topic of this name and id.

        Raises TopicUnknown, and TopicRefused for another number of shards: entries would change their shard, and
        so overtake each other.
        """
        ...

    async def remove_topic(self, topic: Topic, *, discard: bool) -> Removed:
        """Remove a topic with its queues; entries are only given up with `discard`, else TopicRefused.

        Dead letters stay. Raises TopicUnknown.
        """
        ...


class Ingest(Protocol):
    """Storing events in topics of remora's own: in order, all or none over the shards, also over a crash.

    `topic` is as `own_topic` gave it. Raises TopicUnknown when it is not that any more, TopicClosed, QueueFull when
    a queue lacks room, StoreFull, and ValueError for a shard that the topic does not have; then nothing was stored.
    After StoreUnavailable the outcome is unknown. A repeat is answered whatever became of the topic's state and room.
    """

    async def publish(self, topic: Topic, events: Sequence[Placed], once: Once | None = None) -> Stored:
        """Store events; returns when they are durable.

        With `once` the same request again, for at least ten minutes and over a restart, stores nothing and is
        answered as the first time, `repeated`. Raises OnceConflict.
        """
        ...

    async def reserve_events(self, topic: Topic, rooms: Sequence[Room]) -> str:
        """Reserve room in all shards or in none, and answer the reservation's id, `<topic>.<random>`."""
        ...

    async def commit_events(self, topic: Topic, reservation: str, events: Sequence[Placed], digest: bytes) -> Stored:
        """Store exactly the events that room was reserved for, and end the reservation.

        What was promised before the topic was closed is still taken. The same commit again, for at least ten minutes
        and over a restart, stores nothing and is answered as the first time. Raises ReservationUnknown,
        ReservationExpired, ReservationMismatch, ReservationExceeded, and OnceConflict when other events were committed
        before.
        """
        ...

    async def abort_events(self, topic: Topic, reservation: str) -> None:
        """Give the room back. Aborting again is no error; after a commit it is OnceConflict. ReservationUnknown."""
        ...


class DeliveryStore(
    Catalog, Locks, Releases, Members, Queue, Attempts, Arrivals, DeadLetters, Inspection, Ledger, Protocol
):
    """What delivering needs of a store."""


class ShardStore(DeliveryStore, TwoPhase, Topics, Ingest, Protocol):
    """One store with all its faces.

    It is opened and closed by `async with`. Opening does not wait for the store to be reachable; until it is,
    every call raises StoreUnavailable. What can never work raises StoreMisconfigured when it is opened.
    """

    @property
    def description(self) -> str:
        """What this store is and where that was learnt, one line for log and status."""
        ...

    @property
    def damaged(self) -> Mapping[str, str]:
        """The parts that are known to be unreadable, each with the reason; their topics may be missing elsewhere."""
        ...

    @property
    def failing(self) -> Mapping[str, str]:
        """Why the store or a part of it cannot be used now: a sentence by its cause, one of a small closed set.

        `unreachable`, `gone`, `read_only`, `io_error`, `damaged`, or `unusable` for anything else.
        """
        ...

    @property
    def synced(self) -> int:
        """How many transactions it has synced to this host's disk since it was opened; 0 where others store."""
        ...

    async def __aenter__(self) -> ShardStore: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


# ------------------------------------------------------------------------------------------- endpoints


class Parcel(Protocol):
    """Some records of one shard that travel, arrive and fail together.

    `lane` names their order domain: all records of a key fall into one lane. A shard has at most one parcel
    of a lane under way, and hands over the next only when that one has arrived; this alone keeps the order,
    whatever a driver does with failed batches.
    """

    @property
    def lane(self) -> int: ...

    @property
    def records(self) -> Sequence[Record]: ...


class Route(Protocol):
    """The way from one shard to its endpoint, with everything that must not change while records are under way."""

    @property
    def stale(self) -> bool:
        """True when keys would fall into other lanes by now: finish what is under way, then open a new route."""
        ...

    def pack(self, records: Sequence[Record]) -> tuple[list[Parcel], list[tuple[Record, str]]]:
        """Sort records into parcels, in order within each lane; and the refused ones with why.

        Pure: nothing is sent. A refused record cannot be delivered here as far as is known, for example because the
        broker's size limit is below it: it is given up only when it is refused again after `look_again`. Several
        parcels of one lane are to be pushed in the order of the list.
        """
        ...

    async def look_again(self) -> None:
        """Look up anew by what `pack` refuses records; it stands by that from then on.

        Lanes stay as they are. Raises as entering the route does.
        """
        ...

    async def push(self, parcel: Parcel) -> None:
        """Return when every record of the parcel is durable at the endpoint.

        Raises EndpointUnavailable (transient; the parcel may have arrived nevertheless, in whole or in part),
        EndpointMisconfigured, or EntryRefused when a record that `pack` let pass was refused for good.
        A parcel is pushed again as it is only after `pack` was asked anew.
        """
        ...

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Return when the letters are durable where the target wants them in addition to the store's, if anywhere.

        Letters of a key keep their order. Raises EndpointUnavailable (some may have arrived nevertheless) and
        EndpointMisconfigured.
        """
        ...


class ExactRoute(Protocol):
    """The way from one shard to its endpoint in transactions.

    What is committed together becomes visible together, to readers that ask for committed records only, and with it
    the position that was reached. It belongs to one task.
    """

    @property
    def reached(self) -> bytes | None:
        """The position of the next entry to deliver, as the last commit for this incarnation of the queue left it.

        None where there is none. It was read after every earlier route of this shard was fenced, so that nothing of
        theirs can be committed any more.
        """
        ...

    @property
    def stale(self) -> bool:
        """As `Route.stale`; also true when other shards wait for their turn, and this one had its."""
        ...

    def pack(self, records: Sequence[Record]) -> tuple[list[Parcel], list[tuple[Record, str]]]:
        """As `Route.pack`."""
        ...

    async def look_again(self) -> None:
        """As `Route.look_again`; not while a commit is under way."""
        ...

    async def commit(self, parcels: Sequence[Parcel], upto: bytes, letters: Sequence[DeadLetter] = ()) -> None:
        """Return when the parcels, the letters and the position `upto` are committed, in one transaction.

        Parcels of one lane take effect in the order of the list. Letters go where the target wants them in addition to
        the store's, else nowhere.

        Raises EndpointFenced, EndpointUnavailable, EndpointMisconfigured, or EntryRefused when a record that `pack`
        let pass was refused for good. After any of these, and when it is cancelled, the outcome is unknown and the
        route is spent: leave it and enter another one, whose `reached` tells.
        """
        ...


class Endpoint(Protocol):
    """A kind of destination (Kafka), with the connections that its topics share."""

    @property
    def schemes(self) -> frozenset[str]:
        """The URI schemes that it delivers to."""
        ...

    def check(self, target: Target) -> list[str]:
        """Remarks on a target that works otherwise than asked. Raises EndpointMisconfigured with why."""
        ...

    async def up(self, target: Target) -> frozenset[str]:
        """What of the target's destination answers now, by names that stay the same: for Kafka, its brokers.

        Empty where nothing does, for whatever reason; raises nothing. It ends within the time that a connection may
        take, and keeps none. That something is up does not say that it can be delivered to.
        """
        ...

    def route(self, shard: Shard, incarnation: str, target: Target) -> AbstractAsyncContextManager[Route]:
        """Open a way to the target: connects where needed and looks up what packing must know.

        Entering raises EndpointUnavailable or EndpointMisconfigured. What is learnt about one target never
        shows at another, save that equal targets may share a connection.
        """
        ...

    def exact(self, shard: Shard, incarnation: str, target: Target) -> AbstractAsyncContextManager[ExactRoute]:
        """Open a way to the target in transactions; for whoever holds the shard, and nobody else.

        Entering fences every route that was entered for this shard and incarnation before, here or anywhere; what they
        had not committed never becomes visible. Then it reads what they had. It sends nothing. Their number is bounded
        for each destination: where there are more, entering waits for its turn. Raises as `route` does.

        Before the first commit there must be a proof that the shard's lock is still held: an owner that lost it and
        enters would fence the rightful one.
        """
        ...
