"""What a shard of a re-sharded topic waits for: the entries of its parents, which may be earlier ones of its keys.

The store decides: it looks at a queue and its parents in one moment, and shows the owner of a queue that is held back
an empty page with the reason. What is held back has no session, since that would keep a way open for nothing.
"""

from __future__ import annotations

from remora.engine.dispatching.scope import DispatchScope
from remora.engine.dispatching.standing import Standing
from remora.model.topic import Topic
from remora.policy.admission.holds import hold_text
from remora.policy.status.condition import State
from remora.policy.status.stages import EventStage

RECHECK_S, POLLED_RECHECK_S = 2.0, 0.5
"""How often a shard that is held back looks again. A store that can tell of the end tells at once: there it is for the
figure in the status, and for news that was lost with the process that would have told. Other stores are asked more
often, since that is how long an event of the shard is late for it."""


class Succession:
    """See the module."""

    def __init__(self, scope: DispatchScope, standing: Standing) -> None:
        self._scope = scope
        self._standing = standing
        self._is_through = False
        self._since: float | None = None

    async def may_deliver(self, topic: Topic) -> bool:
        """Whether nothing comes before this shard's entries; else it has waited a while for what does.

        Once it is through it stays so: nothing lands in a parent. A topic with one layout is not even looked at.
        """
        if self._is_through or not topic.generation:
            return True
        scope, telemetry = self._scope, self._scope.context.telemetry
        scope.lease.require_trust()
        news = scope.state.progress.news
        news.clear()
        page = await scope.context.store.queue.read(scope.lease.token, b"", 1)
        if not page.held_back:
            self._is_through = True
            if self._since is not None:
                waited_s = telemetry.clock() - self._since
                telemetry.stage_took(EventStage.WAIT_PARENTS, topic.target.scheme, waited_s)
            return True
        if self._since is None:
            self._since = telemetry.clock()
        if (hold := scope.context.catalogue.hold(scope.lease.shard)) is not None:
            self._standing.held(hold_text(hold))
        else:
            self._standing.enter(State.WAITING, page.held_back)
        is_told = scope.context.store.arrivals.notifies
        await scope.first_of(RECHECK_S if is_told else POLLED_RECHECK_S, news.wait())
        return False
