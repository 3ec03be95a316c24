"""How requests that are retained for those who repeat them go when their time is over: all of them, and soon; the
contract suite has real OSDs for the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remora.model.errors import StoreUnavailable
from remora.model.shard import Shard
from remora.storage.rados.ingest.finisher import Finisher, Recovery, RequestLog
from remora.storage.rados.ingest.intent_log import Intent, IntentPart, IntentState, LoggedIntent
from remora.storage.rados.ingest.schedule import DueAction, ScheduleEntry


@dataclass
class Pool:
    """The requests of a pool with their schedule, and the marks that they have left in queues. The queues that are
    `away` answer nothing."""

    requests: dict[str, LoggedIntent[Intent]] = field(default_factory=dict)
    due: dict[ScheduleEntry, None] = field(default_factory=dict)
    marks: set[tuple[str, str]] = field(default_factory=set)
    away: set[str] = field(default_factory=set)

    def retain(self, name: str, shard: int) -> None:
        """A request with a part in a queue, which was completed long ago."""
        intent = Intent(Intent.VERSION, "t", "id", 0, [IntentPart(shard, 7, 1)])
        self.requests[name] = LoggedIntent(intent, IntentState.COMPLETED)
        self.due[ScheduleEntry(DueAction.DELETE, 0, name)] = None
        self.marks.add((intent.shard(intent.parts[0]).queue, f"{name}.0"))

    async def load(self, name: str) -> LoggedIntent[Intent] | None:
        return self.requests.get(name)

    async def remove(self, name: str) -> None:
        del self.requests[name]

    async def entries(self) -> dict[DueAction, list[ScheduleEntry]]:
        return {action: sorted(each for each in self.due if each.action is action)[:256] for action in DueAction}

    async def retained(self, after: ScheduleEntry) -> list[ScheduleEntry]:
        return sorted(each for each in self.due if each.action is DueAction.DELETE and each > after)[:256]

    async def replace(self, entries: Sequence[ScheduleEntry], new: ScheduleEntry | None) -> None:
        for each in entries:
            self.due.pop(each, None)

    async def forget(self, shard: Shard, topic_id: str, parts: Sequence[str]) -> None:
        if shard.queue in self.away:
            raise StoreUnavailable(f"deleting marks in {shard}: no answer")
        self.marks -= {(shard.queue, part) for part in parts}

    async def look(self) -> None:
        """What a daemon does every few seconds."""
        me: Any = self
        log: RequestLog[Intent] = RequestLog(Intent, me, me, Finisher(me, me, me, me))
        await Recovery(log).look()


async def test_requests_go_as_fast_as_they_come() -> None:
    """One look deletes all requests that were retained for long enough, also of a thousand a second, with their marks
    and what is scheduled for them."""
    pool = Pool()
    for number in range(3_000):
        pool.retain(f"t.once-{number}", number % 3)

    await pool.look()

    assert (pool.requests, pool.due, pool.marks) == ({}, {}, set())


async def test_a_queue_that_does_not_answer_keeps_its_own_requests_only() -> None:
    """A request goes when its marks are gone, however many others stay; those of a queue that is away stay with their
    marks, until it answers."""
    pool = Pool(away={"t.1"})
    for number in range(999):
        pool.retain(f"t.once-{number}", number % 3)

    await pool.look()
    assert set(pool.requests) == {f"t.once-{number}" for number in range(1, 999, 3)}
    assert {queue for queue, _ in pool.marks} == {"t.1"}

    pool.away.clear()
    await pool.look()
    assert (pool.requests, pool.due, pool.marks) == ({}, {}, set())
