"""How large batches may be."""

from __future__ import annotations

from remora.endpoints.kafka.identity import ConnectionIdentity
from remora.endpoints.kafka.lookup import TopicFacts


class SmallerBatches:
    """How large batches may be where the broker's refusals tell of a limit that it does not state."""

    def __init__(self) -> None:
        self._ceilings: dict[tuple[ConnectionIdentity, str], int] = {}
        self._told: set[tuple[ConnectionIdentity, str]] = set()

    def ceiling(self, connection: ConnectionIdentity, topic: str, facts: TopicFacts, batch_bytes: int) -> int:
        """The largest batch to build."""
        key = (connection, topic)
        ceiling = self._ceilings.get(key, batch_bytes)
        if facts.limit_known and facts.limit_bytes <= ceiling:
            self._ceilings.pop(key, None)  # the topic's configuration now explains the refusals
        return min(ceiling, batch_bytes)

    def refused(self, connection: ConnectionIdentity, topic: str, nbytes: int) -> None:
        """A batch of this size, before compression, was too large though it seemed to fit."""
        self._ceilings[connection, topic] = max(1, nbytes // 2)

    def is_news(self, connection: ConnectionIdentity, topic: str) -> bool:
        """Whether that the limit is unknown was not said yet."""
        is_news = (connection, topic) not in self._told
        self._told.add((connection, topic))
        return is_news
