"""The tables of the page: each number of the summary with its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from remora_pipeline.replay.layout import Trace
from remora_pipeline.replay.loop import loop_of
from remora_pipeline.replay.report import counts
from remora_pipeline.replay.report.counts import Count, Tone
from remora_pipeline.replay.report.latencies import FEW_TOLD, ORDER, clock_us, is_few, label
from remora_pipeline.replay.report.subject import ReportSubject
from remora_pipeline.replay.report.summary import PERCENTILES, Summary
from remora_pipeline.replay.report.texts import (
    MS,
    change,
    count,
    latency,
    latency_change,
    moment,
    offset,
    rate,
    tick,
    visible,
)
from remora_pipeline.replay.results import Example, Percentiles, TopicVerdict

_RATES = {"due": "offered", "acked": "completed", "in_log": "in Kafka"}
_BACKLOGS = {"acked": "not acked", "in_log": "not in Kafka"}
_EPOCH_US = 1_000_000_000_000_000
"""What is above is no duration: of moments only those after 2001 are meant."""
_PERCENTILE_NAMES = ("p50", "p90", "p99", "p99.9", "largest")


_NOISE = "how much two replays of one trace differ that had no fault: a smaller change says nothing"


@dataclass(frozen=True)
class TableCell:
    """A number as it is shown, and as a program reads it; without `value` a text."""

    text: str
    value: int | float | None = None
    tone: Tone = "plain"


@dataclass(frozen=True)
class TableRow:
    """A line of a table: what it is about, in more words, and its cells; `key` names it for programs."""

    label: str
    cells: Sequence[TableCell]
    note: str = ""
    key: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Rows under a title; `columns` are the heads of the cells, none where they would say nothing."""

    title: str
    columns: Sequence[str]
    rows: Sequence[TableRow]


# ------------------------------------------------------------------------------------------ numbers


def count_tables(subjects: Sequence[ReportSubject], summary: Summary) -> Iterator[ReportTable]:
    """The counts that these runs make use of."""
    for title, listed in counts.groups(_all_counts(subjects)):
        used = [each for each in listed if counts.is_used(each, _counts(subjects))]
        yield ReportTable(title, _columns(subjects), [_count_row(each, subjects, summary) for each in used])


def unused_table(subjects: Sequence[ReportSubject], summary: Summary) -> ReportTable:
    """The counts of what these runs do not use: nothing, all of them."""
    listed = [each for _, group in counts.groups(_all_counts(subjects)) for each in group]
    unused = [each for each in listed if not counts.is_used(each, _counts(subjects))]
    return ReportTable("Nothing of these", _columns(subjects), [_count_row(each, subjects, summary) for each in unused])


def _counts(subjects: Sequence[ReportSubject]) -> list[dict[str, int]]:
    return [each.verdict.counts for each in subjects]


def _all_counts(subjects: Sequence[ReportSubject]) -> dict[str, int]:
    return {name: 0 for each in subjects for name in each.verdict.counts}


def _count_row(each: Count, subjects: Sequence[ReportSubject], summary: Summary) -> TableRow:
    cells = [_count_cell(each, subject.verdict) for subject in subjects]
    if summary.change is not None:
        difference = summary.change.counts.get(each.name)
        cells.append(TableCell("–") if difference is None else TableCell(change(difference), difference))
    return TableRow(each.label, cells, each.meaning, each.name)


def _count_cell(each: Count, verdict: TopicVerdict) -> TableCell:
    found = verdict.counts.get(each.name)
    return TableCell("–") if found is None else TableCell(count(found), found, counts.tone(each, verdict))


def latency_table(summary: Summary) -> ReportTable:
    runs = [summary] if summary.against is None else [summary, summary.against]
    rows: list[TableRow] = []
    for name in [*ORDER, *sorted({name for each in runs for name in each.latencies}.difference(ORDER))]:
        for each in runs:
            if (found := each.latencies.get(name)) is not None:
                whose = f" · {visible(each.name)}" if len(runs) > 1 else ""
                words = label(name, has_schedule=bool(each.speed)) + whose
                few = f"; {FEW_TOLD}" if is_few(found.samples) else ""
                rows.append(TableRow(words, _percentile_cells(found, clock_us(name)), visible(found.clock) + few, name))
        if summary.change is not None and (differences := summary.change.latencies.get(name)) is not None:
            shown = [TableCell(latency_change(differences[p], clock_us(name)), differences[p]) for p in PERCENTILES]
            words = label(name, has_schedule=bool(summary.speed))
            rows.append(TableRow(f"{words} · change", [TableCell(""), *shown], "", f"{name}-change"))
        if summary.noise is not None and (differences := summary.noise.latencies.get(name)) is not None:
            shown = [TableCell(latency(differences[p], clock_us(name)), differences[p]) for p in PERCENTILES]
            words = label(name, has_schedule=bool(summary.speed))
            rows.append(TableRow(f"{words} · noise", [TableCell(""), *shown], _NOISE, f"{name}-noise"))
    return ReportTable("Latencies", ("samples", *_PERCENTILE_NAMES), rows)


def _percentile_cells(found: Percentiles, counted_us: int) -> list[TableCell]:
    shown: list[TableCell] = []
    for name in PERCENTILES:
        is_doubtful = is_few(found.samples) and name == "p99_us"
        us = getattr(found, name)
        shown.append(TableCell(latency(us, counted_us), us, "note" if is_doubtful else "plain"))
    return [TableCell(count(found.samples), found.samples), *shown]


def rate_table(summary: Summary) -> ReportTable:
    runs = [summary] if summary.against is None else [summary, summary.against]
    rows = []
    for name, words in _RATES.items():
        for each in runs:
            if (found := each.rates.get(name)) is not None and found.events:
                whose = f" · {visible(each.name)}" if len(runs) > 1 else ""
                cells = [
                    TableCell(count(found.events), found.events),
                    TableCell(offset(found.over_us), found.over_us),
                    TableCell(rate(found.mean_per_s), found.mean_per_s),
                    TableCell(rate(found.peak_per_s), found.peak_per_s),
                    TableCell(count(each.backlogs[name]), each.backlogs[name])
                    if name in each.backlogs
                    else TableCell("–"),
                ]
                rows.append(TableRow(words + whose, cells, "", f"rate-{name}"))
    width = tick(summary.interval_us)
    return ReportTable("Rates", ("events", "within", "events/s over all", f"most in {width}", "largest backlog"), rows)


# ------------------------------------------------------------------------------------------ names and places


_PLACES = ("bucket", "key", "seq", "kseq", "partition", "offset", "shard", "position", "detail")


def example_tables(subjects: Sequence[ReportSubject]) -> Iterator[ReportTable]:
    for subject in subjects:
        for name, found in subject.verdict.examples.items():
            if found:
                words = next((e.label for _, g in counts.GROUPS for e in g if e.name == name), visible(name))
                columns = [each for each in _PLACES if any(getattr(one, each) is not None for one in found)]
                total = max(subject.verdict.counts.get(name, 0), len(found))
                title = f"{words}: {count(len(found))} of {count(total)}{suffix(subject, subjects)}"
                yield ReportTable(
                    title, columns, [TableRow("", [_place(one, each) for each in columns]) for one in found]
                )


def _place(example: Example, column: str) -> TableCell:
    found = getattr(example, column)
    if found is None:
        return TableCell("–")
    return TableCell(str(found), found) if isinstance(found, int) else TableCell(visible(found))


def fault_table(subject: ReportSubject, whose: str) -> ReportTable:
    origin = subject.series.origin_us
    rows = [
        TableRow(
            f"{number} {visible(each.name)}",
            [
                TableCell(offset(each.from_us - origin), each.from_us - origin),
                TableCell(offset(each.to_us - origin), each.to_us - origin),
                TableCell(latency(each.to_us - each.from_us), each.to_us - each.from_us),
            ],
        )
        for number, each in enumerate(subject.faults, 1)
    ]
    return ReportTable(f"Faults{whose}", ("from", "to", "lasted"), rows)


def key_table(subject: ReportSubject, whose: str) -> ReportTable:
    rows = [
        TableRow(
            f"{visible(each.bucket)}/{visible(each.key)}",
            [
                TableCell(count(each.events), each.events),
                TableCell(latency(each.p99_us, MS), each.p99_us, "note" if is_few(each.events) else "plain"),
            ],
            FEW_TOLD if is_few(each.events) else "",
        )
        for each in subject.series.hottest
    ]
    return ReportTable(f"Hottest keys{whose}", ("events", "p99 to the log" if subject.run else "p99 of age"), rows)


# ------------------------------------------------------------------------------------------ how it was done


def detail_tables(subjects: Sequence[ReportSubject]) -> Iterator[ReportTable]:
    """All that is needed to repeat the run: of both runs side by side."""
    for title, found in (
        ("Replay", [_replay(each) for each in subjects]),
        ("Trace", [_trace(each.run.trace) if each.run else {} for each in subjects]),
        ("Verification", [_verification(each) for each in subjects]),
        ("Versions", [each.run.versions if each.run else {} for each in subjects]),
        ("Files", [_files(each) for each in subjects]),
    ):
        names = list(dict.fromkeys(name for each in found for name in each))
        rows = [TableRow(visible(name), [TableCell(visible(each.get(name, "–"))) for each in found]) for name in names]
        if rows:
            yield ReportTable(title, [visible(each.name) for each in subjects] if len(subjects) > 1 else (), rows)


def _replay(subject: ReportSubject) -> dict[str, str]:
    run = subject.run
    if run is None:
        return {}
    return {
        "run": run.run_id,
        "target": f"{run.target} {run.address}".strip(),
        "topic": run.topic,
        "speed": f"×{run.speed:g}" if run.speed else "as fast as allowed",
        "tasks": str(run.parts),
        "loop": str(loop_of(run)),
        "overload": run.overload,
        "started": moment(run.started_us),
        "host": f"{run.host}, {run.cores} cores",
        "prepared": run.prepared,
        **_options(run.options),
    }


def _trace(trace: Trace) -> dict[str, str]:
    return {
        "name": trace.name,
        "SHA-256": trace.sha256,
        "format": trace.format,
        "files": ", ".join(trace.sources),
        "events": f"{count(trace.events)} of {count(trace.keys)} keys in {count(trace.buckets)} buckets",
        "operations": ", ".join(f"{name} {count(found)}" for name, found in trace.operations.items()),
        "bytes": count(trace.bytes),
        "from": moment(trace.first_us),
        "to": moment(trace.last_us),
        "busiest second": f"{count(trace.peak_per_s)} events",
        "lines left out": ", ".join(f"{name} {count(found)}" for name, found in trace.dropped.items()) or "none",
        **_options(trace.options),
    }


def _verification(subject: ReportSubject) -> dict[str, str]:
    verdict = subject.verdict
    return {
        "topic": verdict.topic,
        "isolation": verdict.isolation,
        "time stamps": verdict.timestamp_type,
        "offsets": ", ".join(f"{name}: {first}–{behind}" for name, (first, behind) in verdict.offsets.items()),
        **_options(verdict.options),
    }


def _options(options: Mapping[str, str | int | float | bool | None]) -> dict[str, str]:
    """As they are given on the command line; what was not given is left out."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    return dict(_option(name, value) for name, value in given.items())


def _option(name: str, value: str | int | float | bool) -> tuple[str, str]:
    """Times and durations, which are kept in microseconds, are shown as such."""
    words = f"--{name.removesuffix('_us').replace('_', '-')}"
    if name.endswith("_us") and isinstance(value, int) and not isinstance(value, bool):
        return words, moment(value) if value >= _EPOCH_US else tick(value)
    return words, "yes" if value is True else str(value)


def _files(subject: ReportSubject) -> dict[str, str]:
    directory = subject.directory
    journals = len(list(directory.journal.glob("part=*/attempt=*.jsonl")))
    named = (directory.run, directory.faults, directory.verdict, directory.series)
    found = {
        str(each.relative_to(directory.path)): f"{count(each.stat().st_size)} bytes" for each in named if each.exists()
    }
    return found | ({"journal/part=*/attempt=*.jsonl": f"{count(journals)} files"} if journals else {})


def _columns(subjects: Sequence[ReportSubject]) -> Sequence[str]:
    return [*(visible(each.name) for each in subjects), "change"] if len(subjects) > 1 else ()


def suffix(subject: ReportSubject, subjects: Sequence[ReportSubject]) -> str:
    return f" · {visible(subject.name)}" if len(subjects) > 1 else ""
