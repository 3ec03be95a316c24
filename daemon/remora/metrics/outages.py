"""Which topics fail, since when, and which of them for one cause: so that the log has a line for each cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from remora.policy.status.condition import State, state_of_failure

Cause = tuple[str, str]
"""A place, which is a destination or a topic, and what fails there."""


@dataclass(frozen=True, slots=True)
class OutageEnded:
    """Topics failed for a cause, and none does any more: since when, and how often attempts failed."""

    of: Cause
    topics: int
    since: float
    failures: int


@dataclass(slots=True)
class FailingTopic:
    """A topic with those of its queues that fail: each with the kind of its last failure, and when it failed first."""

    of: Cause
    queues: dict[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of failure of the queue that is worst off."""
        return min(self.queues.values(), key=lambda each: (state_of_failure(each[0]) is not State.STOPPED, each[1]))[0]

    @property
    def since(self) -> float:
        """When the first of its queues failed first."""
        return min(since for _, since in self.queues.values())


@dataclass(slots=True)
class _FailedTogether:
    since: float
    topics: set[str] = field(default_factory=set)
    most: int = 0
    failures: int = 0


class FailingTopics:
    """See the module."""

    def __init__(self) -> None:
        self._topics: dict[str, FailingTopic] = {}
        self._groups: dict[Cause, _FailedTogether] = {}

    def topics(self) -> Mapping[str, FailingTopic]:
        """The topics that fail now."""
        return self._topics

    def failed(self, topic: str, queue: str, kind: str, of: Cause, now: float) -> bool:
        """An attempt at a queue failed. Returns whether it is the first one that fails for this cause."""
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = FailingTopic(of)
        elif known.of != of:
            self._leave(topic, known.of)
            known.of = of
        _, since = known.queues.get(queue, (kind, now))
        known.queues[queue] = (kind, since)
        is_new = of not in self._groups
        group = self._groups.setdefault(of, _FailedTogether(known.since))
        group.topics.add(topic)
        group.most = max(group.most, len(group.topics))
        group.failures += 1
        return is_new

    def ended(self, topic: str, queue: str) -> OutageEnded | None:
        """A queue fails no longer. Returns what has ended with it, if it was the last that failed for its cause."""
        known = self._topics.get(topic)
        if known is None or known.queues.pop(queue, None) is None or known.queues:
            return None
        del self._topics[topic]
        return self._leave(topic, known.of)

    def forget(self, topic: str) -> None:
        """The topic is gone."""
        if (known := self._topics.pop(topic, None)) is not None:
            self._leave(topic, known.of)

    def _leave(self, topic: str, of: Cause) -> OutageEnded | None:
        group = self._groups[of]
        group.topics.discard(topic)
        if group.topics:
            return None
        del self._groups[of]
        return OutageEnded(of, group.most, group.since, group.failures)
