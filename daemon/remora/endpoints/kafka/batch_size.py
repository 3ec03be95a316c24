"""How large batches may be."""

from __future__ import annotations

from remora.endpoints.kafka.batches import built_size
from remora.endpoints.kafka.identity import ConnectionIdentity
from remora.endpoints.kafka.letters import LetterBatch
from remora.endpoints.kafka.lookup import TopicFacts
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable


class SmallerBatches:
    """How large batches may be where the broker's refusals tell of a limit that it does not state."""

    def __init__(self) -> None:
        self._ceilings: dict[tuple[ConnectionIdentity, str], int] = {}
        self._limits: dict[tuple[ConnectionIdentity, str], int] = {}
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

    def limit(self, connection: ConnectionIdentity, topic: str, facts: TopicFacts) -> int:
        """The most bytes of a batch as sent: as the topic states it, or as a letter that was refused alone shows."""
        key = (connection, topic)
        limit = self._limits.get(key, facts.limit_bytes)
        if facts.limit_known and facts.limit_bytes <= limit:
            self._limits.pop(key, None)
        return min(limit, facts.limit_bytes)

    def refused_letters(
        self, connection: ConnectionIdentity, topic: str, codec: int, batch: LetterBatch, what: str
    ) -> EndpointError:
        """Letters were too large though they seemed to fit: from now on fewer go together, or one without its entry."""
        if len(batch) > 1:
            self.refused(connection, topic, batch.nbytes)
        elif batch.records[0].value:
            self._limits[connection, topic] = built_size(codec, batch) - 1
        else:
            return EndpointMisconfigured(f"{what}: its max.message.bytes is too small for a letter")
        return EndpointUnavailable(f"{what}: a batch is larger than the broker accepts", "too_large")

    def is_news(self, connection: ConnectionIdentity, topic: str) -> bool:
        """Whether that the limit is unknown was not said yet."""
        is_news = (connection, topic) not in self._told
        self._told.add((connection, topic))
        return is_news
