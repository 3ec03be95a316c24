"""Nothing is done in a shard's name once its lock is not trusted any more, at none of the places that ask.

The store would let all of it pass here, as it does where its clock is behind the worker's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeExactRoute
from engine.test_delivery_parts import Stand, a_stand
from engine.test_dispatching_parts import Parts
from remora.config import DeliverySettings
from remora.engine.admission.givers import Allowance
from remora.engine.delivery.catching_up import catch_up
from remora.engine.delivery.committer import Committer
from remora.engine.delivery.head_expiry import HeadExpiry
from remora.engine.delivery.letters import dead_letter
from remora.engine.delivery.session import Session
from remora.engine.delivery.transaction import Transaction, TransactionPart
from remora.engine.delivery.triage import Rejected, triage
from remora.engine.dispatching.scope import DispatchScope
from remora.engine.lease import LeaseUncertain
from remora.model.record import Page
from remora.policy.admission.limits import ByteLimit
from remora.policy.delivery.lifetime import LifetimeLimits
from remora.policy.ownership.lease import Term

OVER = Term(0.0, 0.0)
LIMITS = LifetimeLimits(max_retries=3)
REFUSED = Rejected(0, "refused", "by the broker")
GARBAGE = b"no entry"


@dataclass
class Place:
    """The parts of the engine that act in the name of one shard, with a page of its entries."""

    stand: Stand
    endpoint: FakeEndpoint
    page: Page

    def head(self) -> HeadExpiry:
        return HeadExpiry(self.stand.scope.context, self.stand.scope.lease, self.stand.scope.state, lambda: False)

    def session(self) -> Session:
        return Session(self.stand.scope, Allowance(ByteLimit(1 << 20)), lambda: None)

    def route(self) -> FakeExactRoute:
        scope = self.stand.scope
        return FakeExactRoute(self.endpoint, scope.lease.shard, scope.lease.token.incarnation, scope.topic.target)

    # ------------------------------------------------------------------------------------ what may be done

    async def read(self) -> None:
        session = self.session()
        async with session.tasks:
            session.reader.fetch(b"", 10)
            await session.reader.fetched()
        assert session.failure is not None
        raise session.failure

    async def store_a_letter(self) -> None:
        await dead_letter(self.stand.scope, self.page, [REFUSED])

    async def find_the_topic(self) -> None:
        scope = DispatchScope(self.stand.scope.context, self.stand.scope.lease, Random(7))
        await Parts(self.stand.store, scope).oldest.find_topic()

    async def look_at_the_head(self) -> None:
        await self.head().look(self.stand.scope.topic, ByteLimit(1 << 20), tried=False, publishes=False)

    async def recall_letters(self) -> None:
        await self.head().recall_letters()

    async def recall_attempts(self) -> None:
        await self.head().recall(LIMITS)

    async def note_attempts(self) -> None:
        head = self.head()
        await head.recall(LIMITS)
        self.stand.scope.state.redelivery.count_attempt([self.page.positions[0]])
        await head.note(LIMITS)

    async def catch_up(self) -> None:
        session = self.session()
        await catch_up(self.stand.scope, session.reader, self.route())

    async def commit(self) -> None:
        session, scope, page = self.session(), self.stand.scope, self.page
        found = triage(page, scope.topic, scope.limits, scope.state.redelivery, scope.context.renderer)
        transaction = Transaction(
            0.0, 0.0, [TransactionPart(page, session.trimmer.add(page), found.records, found.rejected, [])]
        )
        committer = Committer(session, self.route())
        committer.begin_at(transaction.begins_at)
        await committer.commit(transaction)
        assert session.failure is not None
        raise session.failure


Act = Callable[[Place], Awaitable[None]]


@pytest.mark.guarantee("order-per-object")
@pytest.mark.parametrize(
    ("act", "behind", "forbidden"),
    [
        pytest.param(Place.read, "", "read", id="read a page"),
        pytest.param(Place.store_a_letter, "", "store_letters", id="store a letter"),
        pytest.param(Place.find_the_topic, "", "read", id="look for the topic"),
        pytest.param(Place.find_the_topic, "store_letters", "remove", id="remove what is corrupt"),
        pytest.param(Place.look_at_the_head, "", "read", id="look at the head"),
        pytest.param(Place.look_at_the_head, "store_letters", "remove", id="remove what has expired"),
        pytest.param(Place.recall_letters, "", "standing_letters", id="recall letters"),
        pytest.param(Place.recall_attempts, "", "attempts", id="recall attempts"),
        pytest.param(Place.note_attempts, "attempts", "note_attempts", id="note attempts"),
        pytest.param(Place.catch_up, "", "read", id="read what was committed"),
        pytest.param(Place.catch_up, "read", "remove", id="remove what was committed"),
        pytest.param(Place.commit, "", "store_letters", id="store letters of a transaction"),
        pytest.param(Place.commit, "store_letters", "commit", id="commit"),
    ],
)
@in_virtual_time
async def test_nothing_is_done_without_trust(act: Act, behind: str, forbidden: str) -> None:
    """Trust that ends before the step, or while the store is busy with the one before it, keeps the step from being
    taken."""
    stand, endpoint = await a_stand(0, DeliverySettings(time_to_live_s=60)), FakeEndpoint()
    stand.store.queues["t"].append(GARBAGE, raw_entry("k", 1))
    await stand.store.letters.standing(stand.scope.lease.token)
    place = Place(stand, endpoint, await stand.page())
    stand.store.calls.clear()
    done: list[str] = []
    endpoint.journal = done.append

    def after(call: str) -> None:
        if call == behind:
            stand.scope.lease.renewed(OVER)

    stand.store.after = after
    if not behind:
        stand.scope.lease.renewed(OVER)

    with pytest.raises(LeaseUncertain):
        await act(place)

    assert forbidden not in {*stand.store.calls, *done}
    assert not behind or behind in stand.store.calls
