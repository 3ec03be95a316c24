"""Pictures whose x axis is the time since the replay began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from remora_pipeline.replay.report.canvas import (
    BLUE,
    GREY,
    INK,
    PALE,
    SKY,
    VERMILION,
    TimeUnit,
    latency_axis,
    legend,
    legend_box,
    nothing,
    timed,
)
from remora_pipeline.replay.report.latencies import FEW_TOLD, is_few
from remora_pipeline.replay.report.subject import ReportSubject
from remora_pipeline.replay.report.texts import MS, US, count, tick
from remora_pipeline.replay.results import Interval

Floats = NDArray[np.floating[Any]]
Triples = Sequence[tuple[int, int, int] | None]

_HOLLOW = 5.0
_MOST_COLUMNS = 360
_FEW = 60
_FINEST_CLASS = 60
"""The class of density that begins at a millisecond, which is what Kafka's clock counts."""


def percentiles(subject: ReportSubject, until_us: int) -> Figure:
    """p50, p99 and the largest latency of what was due in each interval, to the log and to the answer."""
    intervals = subject.series.intervals
    since = "due" if subject.has_schedule else "sent"
    figure, (axes, lower), unit = timed(f"Latency by interval, from {since}", subject, until_us, [1.7, 1.7])
    _percentile_lines(axes, intervals, [each.to_log for each in intervals], unit, subject, MS)
    _percentile_lines(lower, intervals, [each.response for each in intervals], unit, subject, US)
    axes.set_ylabel(f"{since} → log")
    lower.set_ylabel(f"{since} → answer")
    legend(figure, axes)
    return figure


def lateness(subject: ReportSubject, until_us: int) -> Figure:
    """How late events were sent, by interval."""
    intervals = subject.series.intervals
    figure, (axes,), unit = timed("Send lateness by interval", subject, until_us, [2.0])
    _percentile_lines(axes, intervals, [each.lateness for each in intervals], unit, subject, US)
    limit_us = subject.verdict.options.get("max_lateness_us")
    if isinstance(limit_us, int | float) and limit_us > 0 and axes.lines:
        axes.axhline(limit_us, color=GREY, linestyle=":", label=f"most that the run's p99 may be ({tick(limit_us)})")
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.4 * limit_us))
    axes.set_ylabel("sent − due")
    legend(figure, axes)
    return figure


def rates(subject: ReportSubject, until_us: int) -> Figure:
    """Offered, completed and in Kafka, in one plot."""
    figure, (axes,), unit = timed("Rate", subject, until_us, [2.6])
    intervals = subject.series.intervals
    axes.set_ylabel("events/s")
    if not intervals:
        axes.set_yticks([])
        nothing(axes, "no events")
        return figure
    if subject.run is not None:
        offered = "offered (due)" if subject.has_schedule else "offered (sent)"
        _rate(axes, subject, unit, [each.due for each in intervals], offered, _OFFERED)
        _rate(axes, subject, unit, [each.acked for each in intervals], "completed (acked)", _COMPLETED)
    _rate(axes, subject, unit, [each.in_log for each in intervals], "in Kafka", _IN_KAFKA)
    _counting(axes)
    legend(figure, axes)
    return figure


def backlog(subject: ReportSubject, until_us: int) -> Figure:
    """What was due and is not acked yet, and not in Kafka yet."""
    figure, (axes,), unit = timed("Backlog", subject, until_us, [2.2])
    axes.set_ylabel("events")
    intervals = subject.series.intervals
    if not intervals:
        axes.set_yticks([])
        nothing(axes, "no events")
        return figure
    since = "due" if subject.has_schedule else "sent"
    ends = [(each.t_us + subject.series.interval_us) / unit.us for each in intervals]
    for name, values, color, dash in (
        (f"{since} − acked", [each.backlog_acked for each in intervals], BLUE, "-"),
        (f"{since} − in Kafka", [each.backlog_in_log for each in intervals], VERMILION, (0, (4, 1.5))),
    ):
        axes.plot(ends, values, color=color, linestyle=dash, label=name, marker="." if len(ends) < _FEW else "")
    top = max(3.0, axes.get_ylim()[1])
    axes.set_ylim(-0.03 * top, top)  # so that a line at zero is seen
    _counting(axes)
    legend(figure, axes)
    return figure


def density(subject: ReportSubject, until_us: int) -> Figure:
    """How many events, by when they were due and how long they took to the log."""
    title = "Density of the time to the log" if subject.run else "Density of event age"
    figure, (axes,), unit = timed(title, subject, until_us, [2.6])
    axes.set_ylabel(f"{'due' if subject.has_schedule else 'sent'} → log" if subject.run else "event → log")
    cells = subject.series.density
    if not cells:
        axes.set_yticks([])
        nothing(axes, "nothing in Kafka")
        return figure
    x, y, events = _grid(cells, subject.series.interval_us)
    norm = LogNorm(vmin=1, vmax=max(2.0, float(events.max())))
    mesh = axes.pcolormesh(x / unit.us, y, np.ma.masked_equal(events, 0), norm=norm, cmap="viridis_r")
    latency_axis(axes, "y", most=6)
    bar = figure.colorbar(mesh, cax=figure.add_axes(legend_box(figure, 2.2, 0.1)), orientation="horizontal")
    bar.ax.tick_params(labelsize=8, length=2, pad=1)
    bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda events, _: count(round(events))))
    bar.ax.minorticks_off()
    bar.ax.text(-0.03, 0.5, "events in a cell", transform=bar.ax.transAxes, ha="right", va="center", fontsize=9)
    return figure


def marks(subject: ReportSubject, until_us: int) -> Figure:
    """Inversions with their depth, and duplicates, when they came into the log."""
    figure, (axes, strip), unit = timed("Inversions and duplicates", subject, until_us, [1.5, 0.45], legends=0)
    found = subject.series.marks
    inversions = [mark for mark in found if mark.kind == "inversion"]
    duplicates = [mark.t_us / unit.us for mark in found if mark.kind == "duplicate"]
    axes.set_ylabel("depth (kseq)" if subject.run else "depth")
    if inversions:
        axes.plot([mark.t_us / unit.us for mark in inversions], [mark.depth for mark in inversions], "v", color=BLUE)
        deepest = max(mark.depth for mark in inversions)
        if deepest > 20:
            axes.set_yscale("log")
        axes.set_ylim(0.5, deepest * 1.5)
        _counting(axes)
    else:
        axes.set_yticks([])
        nothing(axes, "no inversions")
    strip.set_yticks([])
    strip.grid(visible=False)
    if duplicates:
        strip.plot(duplicates, np.zeros(len(duplicates)), "|", color=VERMILION, markersize=16, markeredgewidth=0.8)
    else:
        nothing(strip, "no duplicates")
    strip.set_ylabel("dupli-\ncates", rotation=0, ha="right", va="center", labelpad=8)
    return figure


# ------------------------------------------------------------------------------------------ parts of them


_PERCENTILES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("p50", SKY, {}),
    ("p99", BLUE, {}),
    ("largest", VERMILION, {"linestyle": (0, (3, 1.2)), "linewidth": 1.0}),
)


def _percentile_lines(
    axes: Axes, intervals: Sequence[Interval], triples: Triples, unit: TimeUnit, subject: ReportSubject, clock_us: int
) -> None:
    """Three lines on a logarithmic axis; what is less than the clock counts is drawn as one of its ticks."""
    if not any(triples):
        axes.set_yticks([])
        nothing(axes, "no samples")
    middles = [(each.t_us + subject.series.interval_us / 2) / unit.us for each in intervals]
    values = np.array([triple or (np.nan,) * 3 for triple in triples], dtype=float).reshape(-1, 3)
    values = np.maximum(values, clock_us)
    marker = "." if len(middles) < _FEW else ""
    for (name, color, look), line in zip(_PERCENTILES, values.T, strict=True):
        axes.plot(middles, line, label=name, color=color, marker=marker, **look)
    few = [bool(triple) and is_few(each.due) for each, triple in zip(intervals, triples, strict=True)]
    if any(few):
        p99 = np.where(few, values[:, 1], np.nan)
        axes.plot(middles, p99, "o", label=FEW_TOLD, color=BLUE, markerfacecolor="none", markersize=_HOLLOW)
    if any(triples):
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        axes.set_ylim(low / 1.4, high * 1.4)
        latency_axis(axes, "y", most=6)


_OFFERED: dict[str, Any] = {"fill": True, "color": PALE, "edgecolor": INK, "linewidth": 0.6}
_COMPLETED: dict[str, Any] = {"color": BLUE, "linewidth": 1.6}
_IN_KAFKA: dict[str, Any] = {"color": VERMILION, "linewidth": 1.2, "linestyle": (0, (4, 1.5))}


def _rate(
    axes: Axes, subject: ReportSubject, unit: TimeUnit, events: Sequence[int], name: str, look: dict[str, Any]
) -> None:
    """Events per second as stairs: each step is one interval."""
    width_us = subject.series.interval_us
    edges = [each.t_us / unit.us for each in subject.series.intervals]
    edges.append(edges[-1] + width_us / unit.us)
    axes.stairs(np.array(events) * 1e6 / width_us, edges, label=name, **look)


def _counting(axes: Axes) -> None:
    """A y axis of events: whole numbers with separators."""
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=axes.get_ylim()[1] >= 3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))


def _grid(cells: Sequence[tuple[int, int, int]], interval_us: int) -> tuple[Floats, Floats, Floats]:
    """Edges in microseconds, and the sums of cells: as many intervals to a column as a picture needs."""
    found = np.array(cells, dtype=np.int64)
    wide = int(found[:, 0].max()) // _MOST_COLUMNS + 1
    columns, classes = found[:, 0] // wide, np.maximum(found[:, 1], _FINEST_CLASS)
    low = int(classes.min())
    events = np.zeros((int(classes.max()) - low + 1, int(columns.max()) + 1))
    np.add.at(events, (classes - low, columns), found[:, 2])
    x = np.arange(events.shape[1] + 1) * float(wide * interval_us)
    y = 10 ** ((low + np.arange(events.shape[0] + 1)) / 20)
    return x, y, events
