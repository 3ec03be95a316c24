"""The queues of a layout that takes no events yet, or no longer: prepared, activated, sealed, shut; what the shards
that follow them wait for; and what is kept of those that went.

Each step is one operation on one queue object, so that any process may take it, again, and late: it compares what the
step before has left.

    preparing --> open --> sealed --> shut

* Of a queue that is prepared attribute `remora.topic` is `preparing <id>`: nobody reserves or commits there.
* Of one that is sealed `remora.closed` is `sealed`: no version of remora reserves there, and who has reserved commits.
* Of one that is shut `remora.topic` is `removing <id>` beside that, as when a topic is removed: nothing lands there any
  longer, not even what reserves anew for a request that is committed. It is shut while no reservation is open, by an
  operation that demands the version of the look that found none.

A shard waits until nothing is left, for ever, in its parents, which may hold earlier events. A parent is through when
it is shut and empty, or when its final ledger is kept; it stays so. So parents need not be looked at in one moment, and
a worker whose view of the topic is old can only wait, never overtake. Who looks shuts a parent in which no reservation
is open: nobody else has to come by for that.

What is kept of queues that went with their layouts is object `remora.former.<topic's id>`, a key for each queue. A
queue's ledger is written before the queue is removed, when it is final; so a repeat writes the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from remora.bounded import each_of
from remora.codec.queue_ops import ENTRY_OVERHEAD, HEAD_SIZE, decode_head, open_reservations
from remora.model.errors import ShardGone, StoreError, StoreUnavailable
from remora.model.ledger import FormerQueue, Tally
from remora.model.shard import Origin, Shard
from remora.model.topic import generation_of, number_of, own_topic_name
from remora.policy.queues.layouts import parents, waits_for, waits_for_commits
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import INCARNATION, KeyedLocks, RadosPart, all_values, decoded
from remora.storage.rados.cluster.refusals import OWN, QUEUE, ChangedError, MismatchError, MissingError
from remora.storage.rados.cluster.state import StoredState, stored_state
from remora.storage.rados.queues.own_queues import (
    CLOSED,
    MARKED,
    PREPARING,
    REMOVING,
    SEALED,
    TOPIC,
    OwnQueues,
    of_topic,
)
from remora.storage.rados.topics.registry import Registry, StoredTopic, as_topic


@dataclass(frozen=True, slots=True)
class SealedLook:
    """A queue at one moment, of the object's version. Where the OSD does not count, `entries` are estimated."""

    version: int
    is_sealed: bool
    is_shut: bool
    entries: int
    is_counted: bool
    reservations: int
    former: FormerQueue

    @property
    def is_through(self) -> bool:
        """Whether nothing is left in it, for ever."""
        return self.is_shut and not self.entries


class SealedQueues(RadosPart):
    """Takes the steps, and looks at queues."""

    def __init__(self, connection: ClusterConnection, queues: OwnQueues) -> None:
        super().__init__(connection)
        self.queues = queues

    async def prepare(self, shard: Shard, topic_id: str, check: Callable[[], Awaitable[None]]) -> None:
        """Make an empty queue in which nothing lands yet; see `OwnQueues.make`."""
        await self.queues.make(shard, topic_id, check, preparing=True)

    async def activate(self, shard: Shard, topic_id: str) -> None:
        """Let a prepared queue take events. Raises StoreUnavailable where it is neither that nor activated."""
        operation = of_topic(PREPARING + topic_id).set_xattr(TOPIC, topic_id)
        with contextlib.suppress(MismatchError):
            await self._run(operation, shard, f"activating {shard}")
            return
        if await self.queues.owner(shard) != topic_id:
            raise StoreUnavailable(f"activating {shard}: another process has changed the topic meanwhile")

    async def give_up(self, shard: Shard, topic_id: str) -> None:
        """Remove a queue that is prepared for a layout that does not come; no error where it is another one."""
        with contextlib.suppress(MismatchError, ShardGone):
            await self._run(of_topic(PREPARING + topic_id).remove(), shard, f"removing {shard}")

    async def seal(self, shard: Shard, topic_id: str) -> None:
        """Have the queue take no reservation any longer, whether it was closed or not.

        No error where the queue is gone or shut: then another process has gone further, and the registry says so.
        Raises StoreUnavailable where the topic is being removed: that may be given up yet, and the queue take events.
        """
        with contextlib.suppress(ShardGone):
            try:
                await self._run(of_topic(topic_id).set_xattr(CLOSED, SEALED), shard, f"sealing {shard}")
            except MismatchError:
                if not (await self.look(shard)).is_sealed:
                    raise StoreUnavailable(f"sealing {shard}: its topic is being removed") from None

    async def shut(self, shard: Shard, topic_id: str) -> SealedLook:
        """Shut a sealed queue where no reservation is open; the queue as it is then. Raises ShardGone.

        One that nobody has held yet gets its incarnation here, so that the queues behind it can name its end.
        """
        look = await self.look(shard)
        if not look.is_sealed or look.is_shut or look.reservations:
            return look
        incarnation = look.former.incarnation or secrets.token_hex(8)
        operation = of_topic(topic_id).assert_version(look.version).assert_xattr(CLOSED, SEALED)
        operation.set_xattr(TOPIC, REMOVING + topic_id).set_xattr(INCARNATION, incarnation)
        try:
            await self._run(operation, shard, f"shutting {shard}")
        except (ChangedError, MismatchError):
            return await self.look(shard)
        return replace(look, is_shut=True, former=replace(look.former, incarnation=incarnation))

    async def look(self, shard: Shard) -> SealedLook:
        """The queue as it is now. Raises ShardGone."""
        what = f"looking at {shard}"
        operation = ReadOp().assert_exists()
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        version = await self._connection.run(operation, shard.queue, what, QUEUE, self._locator(shard))
        head = decoded(decode_head, content.data, what)
        stored, values = stored_state(head, xattrs.values, what), xattrs.values
        reservations = decoded(lambda found: open_reservations(head, found), values, what)
        is_sealed = values.get(CLOSED, b"") == SEALED.encode()
        is_fenced = values.get(TOPIC, b"").startswith(REMOVING.encode())
        # Where the queue ends, and its ledger, which is final when the queue is through.
        removed, incarnation = (
            stored.state.settled(head).removed,
            values.get(INCARNATION, b"").decode("ascii", "replace"),
        )
        generation = generation_of(shard.queue)
        former = FormerQueue(shard.queue, generation, incarnation, str(head.tail), removed.total, removed)
        entries, is_counted = _entries(stored)
        return SealedLook(version, is_sealed, is_sealed and is_fenced, entries, is_counted, len(reservations), former)

    async def _run(self, operation: WriteOp, shard: Shard, what: str) -> None:
        await self._connection.run(operation, shard.queue, what, MARKED, self._locator(shard))


def _entries(stored: StoredState) -> tuple[int, bool]:
    """The entries in runs and in the ring, and whether they are counted; in a ring that has bytes is one at least."""
    head, spilled = stored.head, stored.state.spill.entries
    if not head.used_bytes:
        return spilled, True
    counted = head.committed_entries
    if counted and counted <= head.used_bytes // ENTRY_OVERHEAD:
        return spilled + counted, True
    return spilled + max(1, stored.state.entries_in(head.used_bytes, head)), False


_OBJECT = "remora.former."


class _StoredFormerQueue(msgspec.Struct, frozen=True):
    """A queue that went, as it is stored. Fields may be added."""

    generation: int
    incarnation: str
    end: str
    committed: int
    removed: dict[str, int]


_decode = msgspec.msgpack.Decoder(_StoredFormerQueue).decode


class FormerQueues(RadosPart):
    """Keeps and reads them, and forgets them with their topic."""

    async def keep(self, topic_id: str, queues: Sequence[FormerQueue]) -> None:
        """Keep what is known of queues that are about to go."""
        values = {}
        for each in queues:
            removed = {str(cause): count for cause, count in each.removed.items() if count}
            stored = _StoredFormerQueue(each.generation, each.incarnation, each.end, each.committed, removed)
            values[each.name] = msgspec.msgpack.encode(stored)
        await self._run(WriteOp().create(exclusive=False).set_omap(values), topic_id)

    async def kept(self, topic_id: str) -> list[FormerQueue]:
        """All queues of a topic that went, by generation and number."""
        found = await all_values(self._connection, _OBJECT + topic_id, self._own)
        queues = []
        try:
            for name, raw in found.items():
                each = _decode(raw)
                ended = each.generation, each.incarnation, each.end, each.committed
                queues.append(FormerQueue(name, *ended, Tally(**each.removed)))
        except (msgspec.MsgspecError, TypeError) as exc:
            raise StoreError(f"what is kept of former queues cannot be read: {exc}") from exc
        return sorted(queues, key=lambda each: (each.generation, number_of(each.name)))

    async def forget(self, topic_id: str) -> None:
        """Forget them all, as their topic goes; no error where there are none."""
        with contextlib.suppress(MissingError):
            await self._run(WriteOp().assert_exists().remove(), topic_id)

    async def _run(self, operation: WriteOp, topic_id: str) -> None:
        oid = _OBJECT + topic_id
        await self._connection.run(operation, oid, f"writing to {oid}", OWN, self._own)


MOST_NAMED = 64
"""A shard that begins says of so many parents where they ended; of more than these, only whose generation they are."""

_FRESH_S = 0.2
"""How long a look at a parent counts for all of its children in this process."""

_MOST_KNOWN = 8192


@dataclass(frozen=True, slots=True)
class Precedence:
    """What comes before a shard: `why` it has to wait, empty where nothing does, and then where its parents ended.

    `after` is as in a Page.
    """

    why: str
    after: bytes = b""


NOTHING_BEFORE = Precedence("")


class Parents:
    """Looks at the parents of shards, and remembers those that are through."""

    def __init__(
        self, registry: Registry, sealed: SealedQueues, former: FormerQueues, ring: Callable[[Shard], None]
    ) -> None:
        """`ring` tells the owner of a shard, in any process, to look again."""
        self._ring = ring
        self._registry, self._sealed, self._former = registry, sealed, former
        self._looks: dict[tuple[str, Shard], tuple[float, SealedLook]] = {}
        self._turns: KeyedLocks[str] = KeyedLocks()

    async def before(self, shard: Shard) -> Precedence:
        """What comes before a shard of a re-sharded topic. Raises StoreError."""
        name, generation = own_topic_name(shard.queue), generation_of(shard.queue)
        found = await self._registry.find(name)
        if found is None:
            return NOTHING_BEFORE  # whoever reads the queue finds it gone
        if found.stored.generation < generation:
            return Precedence(f"waits for generation {generation} to be opened")
        async with self._turns.of(name):
            return await self._precedence(name, found.stored, shard, generation)

    def emptied(self, shard: Shard) -> None:
        """The last entry of a held queue was removed: where it is a parent, the shards behind it look again at once.

        A reservation may be open in it yet; then they wait on, and look by themselves.
        """
        generation, first = generation_of(shard.queue), Shard(own_topic_name(shard.queue), Origin.REMORA)
        topic = self._registry.last_known.topics.get(first)
        old = next((each for each in topic.former if each.generation == generation), None) if topic else None
        if topic is None or old is None:
            return
        self._looks.pop((topic.id, shard), None)
        for number in parents(topic.shards, old.shards, number_of(shard.queue)):  # the same seen from the other side
            self._ring(topic.shard(number))

    async def _precedence(self, name: str, stored: StoredTopic, shard: Shard, generation: int) -> Precedence:
        topic, number = as_topic(name, stored), number_of(shard.queue)
        new = next((each.shards for each in topic.layouts if each.generation == generation), 1)
        old = next((each for each in topic.former if each.generation < generation), None)
        if old is None:
            kept = await self._former.kept(stored.id)
            before = max((each.generation for each in kept if each.generation < generation), default=-1)
            went = [each for each in kept if each.generation == before]
            return Precedence("", _ends([went[i] for i in parents(len(went), new, number)] if went else []))
        shards = topic.shards_of(old)
        waited_for = [shards[i] for i in parents(old.shards, new, number)]
        looks = await self._look(stored.id, waited_for)
        known: dict[str, FormerQueue] = {}
        if any(isinstance(look, ShardGone) for look in looks):
            known = {each.name: each for each in await self._former.kept(stored.id)}
        return _judged(old.generation, waited_for, looks, known)

    async def _look(self, topic_id: str, shards: Sequence[Shard]) -> list[SealedLook | ShardGone]:
        """The parents as they are now, or were a moment ago; those that are through stay so."""
        now = asyncio.get_running_loop().time()
        if len(self._looks) > _MOST_KNOWN:
            self._looks.clear()

        async def one(shard: Shard) -> SealedLook:
            at, known = self._looks.get((topic_id, shard), (0.0, None))
            if known is None or not (known.is_through or now - at < _FRESH_S):
                known = await self._sealed.shut(shard, topic_id)
                self._looks[topic_id, shard] = now, known
            return known

        found: list[SealedLook | ShardGone] = []
        for answer in await each_of(shards, one, StoreError):
            if not isinstance(answer, (SealedLook, ShardGone)):
                raise answer
            found.append(answer)
        return found


def _judged(
    generation: int, shards: Sequence[Shard], looks: Sequence[SealedLook | ShardGone], known: dict[str, FormerQueue]
) -> Precedence:
    """What these looks at a shard's parents say; `known` are the queues that went."""
    ends: list[FormerQueue] = []
    held: list[str] = []
    for shard, look in zip(shards, looks, strict=True):
        if isinstance(look, ShardGone):
            if shard.queue in known:
                ends.append(known[shard.queue])
            else:
                held.append(waits_for_commits(shard.queue, generation, 0, 0))
        elif look.is_through:
            ends.append(look.former)
        elif look.entries:
            held.insert(0, waits_for(shard.queue, generation, look.entries, 0, is_counted=look.is_counted))
        else:
            held.append(waits_for_commits(shard.queue, generation, look.reservations, 0))
    if not held:
        return Precedence("", _ends(ends))
    return Precedence(f"{held[0]}, and {len(held) - 1} more" if len(held) > 1 else held[0])


def _ends(queues: Sequence[FormerQueue]) -> bytes:
    """Where queues ended, as the header `remora-after` has it; those that nobody ever delivered from have no chain."""
    told = [each for each in queues if each.incarnation]
    if len(told) > MOST_NAMED:
        return b"generation=%d" % told[0].generation
    return ",".join(f"{each.name}={each.incarnation}:{each.end}" for each in told).encode()
