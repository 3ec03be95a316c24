"""What becomes of the layouts of remora's own topics after a change of the number of shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from remora.model.ledger import FormerQueue
from remora.model.topic import Topic


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
