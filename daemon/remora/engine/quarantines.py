"""The destinations that fail this worker, and which of their shards may try them meanwhile.

`policy.quarantine` decides which destinations these are. Of the shards of one of them a single one tries at a time, at
its own back-off: of those that have tried least often that one whose oldest entry waits longest. So none that fails for
a reason of its own keeps the others from trying. Those wait without an attempt, and hold nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from random import Random

from remora.config import QuarantineSettings
from remora.metrics import Telemetry
from remora.policy import row_room
from remora.policy.quarantine import Quarantine

TURN_S = 60.0
"""A shard that has neither succeeded nor failed for this long lets the next one try beside it."""

EDGE_S = 0.001
"""A timer may come so much before its time, by the rounding of sums."""

MOST_NAMED = 16
"""Destinations that are named to other workers at most."""


class Turns:
    """Lets one shard of a destination try at a time."""

    def __init__(self, errors: int) -> None:
        """`errors` are those of the window that began the quarantine."""
        self.errors = errors
        self.trier: object | None = None
        self.since = 0.0
        self.is_over = False
        self._waiting: dict[object, tuple[float, asyncio.Event]] = {}
        self._tries = Counter[object]()

    def take(self, shard: object, since: float, now: float) -> bool:
        """Whether it is this shard's turn; if not it waits, and comes after those that tried less.

        `since` is when its oldest entry was committed: among equals the earliest comes first. `now` is the loop's time.
        """
        if self.trier is None:
            self._begin(shard, now)
        if self.trier is not shard:
            self._waiting.setdefault(shard, (since, asyncio.Event()))
            return False
        self._waiting.pop(shard, None)
        return True

    async def wait(self, shard: object) -> None:
        """Wait until something has changed for a shard that waits."""
        if shard in self._waiting:
            await self._waiting[shard][1].wait()

    def forget(self, shard: object) -> None:
        """The shard waits no more."""
        self._waiting.pop(shard, None)

    def leave(self, shard: object, now: float) -> None:
        """The shard's attempt is over: the next one comes."""
        if self.trier is shard:
            self.next(now)

    def next(self, now: float) -> None:
        """Another shard's turn, if one waits."""
        self.trier = None
        if self._waiting:
            shard = min(self._waiting, key=lambda each: (self._tries[each], self._waiting[each][0]))
            self._begin(shard, now)
            self._waiting.pop(shard)[1].set()

    def _begin(self, shard: object, now: float) -> None:
        self.trier, self.since = shard, now
        self._tries[shard] += 1

    def end(self) -> None:
        """All may try."""
        self.trier, self.is_over = None, True
        waiting, self._waiting = self._waiting, {}
        for _, changed in waiting.values():
            changed.set()


class Quarantines:
    """See the module. Destinations are named as in the status, without what is secret in them."""

    def __init__(self, settings: QuarantineSettings, telemetry: Telemetry, rng: Random) -> None:
        """`rng` draws whether this worker is one of those that quarantine a destination after a bad window."""
        self.settings = settings
        self._telemetry = telemetry
        self._rng = rng
        self._policy = Quarantine(settings.options)
        self._failed: dict[str, int] = {}
        self._turns: dict[str, Turns] = {}

    async def run(self) -> None:
        """Close window after window."""
        while True:
            await asyncio.sleep(self.settings.interval_s)
            self.close(_now())

    def close(self, now: float) -> None:
        """A window ends."""
        self._policy.use(self.settings.options)
        closed = self._policy.close(now, {name: self._rng.random() for name in self._failed})
        for name in closed.entered:
            self._turns[name] = Turns(self._failed[name])
            self._telemetry.quarantined(name, self._failed[name], self.settings.time_s)
            asyncio.get_running_loop().call_at(now + self.settings.time_s, self._end_those_over)
        for _ in closed.skipped:
            self._telemetry.quarantine_skipped()
        self._failed = {}
        for turns in self._turns.values():
            if turns.trier is not None and now - turns.since >= TURN_S:
                turns.next(now)
        self._end_those_over()

    def failed(self, destination: str, kind: str) -> None:
        """A batch, a commit or a connection to this destination failed; `kind` as `policy.quarantine` has them."""
        if self.settings.enabled:
            self._failed[destination] = self._policy.error(destination, kind)

    def succeeded(self, destination: str) -> None:
        """The destination took something, which ends its quarantine."""
        if destination in self._turns and self._policy.succeeded(destination, _now()):
            self._end(destination, "it works again")

    def release(self, destination: str | None) -> int:
        """End the quarantine of one destination, or of all, and answer of how many."""
        names = [name for name in self._turns if destination in (None, name)]
        self._policy.release(destination)
        for name in names:
            self._end(name, "by command")
        return len(names)

    def turns(self, destination: str) -> Turns | None:
        """Who may try a destination; None for one that is in no quarantine."""
        return self._turns.get(destination)

    @property
    def left_s(self) -> Mapping[str, float]:
        """The destinations in quarantine, each with the seconds that are left."""
        now = _now()
        return {name: until - now for name, until in self._policy.until(now).items()}

    @property
    def named(self) -> tuple[str, ...]:
        """Those that other workers hear of: the worst, by the errors of the window that began their quarantine."""
        worst = sorted(self._turns, key=lambda name: -self._turns[name].errors)
        return tuple(sorted(row_room.named(worst[:MOST_NAMED])))

    def _end_those_over(self) -> None:
        left = self._policy.until(_now() + EDGE_S)
        for name in [each for each in self._turns if each not in left]:
            self._end(name, "its time is over" if self.settings.enabled else "it is switched off")

    def _end(self, destination: str, why: str) -> None:
        self._turns.pop(destination).end()
        self._telemetry.quarantine_ended(destination, why, len(self._turns))


def _now() -> float:
    return asyncio.get_running_loop().time()
