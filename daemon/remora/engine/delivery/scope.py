"""What all parts of one session share: the owned shard, its topic, and the services of the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remora.engine.delivery.letters import dead_letter_all
from remora.engine.delivery.shard_state import ShardState
from remora.engine.delivery.triage import Rejected, same_target
from remora.engine.delivery.worker_context import WorkerContext
from remora.engine.lease import Lease
from remora.model.record import DeadLetter, Page
from remora.model.topic import Source, Topic
from remora.policy.lifetime import Limits


@dataclass(frozen=True, slots=True)
class Scope:
    """One shard on its way to one topic. The topic is a snapshot: a session ends when its attributes change."""

    context: WorkerContext
    lease: Lease
    topic: Topic
    state: ShardState

    @property
    def limits(self) -> Limits:
        """How long and how often an entry is tried, as the settings say now where the topic leaves it open."""
        return self.context.settings.limits.of(self.topic)

    def own_part(self, page: Page) -> Page:
        """The front part of a page that goes to this topic's target; nearly always the page itself."""
        return page if self.topic.source is Source.METADATA else same_target(page, self.topic.target)

    async def dead_letter(self, page: Page, rejected: Sequence[Rejected]) -> Sequence[DeadLetter]:
        """Store the letters of entries of a page; see `dead_letter_all`. Raises StoreError."""
        return await dead_letter_all(self.context, self.lease, self.topic.label, self.state.redelivery, page, rejected)
