"""What runs in a task: meet the others, agree on when to begin, and send one part of the events."""

from __future__ import annotations

import asyncio
import gc
import json
import selectors
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.run.journal import Journal, open_journal
from remora_pipeline.replay.run.plan import ReplayPlan, opened
from remora_pipeline.replay.run.schedule import DueEvent, Timeline
from remora_pipeline.replay.run.sender import ReplaySender, TaskTally, WallClock
from remora_pipeline.replay.shape import WRITES

SUMMARY = StructType(
    [
        StructField("part", LongType(), nullable=False),
        StructField("attempt", LongType(), nullable=False),
        StructField("offered", LongType(), nullable=False),
        StructField("outcomes", MapType(StringType(), LongType()), nullable=False),
        StructField("lateness", MapType(LongType(), LongType()), nullable=False),
    ]
)
"""A task's own account, written when it is done: events by outcome, and by microseconds of lateness."""

_SUMMARY = pa.schema(
    [
        ("part", pa.int64()),
        ("attempt", pa.int64()),
        ("offered", pa.int64()),
        ("outcomes", pa.map_(pa.string(), pa.int64())),
        ("lateness", pa.map_(pa.int64(), pa.int64())),
    ]
)

_SLICE = 256
"""Rows that are taken out of Arrow at a time: longer steps of that would hold up what is due meanwhile."""


class Meeting(Protocol):
    """The tasks of a barrier stage, as Spark's BarrierTaskContext lets them meet."""

    def partitionId(self) -> int:  # noqa: N802  # Spark's name
        """The number of this one."""

    def allGather(self, message: str = "") -> list[str]:  # noqa: N802  # Spark's name
        """What each of them says, when all have said something."""


def sending(plan: ReplayPlan, parts: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What mapInArrow is to run over batches of events, in the order of the trace, one partition a part."""

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        meeting = BarrierTaskContext.get()
        yield send_part(iter(batches), plan.of_part(meeting.partitionId(), parts), meeting)

    return send


def send_part(batches: Iterator[pa.RecordBatch], plan: ReplayPlan, meeting: Meeting) -> pa.RecordBatch:
    """Send the events of one part; a row of SUMMARY."""
    # Before the tasks meet, since asking for the first batch runs the sort.
    first = next((batch for batch in batches if batch.num_rows), None)
    with (
        _left_alone(),
        open_journal(RunDirectory(Path(plan.run)), meeting.partitionId()) as journal,
        # Not uvloop, and not epoll: both count time in whole milliseconds, and select in microseconds.
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner,
    ):
        tally = runner.run(_send(first, batches, plan, meeting, journal))
    row = {
        "part": journal.part,
        "attempt": journal.attempt,
        "offered": tally.offered,
        "outcomes": list(tally.outcomes.items()),
        "lateness": list(tally.lateness.items()),
    }
    return pa.RecordBatch.from_pylist([row], schema=_SUMMARY)


@contextmanager
def _left_alone() -> Iterator[None]:
    """Keep Python's collector from looking at Spark's and our modules again and again, some ms each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _send(
    first: pa.RecordBatch | None,
    batches: Iterator[pa.RecordBatch],
    plan: ReplayPlan,
    meeting: Meeting,
    journal: Journal,
) -> TaskTally:
    name = f"{plan.run_id}/{journal.part}/{journal.attempt}"
    async with opened(plan) as target:
        timeline = _agree(meeting, None if first is None else first["ts_us"][0].as_py(), plan)
        journal.start(timeline.t0_us, timeline.ts0_us, timeline.speed)
        sender = ReplaySender(target, journal, clock(), plan.limits, name)
        return await sender.run(_events(first, batches, timeline))


def clock() -> WallClock:
    """The running loop's, set by the clock of the wall now."""
    loop_time = asyncio.get_running_loop().time
    return WallClock(time.time_ns() // 1000 - int(loop_time() * 1e6), loop_time)


def _agree(meeting: Meeting, first_ts_us: int | None, plan: ReplayPlan) -> Timeline:
    """The same timeline in all tasks: it begins when the last of them is ready, and with the first event of all.

    The tasks are let go up to a second apart, so that what is due at given times can begin only some time after.
    """
    said = meeting.allGather(json.dumps([time.time_ns() // 1000, first_ts_us]))
    ready_us, firsts = zip(*map(json.loads, said), strict=True)
    lead_us = int(plan.lead_s * 1e6) if plan.speed else 0
    ts0_us = min((each for each in firsts if each is not None), default=0)
    return Timeline(max(ready_us) + lead_us, ts0_us, plan.speed)


async def _events(
    first: pa.RecordBatch | None, batches: Iterator[pa.RecordBatch], timeline: Timeline
) -> AsyncIterator[list[DueEvent]]:
    """The events of all batches, some at a time. The next batch is fetched meanwhile, in a thread."""
    batch = first
    while batch is not None:
        coming = asyncio.create_task(asyncio.to_thread(next, batches, None))
        try:
            for start in range(0, batch.num_rows, _SLICE):
                yield list(_rows(batch.slice(start, _SLICE), timeline))
        finally:
            batch = await coming


def _rows(batch: pa.RecordBatch, timeline: Timeline) -> Iterator[DueEvent]:
    due_us, kinds = timeline.due_us, frozenset(WRITES)
    columns = [batch[name].to_pylist() for name in ("seq", "ts_us", "op", "bucket", "key", "size", "kseq", "lane")]
    for seq, ts_us, op, bucket, key, size, kseq, lane in zip(*columns, strict=True):
        if op not in kinds:
            raise ReplayError(f"event {seq}: there is no operation {op}")
        # What is no UTF-8 is for the target to refuse.
        name, path = bucket.decode("utf-8", "surrogateescape"), key.decode("utf-8", "surrogateescape")
        yield DueEvent(seq, due_us(ts_us), op, name, path, size or 0, kseq, lane)
