"""Which pictures a report has, and what is said beside each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from remora_pipeline.replay.report import distributions, over_time
from remora_pipeline.replay.report.canvas import drawing, png
from remora_pipeline.replay.report.latencies import FEW_TOLD
from remora_pipeline.replay.report.subject import ReportSubject
from remora_pipeline.replay.report.texts import count, tick, visible


@dataclass(frozen=True)
class Picture:
    """A PNG, the file that it is in too, and what it shows in words."""

    file: str
    image: bytes
    title: str
    text: str


@dataclass(frozen=True)
class Panel:
    """A picture that is drawn of each run, on the same time axis; only of those for which `is_for` holds."""

    name: str
    title: str
    text: Callable[[ReportSubject], str]
    draw: Callable[[ReportSubject, int], Figure]
    is_for: Callable[[ReportSubject], bool] = lambda _: True


def _is_replay(subject: ReportSubject) -> bool:
    return subject.run is not None


def _width(subject: ReportSubject) -> str:
    return tick(subject.series.interval_us)


def _marks(subject: ReportSubject) -> str:
    counts = subject.verdict.counts
    parts = []
    for kind, name in (("inversion", "inversions"), ("duplicate", "duplicates")):
        drawn = sum(mark.kind == kind for mark in subject.series.marks)
        total = max(drawn, counts.get(name, 0))
        parts.append(f"{count(total)} {name}" + (f" (the first {count(drawn)} are drawn)" if drawn < total else ""))
    return (
        f"{' and '.join(parts)}, when their record came into the log. Depth: how many events of its key it fell behind."
    )


PANELS = (
    Panel(
        "percentiles",
        "Percentiles by interval",
        lambda subject: (
            f"Of what was due in each {_width(subject)}, p50 and p99 within 0.3 %; a gap: nothing was due. Hollow:"
            f" {FEW_TOLD}, which is little else than the largest."
        ),
        over_time.percentiles,
        _is_replay,
    ),
    Panel("rate", "Rate", lambda subject: f"Events per second, in steps of {_width(subject)}.", over_time.rates),
    Panel(
        "backlog",
        "Backlog",
        lambda _: "What was due so far, less what was acked or in Kafka so far. Back to zero means caught up.",
        over_time.backlog,
        _is_replay,
    ),
    Panel(
        "density",
        "Density",
        lambda _: "Stalls show as slopes, periodic work as stripes. Kafka's clock counts whole milliseconds.",
        over_time.density,
    ),
    Panel(
        "lateness",
        "Send lateness",
        lambda _: "How well the generator kept its schedule: when this is large, the latencies are not the server's.",
        over_time.lateness,
        lambda subject: subject.has_schedule,
    ),
    Panel("marks", "Inversions and duplicates", _marks, over_time.marks),
    Panel(
        "partitions",
        "Spread over partitions",
        lambda subject: f"{count(len(subject.verdict.offsets))} partitions.",
        distributions.partitions,
    ),
    Panel(
        "keys",
        "Hottest keys",
        lambda _: f"By events; beside them the p99 of each (hollow: {FEW_TOLD}). Full names stand in the table below.",
        distributions.hottest,
    ),
)

FILES = frozenset({"tail.png"} | {f"{prefix}{panel.name}.png" for panel in PANELS for prefix in ("", "against-")})
"""All that a report may have."""


def pictures(subjects: Sequence[ReportSubject]) -> Iterator[list[Picture]]:
    """The pictures of a run, or of two side by side; what they share is drawn over one another."""
    until_us = max(each.end_us for each in subjects)
    with drawing():
        yield [Picture("tail.png", png(distributions.tail(subjects)), "Latency tail", _tail(subjects))]
        for panel in PANELS:
            drawn = [(each, panel.draw(each, until_us)) for each in subjects if panel.is_for(each)]
            align([figure for _, figure in drawn])
            if drawn:
                yield [_picture(panel, each, figure, subjects) for each, figure in drawn]


def align(figures: Sequence[Figure]) -> None:
    """Give pictures of the same thing the same y axes, so that they can be compared by eye."""
    if len(figures) < 2 or len({len(figure.axes) for figure in figures}) > 1:
        return
    for axes in zip(*(figure.axes for figure in figures), strict=True):
        scales = {each.get_yscale() for each in axes}
        if len(scales) == 1 and all(len(each.get_yticks()) for each in axes):
            limits = [each.get_ylim() for each in axes]
            for each in axes:
                each.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _picture(panel: Panel, subject: ReportSubject, figure: Figure, subjects: Sequence[ReportSubject]) -> Picture:
    is_first = subject is subjects[0]
    title = panel.title if len(subjects) == 1 else f"{panel.title} · {visible(subject.name)}"
    prefix = "" if is_first else "against-"
    return Picture(f"{prefix}{panel.name}.png", png(figure), title, panel.text(subject))


def _tail(subjects: Sequence[ReportSubject]) -> str:
    solid = f" The dashed curves are of {visible(subjects[1].name)}." if len(subjects) > 1 else ""
    return (
        "At 1 %, one event in a hundred took longer than x, which is the p99. A curve ends at its largest sample, and"
        f" percentiles of less than one event are not marked. The clocks are named in the table above.{solid}"
    )
