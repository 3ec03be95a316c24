"""Runs that were replayed and verified, invented: the files that the report reads, without anything having run."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from math import floor, log10
from pathlib import Path

from remora_pipeline.replay.layout import Fault, HotKey, ReplayRun, RunDirectory, Trace, write
from remora_pipeline.replay.results import (
    Example,
    Interval,
    KeyLatency,
    Percentiles,
    Series,
    TimelineMark,
    TopicVerdict,
)

ORIGIN_US = 1_795_305_600_000_000

TRACE = Trace(
    name="harbour",
    sha256="5f" * 32,
    sources=("harbour-1.log.gz", "harbour-2.log.gz"),
    format="s3-access",
    options={"spread": "even", "seed": 7, "max_gap": None},
    events=0,
    keys=40,
    buckets=1,
    first_us=0,
    last_us=60_000_000,
    bytes=1_234_567,
    operations={"PUT": 90, "DELETE": 10},
    dropped={"read": 17},
    peak_per_s=90,
    hottest=(HotKey("tides", "gauge 7.csv", 12, 3),),
)


def run(run_id: str = "r1", *, speed: float = 60.0, events: int = 0) -> ReplayRun:
    """A replay against an ingest API."""
    return ReplayRun(
        run_id=run_id,
        trace=Trace(**{name: getattr(TRACE, name) for name in TRACE.__struct_fields__} | {"events": events}),
        prepared="prepared/harbour",
        target="ingest",
        address="unix:/run/remora/ingest.sock",
        topic="photos",
        speed=speed,
        parts=2,
        overload="wait",
        started_us=ORIGIN_US - 3_000_000,
        options={"batch": 100, "window": 2000, "size_cap": 1024},
        host="tester",
        cores=2,
        versions={"remora": "0.1.0", "python": "3.11.2", "spark": "4.2.0"},
    )


def simulate(
    path: Path,
    *,
    events: int = 4_000,
    seconds: float = 60.0,
    interval_us: int = 1_000_000,
    faults: Sequence[Fault] = (),
    marks: Sequence[TimelineMark] = (),
    keys: Sequence[tuple[str, str]] = (("tides", "gauge 7.csv"), ("tides", "2026/11/21/north.csv")),
    speed: float = 60.0,
    run_id: str = "r1",
    seed: int = 1,
    slow: float = 1.0,
    reasons: Sequence[str] = (),
    counts: dict[str, int] | None = None,
    caveats: Sequence[str] = (),
    examples: dict[str, tuple[Example, ...]] | None = None,
) -> RunDirectory:
    """Events that are due at random, and wait for the log while a fault lasts; written as a run is."""
    draw = random.Random(seed)
    due = sorted(draw.randrange(max(1, int(seconds * 1e6))) for _ in range(events))
    late = [max(1, int(draw.lognormvariate(6, 0.5))) for _ in due]
    service = [max(50, int(slow * draw.lognormvariate(7.5, 0.6) * (40 if draw.random() < 0.002 else 1))) for _ in due]
    done = [d + a + s for d, a, s in zip(due, late, service, strict=True)]
    logged = [_after_faults(t + int(slow * draw.lognormvariate(8.5, 0.5)), faults) // 1000 * 1000 for t in done]
    response = [b - a for a, b in zip(due, done, strict=True)]
    to_log = [b - a for a, b in zip(due, logged, strict=True)]
    latencies = {"lateness": late, "service": service, "response": response, "to_log": to_log}
    clocks = {
        "lateness": "sent - due",
        "service": "done - sent",
        "response": "done - due",
        "to_log": "CreateTime in Kafka - due",
    }
    plain = {
        "in_trace": events,
        "offered": events,
        "sent": events,
        "acked": events,
        "rejected": 0,
        "unknown": 0,
        "dropped": 0,
        "in_kafka": events,
        "distinct": events,
        "lost": 0,
        "out_of_window": 0,
        "duplicates": 0,
        "ghosts": 0,
        "foreign": 0,
        "inversions": 0,
        "keys_inverted": 0,
        "max_depth": 0,
        "keys_in_several_partitions": 0,
        "keys_misplaced": 0,
        "final_state_wrong": 0,
        "chain_gaps": 0,
        "chain_gaps_explained": 0,
        "malformed": 0,
    }
    there = RunDirectory(path)
    write(there.run, run(run_id, speed=speed, events=events))
    write(there.faults, list(faults))
    write(
        there.verdict,
        TopicVerdict(
            verdict="FAIL" if reasons else "PASS",
            reasons=tuple(reasons),
            topic="photos",
            run_id=run_id,
            isolation="read_uncommitted",
            timestamp_type="CreateTime",
            offsets={"0": (0, events // 2), "1": (0, events - events // 2)},
            options={"duplicates": "count", "max_lateness_us": 5_000},
            counts=plain | (counts or {}),
            examples=examples or {},
            latencies={name: percentiles(clocks[name], found) for name, found in latencies.items() if found},
            caveats=tuple(caveats),
        ),
    )
    each_key = Counter(draw.choices(list(keys), k=events)) if events else Counter[tuple[str, str]]()
    write(
        there.series,
        Series(
            origin_us=ORIGIN_US,
            interval_us=interval_us,
            intervals=_intervals(due, done, logged, late, interval_us),
            tail={name: tail(found) for name, found in latencies.items() if found},
            density=_density(due, to_log, interval_us),
            marks=tuple(marks),
            partitions={"0": events // 2, "1": events - events // 2} if events else {},
            hottest=tuple(KeyLatency(*key, n, 20_000 + 1_000 * n) for key, n in each_key.most_common(20)),
        ),
    )
    return there


def percentiles(clock: str, samples: Sequence[int]) -> Percentiles:
    """Exact ones, by nearest rank."""
    found = sorted(samples)
    p50, p90, p99, p999 = (found[min(len(found) - 1, int(share * len(found)))] for share in (0.5, 0.9, 0.99, 0.999))
    return Percentiles(clock, len(found), p50, p90, p99, p999, found[-1])


def tail(samples: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """The complementary distribution, in at most 400 points."""
    found = sorted(samples)
    total = len(found)
    ranks = sorted({min(total - 1, round(total - total ** (1 - step / 399))) for step in range(400)} | {total - 1})
    return tuple((found[rank], 1 - bisect_right(found, found[rank]) / total) for rank in ranks)


def _density(due: Sequence[int], to_log: Sequence[int], width: int) -> tuple[tuple[int, int, int], ...]:
    cells = Counter((d // width, max(0, floor(20 * log10(max(1, t))))) for d, t in zip(due, to_log, strict=True))
    return tuple((interval, each, n) for (interval, each), n in sorted(cells.items()))


def _after_faults(at_us: int, faults: Sequence[Fault]) -> int:
    for fault in faults:
        if fault.from_us - ORIGIN_US <= at_us < fault.to_us - ORIGIN_US:
            return fault.to_us - ORIGIN_US + (at_us - fault.from_us + ORIGIN_US) // 20
    return at_us


def _intervals(
    due: Sequence[int], done: Sequence[int], logged: Sequence[int], late: Sequence[int], width: int
) -> tuple[Interval, ...]:
    if not due:
        return ()
    found = []
    dues, dones, logs = sorted(due), sorted(done), sorted(logged)
    for begin in range(0, max(logs[-1], dones[-1]) + 1, width):
        end = begin + width
        within = [index for index, each in enumerate(due) if begin <= each < end]
        upto = [bisect_right(each, end - 1) for each in (dues, dones, logs)]
        before = [bisect_right(each, begin - 1) for each in (dues, dones, logs)]
        found.append(
            Interval(
                t_us=begin,
                due=upto[0] - before[0],
                acked=upto[1] - before[1],
                in_log=upto[2] - before[2],
                backlog_acked=upto[0] - upto[1],
                backlog_in_log=upto[0] - upto[2],
                response=_triple([done[i] - due[i] for i in within]),
                to_log=_triple([logged[i] - due[i] for i in within]),
                lateness=_triple([late[i] for i in within]),
            )
        )
    return tuple(found)


def _triple(samples: Sequence[int]) -> tuple[int, int, int] | None:
    if not samples:
        return None
    found = percentiles("", samples)
    return found.p50_us, found.p99_us, found.max_us
