"""Where the time of events goes: how long each stage takes, and how deep the queues of the store are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from remora.metrics.counts import TimesHistogram
from remora.metrics.events import EventGroup, Instruments
from remora.policy.status.stages import (
    BOUNDS_S,
    NONE,
    EventStage,
    Place,
    SlowStage,
    StageCounts,
    StageHistory,
    StageTimes,
    quantile_s,
    slow_stages,
    stage_sentences,
)


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """How long a stage takes, as counts by bucket: of late, and `before_seconds` ago; for the status."""

    stage: EventStage
    at: str
    now: StageCounts
    before: StageCounts = NONE
    before_seconds: float | None = None

    @property
    def times(self) -> StageTimes:
        """As the policy has it."""
        return StageTimes(self.stage, self.at, self.now, self.before, self.before_seconds)

    def __add__(self, other: StageRow) -> StageRow:
        """The times of two workers."""
        seconds = [each for each in (self.before_seconds, other.before_seconds) if each is not None]
        return StageRow(
            stage=self.stage,
            at=self.at,
            now=self.now.and_those_of(other.now),
            before=self.before.and_those_of(other.before),
            before_seconds=max(seconds, default=None),
        )


def stages_shown(rows: Iterable[StageRow]) -> list[dict[str, Any]]:
    """The stages of all workers as the status shows them, in the order of an event's way, with who is slow and why."""
    merged: dict[Place, StageRow] = {}
    for each in rows:
        place = (each.stage, each.at)
        merged[place] = merged[place] + each if place in merged else each
    slow = {(each.times.stage, each.times.at): each for each in slow_stages(each.times for each in merged.values())}
    order = list(EventStage)
    return [_shown(merged[place], slow.get(place)) for place in sorted(merged, key=lambda p: (order.index(p[0]), p[1]))]


def _shown(row: StageRow, slow: SlowStage | None) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(row),
        "p50_seconds": quantile_s(row.now, 0.5),
        "p99_seconds": quantile_s(row.now, 0.99),
        "before_p50_seconds": quantile_s(row.before, 0.5),
        "before_p99_seconds": quantile_s(row.before, 0.99),
        "slow": slow is not None,
        "follows": [str(each) for each in slow.follows] if slow else [],
    }


def slow_lines(shown: Iterable[Mapping[str, Any]], at: Collection[str] | None = None) -> list[str]:
    """A sentence for each stage of a status that is slow by itself; only of these endpoints and stores, if given."""
    fields = StageRow.__struct_fields__
    rows = [
        msgspec.convert({name: each[name] for name in fields}, StageRow)
        for each in shown
        if at is None or each["at"] in at
    ]
    return stage_sentences(slow_stages(each.times for each in rows))


class StageEvents(EventGroup):
    """See the module. It is a StageMeter."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        self._stage_history = StageHistory()
        self._stages = TimesHistogram(
            instruments.registry,
            "remora_stage_seconds",
            "Time that a stage of events took: of a page, a batch or a transaction.",
            ("stage", "at"),
            BOUNDS_S,
        )
        self._queue_jobs = instruments.gauge(
            "remora_store_queue_jobs", "Jobs that wait for the writers of the embedded store's files."
        )
        self._operations = instruments.gauge(
            "remora_store_operations_in_flight", "Operations at OSDs that are not answered yet."
        )
        self._discarded = instruments.counter(
            "remora_read_ahead_discarded_entries",
            "Entries that were listed in vain: what stood before them was turned back, or the session ended.",
        )
        self._gc_s = instruments.histogram(
            "remora_gc_seconds",
            "Time of a collection of garbage, for which the process stands still.",
            "generation",
            buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
        )

    def stage_took(self, stage: EventStage, at: str, seconds: float) -> None:
        """A stage has ended; see `StageMeter`."""
        self._stages.observe(seconds, stage, at)

    def store_depth(self, jobs: int, operations: int) -> None:
        """So many jobs wait for the store's writers, and so many operations for answers."""
        self._queue_jobs.set(jobs)
        self._operations.set(operations)

    def read_in_vain(self, entries: int) -> None:
        """Entries were listed, and are listed again."""
        self._discarded.inc(entries)

    def collected(self, generation: int, seconds: float) -> None:
        """Python has looked for garbage in this generation, which took so long."""
        self._gc_s.labels(str(generation)).observe(seconds)

    def note_stages(self, now: float) -> None:
        """A moment to compare later ones with; called every second or so."""
        counts = self._stages.counts().items()
        self._stage_history.note(
            now, {(EventStage(stage), at): StageCounts(tuple(each), total) for (stage, at), (each, total) in counts}
        )

    def stages(self) -> list[StageRow]:
        """How long each stage takes of late, and took before."""
        return [
            StageRow(stage=each.stage, at=each.at, now=each.now, before=each.before, before_seconds=each.before_s)
            for each in self._stage_history.seen()
        ]
