"""What operators have ordered, as the store keeps it for the workers of all hosts: releases to radosgw, and holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from remora.model.shard import Shard
from remora.model.topic import Topic, TopicHold


class Releases(Protocol):
    """The queues of radosgw's that every worker leaves to it, until they are claimed.

    The store keeps them where the workers of all hosts see them. A release does not keep a lock from being taken: a
    worker that takes one before it reads of the release gives the queue back when it does.
    """

    async def released(self) -> frozenset[Shard]:
        """These queues; while nothing changed, the answer may be the same object as before."""
        ...

    async def set_released(self, shards: Sequence[Shard], *, released: bool) -> None:
        """Leave queues to radosgw from now on, or no longer; ValueError for remora's own, which no radosgw serves."""
        ...


class Holds(Protocol):
    """The topics that an operator holds, where the workers of all hosts see them, remora's own and radosgw's alike.

    A hold keeps no event from being taken in and no lock from being taken: each worker that reads of it delivers
    nothing of the topic. One that has ended stays until it is replaced or removed.
    """

    async def held(self) -> Mapping[Shard, TopicHold]:
        """All holds, by their topic's first shard; while nothing changed, the answer may be the same object as before.

        Raises StoreError when they were never read: to deliver then would break a hold.
        """
        ...

    async def set_hold(self, topic: Topic, hold: TopicHold | None) -> None:
        """Hold a topic from now on, or no longer; the hold is stored with the topic's id.

        Raises TopicUnknown for a topic of remora's own that is gone, or was made anew; its hold goes with it.
        """
        ...
