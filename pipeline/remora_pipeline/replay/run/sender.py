"""Sends events when they are due: an open loop across keys, and a closed one within each key.

An event waits for the one before it of its lane to be answered for, and for nothing else, as long as there is room:
at most `concurrency` requests are under way, and at most `window` events are due and not answered for. What is due
together goes into one request where the target takes more than one event. The schedule is never shifted: what could
not be sent in time is sent late, and the journal has its lateness.

A request that was not taken is sent again by its own task, in its own slot, before any later event of its lanes.
Nothing is sent a second time that may have happened, unless the target can tell a repetition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from remora.policy.delivery.retry import MOST_LIMITED_S, Backoff, Patience
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.run.journal import FinalOutcome, Line, SendIntent
from remora_pipeline.replay.run.lateness import rounded
from remora_pipeline.replay.run.limited_time import LimitedTime
from remora_pipeline.replay.run.schedule import DueEvent
from remora_pipeline.replay.run.targets import AttemptResult, OpenTarget, TargetAnswer
from remora_pipeline.replay.shape import ACKED, DROPPED, REJECTED, UNKNOWN

WAIT, DROP, ABORT = "wait", "drop", "abort"
OVERLOADS = (WAIT, DROP, ABORT)
"""What is done with an event that is due while the window is full: sent late, left out, or the end of the replay."""

_BACKOFF = Backoff(base_s=0.05, cap_s=2.0)


class Overloaded(ReplayError):
    """The window is full, and that is to end the replay."""


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """How much is under way in one task, and for how long a request is tried.

    The seconds for which it waits for rate limits count by themselves: they may be `limited_s`.
    For `linger_s` events are gathered before the next request, where the target takes several.
    """

    concurrency: int = 32
    window: int = 10_000
    overload: str = WAIT
    retry_s: float = 60.0
    limited_s: float = MOST_LIMITED_S
    linger_s: float = 0.0005


@dataclass(frozen=True, slots=True)
class WallClock:
    """The loop's clock in microseconds since 1970: it runs evenly when the host's clock is changed."""

    epoch_us: int
    """What the clock of the wall says when the loop's says 0."""
    time: Callable[[], float]

    def now_us(self) -> int:
        """Now."""
        return self.epoch_us + int(self.time() * 1e6)

    async def until(self, when_us: int) -> int:
        """Now, when it is that time."""
        if (left_us := when_us - self.now_us()) > 0:
            await asyncio.sleep(left_us / 1e6)
        return self.now_us()


class Writes(Protocol):
    """A journal."""

    def write(self, line: Line) -> None:
        """Append a line."""


@dataclass
class TaskTally:
    """What came of the events of one task."""

    offered: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys((ACKED, REJECTED, UNKNOWN, DROPPED), 0))
    lateness: dict[int, int] = field(default_factory=dict)
    """How many first attempts were late, by microseconds (lateness.rounded), without the time of waits for limits."""


@dataclass(slots=True)
class RateLimitWaits:
    """How often a request waited for a rate limit, and for how long.

    `held_us` has for its events how much of the time from when they were due to when they were sent first others of
    the task waited so; those without such a time are not there.
    """

    number: int = 0
    us: int = 0
    held_us: dict[int, int] = field(default_factory=dict)

    def add(self, us: int) -> None:
        """One more."""
        self.number += 1
        self.us += us


class ReplaySender:
    """One task's, for one use. `name` begins the names of its requests, and is unlike that of any other task."""

    def __init__(self, target: OpenTarget, journal: Writes, clock: WallClock, limits: TaskLimits, name: str) -> None:
        self._target, self._journal, self._clock, self._limits, self._name = target, journal, clock, limits, name
        self._group: asyncio.TaskGroup | None = None
        self._lanes: dict[int, list[DueEvent]] = {}
        """What waits in each lane. One that is here and not in `ready` has a request under way."""
        self._ready: deque[int] = deque()
        self._slots = limits.concurrency
        self._held = 0
        self._room = asyncio.Event()
        self._gathered_us = 0
        self._dropped: list[int] = []
        self._requests = 0
        self._limited = LimitedTime()
        self._rng = Random(name)  # noqa: S311  # spreads repetitions, guards nothing
        self.tally = TaskTally()

    async def run(self, source: AsyncIterator[Sequence[DueEvent]]) -> TaskTally:
        """Send all events, which come in the order in which they are due; returns when all are answered for."""
        try:
            async with asyncio.TaskGroup() as self._group:
                async for events in source:
                    await self._offer(events)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return self.tally

    # -------------------------------------------------------------------------------------- what is due

    async def _offer(self, events: Sequence[DueEvent]) -> None:
        """Take events as they become due."""
        lanes, ready, window = self._lanes, self._ready, self._limits.window
        now_us = self._clock.now_us()
        for event in events:
            if event.due_us > now_us:
                self._dispatch()
                due_us = event.due_us
                if self._target.batch > 1:
                    due_us = max(due_us, self._gathered_us + int(self._limits.linger_s * 1e6))
                now_us = self._gathered_us = await self._clock.until(due_us)
            if self._held >= window and not await self._make_room(event):
                continue
            self._held += 1
            waiting = lanes.get(event.lane)
            if waiting is None:
                lanes[event.lane] = [event]
                ready.append(event.lane)
            else:
                waiting.append(event)
        self.tally.offered += len(events)
        self._dispatch()

    async def _make_room(self, event: DueEvent) -> bool:
        """Return when there is room in the window; False where the event is left out instead."""
        self._dispatch()
        if self._limits.overload == DROP:
            await asyncio.sleep(0)
            if self._held >= self._limits.window:
                self._dropped.append(event.seq)
                self.tally.outcomes[DROPPED] += 1
                return False
        elif self._limits.overload == ABORT:
            raise Overloaded(
                f"event {event.seq} is due, and {self._held} events before it are not answered for: the target does"
                " not keep up with this speed"
            )
        while self._held >= self._limits.window:
            self._room.clear()
            await self._room.wait()
        return True

    # --------------------------------------------------------------------------------------- requests

    def _dispatch(self) -> None:
        """Begin as many requests as may be under way."""
        if self._dropped:
            self._journal.write(FinalOutcome(tuple(self._dropped), DROPPED, 0))
            self._dropped.clear()
        assert self._group is not None
        while self._ready and self._slots:
            events, lanes = self._next_request()
            self._slots -= 1
            self._group.create_task(self._finish(events, lanes))

    def _next_request(self) -> tuple[list[DueEvent], list[int]]:
        """The events of a request, in the order of the trace, and the lanes that it holds until it is finished."""
        events: list[DueEvent] = []
        held: list[int] = []
        room = self._target.batch
        while self._ready and room:
            lane = self._ready.popleft()
            waiting = self._lanes[lane]
            events += waiting[:room]
            self._lanes[lane] = waiting[room:]
            room = self._target.batch - len(events)
            held.append(lane)
        events.sort()
        return events, held

    async def _finish(self, events: list[DueEvent], lanes: list[int]) -> None:
        """See a request through, and go on with what waited for it."""
        await self._request(events)
        self._held -= len(events)
        self._slots += 1
        for lane in lanes:
            if self._lanes[lane]:
                self._ready.append(lane)
            else:
                del self._lanes[lane]
        self._room.set()
        self._dispatch()

    async def _request(self, events: list[DueEvent]) -> None:
        """Try until every one of the events has an outcome."""
        name, tries, may_have_happened = self._next_name(), 0, False
        first_us = self._clock.now_us()
        held = ((event.seq, self._limited.within(event.due_us, first_us)) for event in events)
        waits = RateLimitWaits(held_us={seq: us for seq, us in held if us})
        counts = self.tally.lateness
        for event in events:
            late = rounded(first_us - event.due_us - waits.held_us.get(event.seq, 0))
            counts[late] = counts.get(late, 0) + 1
        sent_us = first_us
        while True:
            tries += 1
            self._journal.write(SendIntent(tuple([event.seq for event in events]), sent_us, tries))
            answer = await self._target.send(events, name)
            if answer.result is AttemptResult.DONE:
                self._close(events, ACKED, first_us, tries, answer, waits)
                return
            if answer.culprit is not None and len(events) > 1:
                alone = replace(waits, number=0, us=0)
                self._close([events.pop(answer.culprit)], REJECTED, first_us, tries, answer, alone)
                name, sent_us = self._next_name(), self._clock.now_us()
                continue
            may_have_happened = may_have_happened or answer.result is AttemptResult.LOST
            final = UNKNOWN if may_have_happened else REJECTED
            wait_us = self._pause_us(answer, tries)
            if wait_us is None or self._is_over(self._clock.now_us() - first_us, waits, wait_us, answer):
                self._close(events, final, first_us, tries, answer, waits)
                return
            if answer.is_limited:
                waits.add(wait_us)
            sent_us = await self._wait(wait_us, is_limited=answer.is_limited)

    async def _wait(self, wait_us: int, *, is_limited: bool) -> int:
        """Now, when a request may be sent again."""
        begins_us = self._clock.now_us()
        if not is_limited:
            return await self._clock.until(begins_us + wait_us)
        self._limited.begin(begins_us)
        try:
            return await self._clock.until(begins_us + wait_us)
        finally:
            self._limited.end(self._clock.now_us())

    def _is_over(self, elapsed_us: int, waits: RateLimitWaits, wait_us: int, answer: TargetAnswer) -> bool:
        """Whether a request is given up instead of waiting once more."""
        patience = Patience(self._limits.retry_s, self._limits.limited_s)
        return patience.is_over(elapsed_us / 1e6, waits.us / 1e6, wait_us / 1e6, is_limited=answer.is_limited)

    def _pause_us(self, answer: TargetAnswer, tries: int) -> int | None:
        """How long to wait before the request is sent again; None where it is not."""
        if answer.result is AttemptResult.REFUSED or (
            answer.result is AttemptResult.LOST and not self._target.is_repeatable
        ):
            return None
        return int(1e6 * max(answer.retry_after_s, _BACKOFF.delay(tries, self._rng.random())))

    def _next_name(self) -> str:
        self._requests += 1
        return f"{self._name}/{self._requests}"

    def _close(
        self,
        events: Sequence[DueEvent],
        outcome: str,
        sent_us: int,
        tries: int,
        answer: TargetAnswer,
        waits: RateLimitWaits,
    ) -> None:
        """Write what is final of events; the numbers of `waits` are those of their request, once."""
        self.tally.outcomes[outcome] += len(events)
        seqs = tuple([event.seq for event in events])
        done_us = self._clock.now_us()
        held_us = tuple([waits.held_us.get(seq, 0) for seq in seqs]) if waits.held_us else ()
        self._journal.write(
            FinalOutcome(
                seqs, outcome, tries, sent_us, done_us, answer.status, answer.error, waits.number, waits.us, held_us
            )
        )
