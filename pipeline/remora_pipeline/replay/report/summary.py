"""`summary.json`: every number of the report, for programs. The page takes its numbers from here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import Fault
from remora_pipeline.replay.loop import loop_of
from remora_pipeline.replay.report.subject import ReportSubject
from remora_pipeline.replay.results import Percentiles


class EventRate(msgspec.Struct, frozen=True):
    """The events and the microseconds that they took, and the most per second that an interval of the series had."""

    events: int
    over_us: int
    mean_per_s: float
    peak_per_s: float


class RunDifference(msgspec.Struct, frozen=True):
    """This run's numbers less those of the other one; of what both have."""

    counts: dict[str, int]
    latencies: dict[str, dict[str, int]]


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run in numbers. `counts` and `latencies` are those of its verdict; times are in microseconds.

    `rates` are of events that were due (with speed 0: sent), acked and in Kafka; `backlogs` are of those that were due
    and are not acked, or not in Kafka, the largest at the end of any interval. `against` is the run that this one was
    compared with, and `change` what is different. `noise` is by how much two replays without faults differ, of the
    trace of that one.
    """

    name: str
    verdict: str
    reasons: tuple[str, ...]
    run_id: str | None
    topic: str
    isolation: str
    timestamp_type: str
    trace: str | None
    trace_sha256: str | None
    target: str | None
    speed: float | None
    counts: dict[str, int]
    latencies: dict[str, Percentiles]
    rates: dict[str, EventRate]
    backlogs: dict[str, int]
    interval_us: int
    faults: tuple[Fault, ...]
    caveats: tuple[str, ...] = ()
    against: Summary | None = None
    change: RunDifference | None = None
    noise: RunDifference | None = None


def summarise(
    subject: ReportSubject, against: ReportSubject | None = None, again: ReportSubject | None = None
) -> Summary:
    """The numbers of a run, and of the one that it is compared with; `again` is another replay of the same as that.

    Raises ReplayRefused where `again` is a replay of something else, or one of the two had a fault.
    """
    plain = _summary(subject)
    if against is None:
        return plain
    other = _summary(against)
    found = msgspec.structs.replace(plain, against=other, change=_change(plain, other))
    return found if again is None else msgspec.structs.replace(found, noise=_noise(against, again))


def _noise(one: ReportSubject, other: ReportSubject) -> RunDifference:
    """By how much two replays differ that should not, without a sign."""
    for each in (one, other):
        if each.faults:
            raise ReplayRefused(
                f"{each.directory.faults}: has faults: noise is what differs between replays without any"
            )
    for what, of_one, of_other in zip(_SAME, _conditions(one), _conditions(other), strict=True):
        if of_one != of_other:
            raise ReplayRefused(
                f"{other.directory.path}: is no replay of the same as {one.directory.path}: {what} is another one"
            )
    found = _change(_summary(one), _summary(other))
    return RunDifference(
        counts={name: abs(number) for name, number in found.counts.items()},
        latencies={
            name: {each: abs(us) for each, us in differences.items()} for name, differences in found.latencies.items()
        },
    )


_SAME = ("the trace", "the target", "--speed", "the loop", "--parts")


def _conditions(subject: ReportSubject) -> tuple[object, ...]:
    run = subject.run
    return (None,) * len(_SAME) if run is None else (run.trace.sha256, run.target, run.speed, loop_of(run), run.parts)


PERCENTILES = ("p50_us", "p90_us", "p99_us", "p999_us", "max_us")


def _summary(subject: ReportSubject) -> Summary:
    run, verdict, series = subject.run, subject.verdict, subject.series
    backlogs = {
        "acked": max((each.backlog_acked for each in series.intervals), default=0),
        "in_log": max((each.backlog_in_log for each in series.intervals), default=0),
    }
    return Summary(
        name=subject.name,
        verdict=verdict.verdict,
        reasons=verdict.reasons,
        run_id=verdict.run_id,
        topic=verdict.topic,
        isolation=verdict.isolation,
        timestamp_type=verdict.timestamp_type,
        trace=run.trace.name if run else None,
        trace_sha256=run.trace.sha256 if run else None,
        target=run.target if run else None,
        speed=run.speed if run else None,
        counts=verdict.counts,
        latencies=verdict.latencies,
        rates=_rates(subject),
        backlogs=backlogs if run else {},
        interval_us=series.interval_us,
        faults=subject.faults,
        caveats=verdict.caveats,
    )


def _rates(subject: ReportSubject) -> dict[str, EventRate]:
    series = subject.series
    rates = {"in_log": _rate([(each.t_us, each.in_log) for each in series.intervals], series.interval_us)}
    if subject.run:
        rates["acked"] = _rate([(each.t_us, each.acked) for each in series.intervals], series.interval_us)
        rates["due"] = _rate([(each.t_us, each.due) for each in series.intervals], series.interval_us)
    return {name: rates[name] for name in ("due", "acked", "in_log") if name in rates}


def _rate(events: Sequence[tuple[int, int]], width_us: int) -> EventRate:
    """From the first interval with an event to the last one."""
    busy = [t_us for t_us, found in events if found]
    over_us = width_us + busy[-1] - busy[0] if busy else 0
    total = sum(found for _, found in events)
    return EventRate(
        events=total,
        over_us=over_us,
        mean_per_s=total * 1e6 / over_us if over_us else 0.0,
        peak_per_s=max((found for _, found in events), default=0) * 1e6 / width_us,
    )


def _change(one: Summary, other: Summary) -> RunDifference:
    both = [name for name in one.counts if name in other.counts]
    clocks = [name for name in one.latencies if name in other.latencies]
    return RunDifference(
        counts={name: one.counts[name] - other.counts[name] for name in both},
        latencies={
            name: {
                each: getattr(one.latencies[name], each) - getattr(other.latencies[name], each) for each in PERCENTILES
            }
            for name in clocks
        },
    )
