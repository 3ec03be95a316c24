"""What commands need of a store beside what delivering needs: dead letters, looks from outside, ledgers, topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from remora.model.ingest import Removed
from remora.model.ledger import Balance, FormerQueue
from remora.model.notification import Definitions, Notification
from remora.model.record import DeadLetter, LetterTotals, Redrive
from remora.model.shard import Shard
from remora.model.topic import SequenceState, Topic
from remora.ports.delivery import Balances, LetterStorage


class Letters(LetterStorage, Protocol):
    """The stored dead letters of all queues."""

    def stored(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every stored letter, of one queue or of all, in position order within each queue and incarnation.

        Where the store has checksums of letters, one whose bytes have changed is a CorruptLetter.
        """
        ...

    async def still_standing(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Those of these letters, of any queues, whose entries stand in their queue yet; may be a moment old."""
        ...

    async def drop(self, letters: Sequence[DeadLetter]) -> int:
        """Delete letters of one queue for good; returns the number deleted.

        Letters that are gone are left out, and those whose entries stand in their queue.
        """
        ...

    async def redrive(self, shard: Shard, topic: Topic | None, again: Sequence[Redrive]) -> int:
        """Commit entries to a queue, in order, and delete their letters, which are of one queue.

        No entry is committed twice, however many callers re-drive it at the same time and however often a call is cut
        short and repeated: letters that are gone are left out, and those whose entries stand in their queue. Returns
        the number re-driven; one that two callers re-drive at once may be counted by both. A topic of remora's own is
        named, as `own_topics.find` gave it.

        Raises ShardGone or TopicUnknown, TopicClosed, QueueFull and StoreFull; then nothing was committed. After
        StoreUnavailable the outcome is unknown, and the same call again finds it out.
        """
        ...

    async def totals(self) -> Mapping[str, LetterTotals]:
        """How many letters of each queue commands have re-driven and dropped."""
        ...


class Ledger(Balances, Protocol):
    """What was committed to each queue beside what left it, and why.

    A queue's ledger begins with the queue, or where it was when remora first kept ledgers there, and ends with it.
    Each removal is booked in its own operation. What a radosgw or another tool removed while no worker of remora held
    the queue is booked as removed elsewhere when the shard is taken.
    """

    async def balance(self, shard: Shard) -> Balance:
        """One shard's balance, looked at without its lock, with all waiting entries looked at. Raises ShardGone."""
        ...


class LayoutStorage(Protocol):
    """The former layouts of remora's own topics, which take no events and are delivered."""

    async def forget_former(self, topic: Topic) -> bool:
        """Finish a change that was cut short, and remove the former layouts where nothing is left in them; whether any
        went.

        The final ledger of each queue is kept before the queue goes. Doing so again, from any process, changes nothing.
        Raises TopicUnknown.
        """
        ...

    async def former_queues(self, topic: Topic) -> Sequence[FormerQueue]:
        """The queues of the topic that went with their layouts, oldest first. Raises TopicUnknown."""
        ...


class OwnTopics(LayoutStorage, Protocol):
    """Topics of remora's own. Those of a radosgw are never touched by this: TopicRefused."""

    async def find(self, name: str) -> Topic | None:
        """The topic of this name as it is now; None where there is none."""
        ...

    async def create(self, topic: Topic) -> Topic:
        """Make a topic with its empty queues, all or nothing, and return it with its id.

        The same call finishes a creation that was cut short. Raises TopicRefused when there is one already, and for a
        topic with a sequence where the store has none.
        """
        ...

    async def change(self, topic: Topic) -> None:
        """Replace the attributes of the topic of this name and id.

        A queue that holds more than a new `capacity_bytes` keeps what it has, and takes no events until it holds less.
        Raises TopicUnknown, and TopicRefused for another number of shards, which `reshard` changes, where a topic would
        begin or cease to number its events, or where the store gives all queues one capacity.
        """
        ...

    async def reshard(self, topic: Topic, shards: int) -> Topic:
        """Give the topic of this name and id another number of shards; return it as it is then.

        From then on events are taken by the queues of the new layout, and none lands in those of the former one. The
        same call finishes a change that was cut short, and does nothing where the topic has that many shards. Raises
        TopicUnknown, and TopicRefused while a former layout has entries or where the store cannot do it.
        """
        ...

    async def sequence(self, topic: Topic) -> SequenceState:
        """How far the sequence of a topic has come, all of one moment.

        `tail` is at least every number that was given before the call. `delivered` may be less than it was before: when
        the oldest entry of a queue is corrupt, until it is dead-lettered, and after a power cut, when entries come
        again. Raises TopicUnknown, and NotSequenced for a topic that numbers no events.
        """
        ...

    async def remove(self, topic: Topic, *, discard: bool) -> Removed:
        """Remove a topic with its queues; entries are only given up with `discard`, else TopicRefused.

        Dead letters stay. Raises TopicUnknown, and TopicNamed while a notification sends to it: whatever becomes of a
        process, no notification that names it is made while it goes.
        """
        ...


class Notifications(Protocol):
    """Which events go to which topics of remora's own, for events that are sent without a topic."""

    async def definitions(self) -> Definitions:
        """All of them as they are now; the same object while nothing changed."""
        ...

    async def change(self, before: Notification | None, after: Notification | None) -> None:
        """Replace a notification of the same id by another; `before` is None where there is to be none yet, and `after`
        where there is to be none any longer.

        Raises NotificationRefused where it is not as `before` says, where there are too many, and where one of the
        topics of `after` is not there or is being removed.
        """
        ...
