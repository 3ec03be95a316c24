"""A run that is reported on: what its files say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import Fault, ReplayRun, RunDirectory, read
from remora_pipeline.replay.results import Series, TopicVerdict


@dataclass(frozen=True)
class ReportSubject:
    """One run, and what was found out about it. Without a replay (only a topic was looked at) there is no `run`."""

    directory: RunDirectory
    run: ReplayRun | None
    verdict: TopicVerdict
    series: Series
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """The folder's name, which tells runs apart for the person who made them."""
        return self.directory.path.resolve().name

    @property
    def has_schedule(self) -> bool:
        """Whether events were due at times of their own, and not all of them at once."""
        return self.run is not None and self.run.speed > 0

    @cached_property
    def end_us(self) -> int:
        """When the last interval ends, and the last mark is made, after the origin; more than 0."""
        last = max((each.t_us for each in self.series.intervals), default=0)
        return max([last + self.series.interval_us, *(mark.t_us for mark in self.series.marks)])


def load(path: Path) -> ReportSubject:
    """What is there of a run. Raises ReplayRefused for a folder that was not verified, or files that do not fit."""
    directory = RunDirectory(path)
    if not directory.verdict.exists():
        raise ReplayRefused(f"{path}: there is no verdict in it; make one first: remora replay verify")
    verdict = read(directory.verdict, TopicVerdict)
    run = read(directory.run, ReplayRun) if directory.run.exists() else None
    if verdict.run_id is not None and (run is None or run.run_id != verdict.run_id):
        there = f"is of run {run.run_id}" if run else "is missing"
        raise ReplayRefused(f"{directory.run}: {there}, and the verdict is on run {verdict.run_id}")
    if not directory.series.exists():
        raise ReplayRefused(f"{directory.series}: is missing; remora replay verify makes it, without --no-series")
    series = read(directory.series, Series)
    if series.interval_us <= 0:
        raise ReplayRefused(f"{directory.series}: interval_us is {series.interval_us}, and must be more than 0")
    faults = read(directory.faults, tuple[Fault, ...]) if directory.faults.exists() else ()
    return ReportSubject(directory, run if verdict.run_id is not None else None, verdict, series, faults)
