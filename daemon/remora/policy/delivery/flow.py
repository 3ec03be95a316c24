"""How much to read from a shard's queue next, and when to look into an empty one.

These are the decisions of a shard's reader. They take what it knows as a value, and no clock, so that every limit on
reading (a failure, the bytes in memory, a record that is looked for, a backlog) is visible in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

from remora.policy.delivery.pace import idle_delay, passivate_after
from remora.policy.delivery.retry import read_limit

LONG = 4
"""Pages are this many times as long while all queues of a worker have a backlog. A longer page makes fewer and larger
batches and removals, which spares a tenth of the processor time; but packing it holds up whatever else the worker
does, which matters as soon as a topic is delivered as it comes in."""

ALONE_AFTER_S = 1.0
"""For this long no queue of the worker must have been read to its end before pages are long."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What decides on the size of the next read of one shard.

    `list_entries` is the setting, `reach_bytes` the most that the shard may hold as things stand, and `mean_bytes` the
    mean size of its entries. `pages_delivered` counts pages since the last failure. While a refused record is looked
    for it is among the next `read_singly` entries, and a transaction takes `search_entries` of them. `has_backlog` says
    that the last page did not reach the end of the queue, and `caught_up_s` how long ago any queue of the worker was
    read to its end.
    """

    list_entries: int
    reach_bytes: int
    mean_bytes: float
    pages_delivered: int
    read_singly: int = 0
    search_entries: int = 1
    has_backlog: bool = False
    caught_up_s: float = 0.0

    @property
    def half(self) -> int:
        """How many entries are half of what the shard may hold, and one at least: another page is read meanwhile."""
        return max(1, int(self.reach_bytes / 2 / self.mean_bytes))

    @property
    def page_entries(self) -> int:
        """How many entries to read next where entries are sent as they come."""
        if self.read_singly > 0:
            return 1
        wanted = self.list_entries
        if self.has_backlog and self.caught_up_s > ALONE_AFTER_S:
            wanted *= LONG
        return min(read_limit(self.pages_delivered, wanted), self.half)

    def transaction_entries(self, most: int) -> int:
        """How many entries a transaction takes, at most `most`: the shard may hold two of them."""
        entries = min(read_limit(self.pages_delivered, most), self.half)
        return min(entries, self.search_entries) if self.read_singly else entries

    def joining_entries(self, most: int, joined: int) -> int:
        """How many entries to read next that join a transaction of `joined` entries; it may be full, then 0."""
        return max(0, min(self.list_entries, self.transaction_entries(most) - joined))


@dataclass(frozen=True, slots=True)
class EmptyQueue:
    """What decides on the next look into a queue that was empty at the last one.

    `empty_s` is the time since the last entry, `active_shards` how many shards of the worker are active. `notifies`
    says that the store tells of new entries, `has_news` that it has done so, and `all_removed` that every entry that
    was read has left the queue.
    """

    empty_s: float
    active_shards: int
    notifies: bool
    has_news: bool
    all_removed: bool

    def passivates(self, *, keeps_watch: bool) -> bool:
        """Whether it is time that nothing runs for this shard.

        A reader that `keeps_watch` is needed to find new entries where the store does not notify. One whose open route
        is costly ends all the same, and the shard is watched without a route.
        """
        if not self.all_removed or self.has_news or (keeps_watch and not self.notifies):
            return False
        return self.empty_s >= passivate_after(self.active_shards)

    @property
    def waits_for_news(self) -> bool:
        """Whether there is nothing to do for the shard before the store notifies."""
        return self.notifies and self.all_removed

    def pause_s(self, least_s: float, most_s: float) -> float:
        """Seconds to wait for news, in which nothing is looked at, before the shard may be passivated."""
        return min(most_s, max(least_s, passivate_after(self.active_shards) - self.empty_s))

    def look_s(self, least_s: float, most_s: float) -> float:
        """Seconds until the next look into the queue, where that costs the store little."""
        return idle_delay(self.empty_s, least_s, most_s)
