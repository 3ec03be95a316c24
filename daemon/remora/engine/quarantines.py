"""The destinations that fail this worker, and which of their shards may try them meanwhile.

`policy.quarantine` decides which destinations these are, and which topics theirs refuses. Of the shards that such a
quarantine holds back a single one tries at a time, at its own back-off: one of the topic that has tried least often, of
its shards that have tried least often that one whose oldest entry waits longest. So none that fails for a reason of its
own keeps the others from trying. Those wait without an attempt, and hold nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from random import Random

from remora.config.workers import QuarantineSettings
from remora.metrics import Telemetry
from remora.model.caller import NOBODY, Caller
from remora.model.topic import Topic
from remora.policy.ownership import row_room
from remora.policy.ownership.quarantine import ANSWERED, Quarantine, is_meant, is_topic, topic_place

TURN_S = 60.0
"""A shard that has neither succeeded nor failed for this long lets the next one try beside it."""

EDGE_S = 0.001
"""A timer may come so much before its time, by the rounding of sums."""

MOST_NAMED = 16
"""Destinations that are named to other workers at most."""


class Turns:
    """Lets one shard of a destination, or of one topic there, try at a time."""

    def __init__(self, name: str, errors: int) -> None:
        """`errors` are those of the window that began the quarantine of this name."""
        self.why = "its destination fails, and another queue tries it"
        if is_topic(name):
            self.why = "its endpoint refuses the topic's events, and another of its queues tries it"
        self.errors = errors
        self.trier: object | None = None
        self.since = self.rests_until = 0.0
        self.is_over = False
        self._waiting: dict[object, tuple[str, float, asyncio.Event]] = {}
        self._tries = Counter[object]()
        self._tries_of = Counter[str]()

    def take(self, shard: object, topic: str, since: float, now: float) -> bool:
        """Whether it is this shard's turn; if not it waits, and comes after those that tried less.

        `since` is when its oldest entry was committed: among equals the earliest comes first. `now` is the loop's time.
        """
        if self.trier is None:
            self._begin(shard, topic, now)
        if self.trier is not shard:
            self._waiting.setdefault(shard, (topic, since, asyncio.Event()))
            return False
        self._waiting.pop(shard, None)
        return True

    async def wait(self, shard: object) -> None:
        """Wait until something has changed for a shard that waits."""
        if shard in self._waiting:
            await self._waiting[shard][-1].wait()

    def forget(self, shard: object) -> None:
        """The shard waits no more."""
        self._waiting.pop(shard, None)

    def release(self, shard: object, now: float) -> None:
        """The shard's attempt is over: the next one comes."""
        if self.trier is shard:
            self.next(now)

    def look(self, now: float) -> None:
        """Let the next shard try where the one whose turn it is takes too long, unless it was asked to."""
        if self.trier is not None and now - self.since >= TURN_S and now >= self.rests_until:
            self.next(now)

    def next(self, now: float) -> None:
        """Another shard's turn, if one waits."""
        self.trier = None
        if self._waiting:
            shard = min(self._waiting, key=self._place)
            topic, _, changed = self._waiting.pop(shard)
            self._begin(shard, topic, now)
            changed.set()

    def _place(self, shard: object) -> tuple[int, int, float]:
        topic, since, _ = self._waiting[shard]
        return self._tries_of[topic], self._tries[shard], since

    def _begin(self, shard: object, topic: str, now: float) -> None:
        self.trier, self.since = shard, now
        self._tries[shard] += 1
        self._tries_of[topic] += 1

    def end(self) -> None:
        """All may try."""
        self.trier, self.is_over = None, True
        waiting, self._waiting = self._waiting, {}
        for _, _, changed in waiting.values():
            changed.set()


class Quarantines:
    """See the module. Destinations are named as in the status, without what is secret in them."""

    def __init__(
        self,
        settings: QuarantineSettings,
        telemetry: Telemetry,
        rng: Random,
        held: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        """`rng` draws whether this worker is one of those that quarantine a destination after a bad window. `held`
        gives the destination and the topic of each shard of the worker, as the status has them."""
        self._settings = settings
        self._telemetry = telemetry
        self._rng = rng
        self._held = held
        self._policy = Quarantine(settings.options)
        self._turns: dict[str, Turns] = {}
        self._changed = asyncio.Event()

    def use(self, settings: QuarantineSettings) -> None:
        """Go by other settings from now on, also in the window under way."""
        self._settings = settings
        self._policy.use(settings.options)
        self._changed.set()

    async def run(self) -> None:
        """Close window after window."""
        began = _now()
        while True:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + self._settings.interval_s):
                    await self._changed.wait()
            if _now() >= began + self._settings.interval_s - EDGE_S:
                began = _now()
                self.close(began)

    def close(self, now: float) -> None:
        """A window ends."""
        errors = self._policy.errors
        closed = self._policy.close(now, {name: self._rng.random() for name in errors})
        for name in closed.entered:
            self._turns[name] = Turns(name, errors[name])
            self._telemetry.quarantined(name, errors[name], self._settings.time_s)
            asyncio.get_running_loop().call_at(now + self._settings.time_s, self._end_those_over)
        for _ in closed.skipped:
            self._telemetry.quarantine_skipped()
        for turns in self._turns.values():
            turns.look(now)
        self._end_those_over()
        # What binds no shard of this worker ends: none would find out that it works again.
        if self._turns:
            held = {name for each in self._held() for name in (each[0], topic_place(*each))}
            for name in self._policy.forget(held, self._settings.interval_s, now + EDGE_S):
                self._end(name, "no queue of this worker goes there")

    def failed(self, topic: Topic, kind: str, asked_s: float | None = None) -> None:
        """A batch, a commit or a connection of this topic failed; `kind` as `policy.quarantine` has them.

        `asked_s` is how long the topic's endpoint asks to be left alone: that holds for the topic's shards only.
        """
        if not self._settings.enabled:
            return
        destination, now = topic.target.redacted, _now()
        if kind == ANSWERED and self._policy.answered(destination, now, topic.label):
            self._end_those_over("it answers again")
        self._policy.error(destination, kind, topic=topic.label)
        own = self._turns.get(topic_place(destination, topic.label))
        if own is not None and asked_s is not None:
            own.rests_until = max(own.rests_until, now + asked_s)

    def succeeded(self, topic: Topic) -> None:
        """The topic's endpoint took something, which ends its quarantine."""
        if self._policy.succeeded(topic.target.redacted, _now(), topic.label):
            self._end_those_over("it works again")

    def release(self, destination: str | None, caller: Caller = NOBODY) -> int:
        """End the quarantine of one destination with its topics, or of all, and answer of how many; `caller` asks."""
        names, left_s = [name for name in self._turns if is_meant(name, destination)], self.left_s
        self._policy.release(destination)
        for name in names:
            self._end(name, "by command", seconds_left=round(left_s.get(name, 0.0), 3), **caller.known)
        return len(names)

    def turns(self, topic: Topic) -> Turns | None:
        """Whose turn it is among the shards that a quarantine holds back, this topic's included; None if none does."""
        if not self._turns:
            return None
        name = self._policy.held_back_by(topic.target.redacted, topic.label, _now())
        return self._turns.get(name) if name is not None else None

    @property
    def left_s(self) -> Mapping[str, float]:
        """The destinations in quarantine, each with the seconds that are left."""
        now = _now()
        return {name: until - now for name, until in self._policy.until(now).items()}

    @property
    def named(self) -> tuple[str, ...]:
        """Those that other workers hear of: the worst, by the errors of the window that began their quarantine.

        What a destination answers about a topic is the same for all workers, so no topic is among them.
        """
        places = [name for name in self._turns if not is_topic(name)]
        worst = sorted(places, key=lambda name: -self._turns[name].errors)
        return tuple(sorted(row_room.named(worst[:MOST_NAMED])))

    def _end_those_over(self, why: str = "its time is over") -> None:
        left = self._policy.until(_now() + EDGE_S)
        for name in [each for each in self._turns if each not in left]:
            self._end(name, why if self._settings.enabled else "it is switched off")

    def _end(self, destination: str, why: str, **more: object) -> None:
        self._turns.pop(destination).end()
        self._telemetry.quarantine_ended(destination, why, len(self._turns), **more)


def _now() -> float:
    return asyncio.get_running_loop().time()
