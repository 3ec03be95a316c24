"""The stages that an event passes on its way, how long each takes, and which of them is why events are late.

A stage that works is slow by itself. One that waits is slow because of what it waits for: so of all slow stages those
that wait for another slow one are its consequences, and the rest are causes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise, zip_longest
from types import MappingProxyType
from typing import NamedTuple, TypeAlias


class EventStage(StrEnum):
    """What takes time of an event, in the order in which it happens."""

    COMMIT = "commit"
    COMMIT_QUEUE = "commit_queue"
    COMMIT_WRITE = "commit_write"
    COMMIT_SYNC = "commit_sync"
    REGISTER = "register"
    CHECKPOINT = "checkpoint"
    WAIT_LISTING = "wait_listing"
    WAIT_PARENTS = "wait_parents"
    WAIT_CREDIT = "wait_credit"
    WAIT_ENTRIES = "wait_entries"
    WAIT_BYTES = "wait_bytes"
    LIST = "list"
    WAIT_PACKING = "wait_packing"
    RENDER = "render"
    WAIT_TURN = "wait_turn"
    PUSH = "push"
    REMOVE = "remove"
    SPILL = "spill"


BOUNDS_S = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip
"""The upper bounds of the buckets that times are counted in; a last one takes all above."""


class StageCounts(NamedTuple):
    """How many times fell into each bucket, and what all of them came to; no buckets where there were none."""

    buckets: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def times(self) -> int:
        """How many there were."""
        return sum(self.buckets)

    @property
    def mean_s(self) -> float:
        """The mean; 0 where there were none."""
        return self.seconds / self.times if self.times else 0.0

    def and_those_of(self, other: StageCounts) -> StageCounts:
        """The times of two processes together."""
        return self._with(other, 1)

    def without(self, earlier: StageCounts) -> StageCounts:
        """The times since an earlier moment."""
        return self._with(earlier, -1)

    def _with(self, other: StageCounts, sign: int) -> StageCounts:
        both = zip_longest(self.buckets, other.buckets, fillvalue=0)
        return StageCounts(tuple(a + sign * b for a, b in both), self.seconds + sign * other.seconds)


NONE = StageCounts()

Place: TypeAlias = tuple[EventStage, str]
"""A stage, and the kind of the endpoint or store at which it takes place."""

_E = EventStage

OF_STORE = frozenset({
    _E.COMMIT, _E.COMMIT_QUEUE, _E.COMMIT_WRITE, _E.COMMIT_SYNC, _E.REGISTER, _E.CHECKPOINT, _E.LIST, _E.REMOVE,
    _E.SPILL,
})  # fmt: skip
"""The stages that take place at a store; the others are of deliveries to an endpoint."""

_WRITES = (_E.COMMIT_WRITE, _E.COMMIT_SYNC, _E.CHECKPOINT)
_ADMISSION = (_E.WAIT_CREDIT, _E.WAIT_ENTRIES, _E.WAIT_BYTES)

WAITS_FOR: Mapping[EventStage, tuple[EventStage, ...]] = MappingProxyType({
    _E.COMMIT: (_E.COMMIT_QUEUE, _E.REGISTER, *_WRITES),
    _E.COMMIT_QUEUE: _WRITES,
    _E.REMOVE: _WRITES,
    _E.WAIT_TURN: (_E.PUSH,),
    _E.WAIT_PACKING: (_E.RENDER, _E.WAIT_TURN, _E.PUSH),
    _E.WAIT_ENTRIES: (_E.PUSH, _E.RENDER, _E.WAIT_TURN),
    _E.WAIT_BYTES: (_E.PUSH, _E.RENDER, _E.WAIT_TURN),
    _E.WAIT_PARENTS: (*_ADMISSION, _E.LIST, _E.RENDER, _E.WAIT_TURN, _E.PUSH),
    _E.WAIT_LISTING: (_E.WAIT_PARENTS, *_ADMISSION, _E.LIST, _E.RENDER, _E.WAIT_PACKING, _E.WAIT_TURN, _E.PUSH),
})  # fmt: skip
"""What each stage waits for, if that is slow. A removal shares its file's writer with the commits."""

WHAT_TO_DO: Mapping[EventStage, str] = MappingProxyType({
    _E.COMMIT: "look at what the store does: its own stages are not slow",
    _E.COMMIT_QUEUE: "one file takes more requests than its writer serves: spread them over more topics",
    _E.COMMIT_WRITE: "requests are larger, or another process keeps the file busy",
    _E.COMMIT_SYNC: "the disk below the store syncs slowly: look at its latency, and at who else writes there",
    _E.REGISTER: "look at the OSDs of the object that has the schedule: ceph osd perf",
    _E.CHECKPOINT: "the disk below the store writes slowly: look at its latency",
    _E.WAIT_LISTING: "nothing below it is slow: look at the workers' processors (remora balance show)",
    _E.WAIT_PARENTS: "its topic was re-sharded, and queues of the former layout still have entries: remora explain",
    _E.WAIT_CREDIT: "traffic shaping holds it back: remora shaping show",
    _E.WAIT_ENTRIES: "delivery.max_unacked or destination_max_unacked is reached",
    _E.WAIT_BYTES: "delivery.shard_bytes, endpoint_bytes or worker_bytes is reached",
    _E.LIST: "the store reads slowly: look at the disk, or at the OSDs",
    _E.WAIT_PACKING: "the workers' processors are busy: remora balance show",
    _E.RENDER: "the workers' processors are busy, or the codec is not compiled: remora balance show",
    _E.WAIT_TURN: "more events have one key or one lane than the endpoint takes one after the other",
    _E.PUSH: "the endpoint answers slowly: look at it, and at the network to it",
    _E.REMOVE: "the store writes slowly: look at the disk, or at the OSDs",
    _E.SPILL: "the pool of spilled entries writes slowly: ceph osd perf",
})  # fmt: skip
"""What an operator looks at where a stage is the cause."""

GROWN = 1.5
LEAST_GROWTH_S = 0.01
"""A stage is slow when its median and its mean have grown by this factor, and the mean by so much: a median jumps with
the bucket that it falls into, and a mean with a single time that is long."""

FEWEST = 5
"""Fewer times than these say nothing of a stage."""

NOW_S = 15.0
HOUR_S = 3600.0
_LONG_S = 300.0


def quantile_s(counts: StageCounts, part: float) -> float | None:
    """The time that this part of all stays below, to the precision of its bucket; None where there are none."""
    buckets = counts.buckets
    if not counts.times:
        return None
    wanted = part * counts.times
    at, reached = next((i, each) for i, each in enumerate(accumulate(buckets)) if each >= wanted and buckets[i])
    if at == len(BOUNDS_S):
        return float(BOUNDS_S[-1])
    low = BOUNDS_S[at - 1] if at else 0.0
    return float(low + (BOUNDS_S[at] - low) * (1 - (reached - wanted) / buckets[at]))


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The times that a stage took of late, and those that it took before, as counts; `before` is empty where it did
    not take place then. `before_s` is how long ago that ended."""

    stage: EventStage
    at: str
    now: StageCounts
    before: StageCounts = NONE
    before_s: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it takes longer than it did."""
        now, before = self.now, self.before
        if now.times < FEWEST or before.times < FEWEST:
            return False
        medians = quantile_s(now, 0.5) or 0.0, quantile_s(before, 0.5) or 0.0
        has_grown = medians[0] >= GROWN * medians[1] and now.mean_s >= GROWN * before.mean_s
        return has_grown and self.growth_s >= LEAST_GROWTH_S

    @property
    def growth_s(self) -> float:
        """By how much its mean has grown."""
        return self.now.mean_s - self.before.mean_s


@dataclass(frozen=True, slots=True)
class SlowStage:
    """A slow stage; one that `follows` from none is a cause."""

    times: StageTimes
    follows: tuple[EventStage, ...] = ()

    @property
    def is_cause(self) -> bool:
        """Whether no other slow stage is the reason."""
        return not self.follows


def slow_stages(seen: Iterable[StageTimes]) -> list[SlowStage]:
    """The stages that are slow: the causes first, and of each kind the one that has grown most."""
    slow = [each for each in seen if each.is_slow]
    found = [SlowStage(each, _reasons(each, slow)) for each in slow]
    return sorted(found, key=lambda each: (not each.is_cause, -each.times.growth_s))


def _reasons(of: StageTimes, slow: Sequence[StageTimes]) -> tuple[EventStage, ...]:
    """The slow stages that it waits for: those of its own endpoint or store, and for a delivery those of any store."""
    wanted, is_delivery = WAITS_FOR.get(of.stage, ()), of.stage not in OF_STORE
    return tuple(
        each.stage
        for each in slow
        if each.stage in wanted and (each.at == of.at or (is_delivery and each.stage in OF_STORE))
    )


# ---------------------------------------------------------------------------------------------- windows


@dataclass(slots=True)
class StageHistory:
    """The counts of all stages at moments of the past: every few seconds of late, and every five minutes of an hour.

    StageCounts are those since the process began. `note` is called every second or so.
    """

    _fine: deque[tuple[float, Mapping[Place, StageCounts]]] = field(default_factory=deque)
    _coarse: deque[tuple[float, Mapping[Place, StageCounts]]] = field(default_factory=deque)

    def note(self, now: float, counts: Mapping[Place, StageCounts]) -> None:
        """What is counted by now."""
        self._fine.append((now, counts))
        while len(self._fine) > 1 and self._fine[1][0] <= now - NOW_S:
            self._fine.popleft()
        # The first windows are short, so that a young process has something to compare with.
        step_s = min(_LONG_S, NOW_S * len(self._coarse) ** 2)
        if not self._coarse or now - self._coarse[-1][0] >= step_s:
            self._coarse.append((now, counts))
        while len(self._coarse) > 2 and self._coarse[1][0] <= now - HOUR_S - _LONG_S / 2:
            self._coarse.popleft()

    def seen(self) -> list[StageTimes]:
        """Each stage of late, beside the oldest window of the last hour that is over and in which it took place.

        The beginning of a process may have been idle: what nobody asked for then is compared with what came first.
        """
        if not self._fine:
            return []
        (_, first), (_, last) = self._fine[0], self._fine[-1]
        found = (
            StageTimes(*place, counts.without(first.get(place, NONE)), *self._before(place))
            for place, counts in last.items()
        )
        return [each for each in found if each.now.times]

    def _before(self, place: Place) -> tuple[StageCounts, float | None]:
        """What is compared with, and how long ago it ended."""
        (begun, _), (now, _) = self._fine[0], self._fine[-1]
        for (_, first), (ended, last) in pairwise(self._coarse):
            counts = last.get(place, NONE).without(first.get(place, NONE))
            if ended <= begun and counts.times >= FEWEST:
                return counts, now - ended
        return NONE, None


# --------------------------------------------------------------------------------------------- in words


def stage_sentences(slow: Sequence[SlowStage]) -> list[str]:
    """A sentence for each cause, with what follows from it and what to look at."""
    return [_sentence(each, slow) for each in slow if each.is_cause]


def _sentence(cause: SlowStage, slow: Sequence[SlowStage]) -> str:
    times = cause.times
    follow = [str(each.times.stage) for each in slow if times.stage in each.follows]
    then = f"; from it follow {', '.join(follow)}" if follow else ""
    now, before = time_text(times.now.mean_s), time_text(times.before.mean_s)
    since_s = times.before_s or 0.0
    ago = f"{since_s / 60:.0f} minutes" if since_s >= 90 else f"{since_s:.0f} seconds"
    ago = "an hour" if since_s >= HOUR_S - _LONG_S else ago
    took = f"{times.stage} ({times.at}) takes {now}, and took {before} {ago} ago"
    return f"{took}{then}: {WHAT_TO_DO[times.stage]}"


def time_text(seconds: float) -> str:
    """A time as people read it: 61 ms."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
