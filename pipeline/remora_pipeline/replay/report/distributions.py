"""Pictures of how latencies and events are spread, whenever they happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from remora_pipeline.replay.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    RIGHT,
    VERMILION,
    WIDTH,
    drawable,
    frame,
    latency_axis,
    legend,
    nothing,
)
from remora_pipeline.replay.report.latencies import CURVES, clock_us, is_few, label
from remora_pipeline.replay.report.subject import ReportSubject
from remora_pipeline.replay.report.texts import MS, count, shortened

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)))
"""The look of the first run, and that of the one that it is compared with."""

_COLORS = {"service": GREEN, "response": BLUE, "to_log": VERMILION, "age": VERMILION}

_NAMES, _P99 = 3.3, 2.0
_MOST_NAMES, _MOST_KEYS = 20, 15
_NO_SHARE = 1e-12
"""Below all axes: a logarithm needs something to draw down to."""


def tail(subjects: Sequence[ReportSubject]) -> Figure:
    """What share of events took longer than x, both axes logarithmic; of a second run with dashes."""
    title = "Latency tail: share of events that took longer"
    figure, (axes,) = frame(title, [3.6], legends=len(subjects), right=0.7)
    most = max((_samples(subject, name) for subject in subjects for name in CURVES), default=0)
    for subject, dash in zip(subjects, DASHES, strict=False):
        for name, points in subject.series.tail.items():
            if _samples(subject, name) and points:
                _curve(axes, name, points, dash)
    axes.set_xlabel("latency")
    axes.set_ylabel("share of events")
    if not axes.lines:
        axes.set_xticks([])
        axes.set_yticks([])
        nothing(axes, "no samples")
        return figure
    axes.set_yscale("log")
    axes.set_ylim(min(0.05, 0.5 / most), 1.3)
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.10g} %"))
    axes.yaxis.set_minor_locator(NullLocator())
    latency_axis(axes, "x")
    for share, mark in ((0.5, "p50"), (0.1, "p90"), (0.01, "p99"), (0.001, "p99.9"), (0.0001, "p99.99")):
        if share >= 1 / most:
            axes.text(1.01, share, mark, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=GREY)
    _name_curves(figure, axes, subjects)
    return figure


def partitions(subject: ReportSubject, _until_us: int) -> Figure:
    """How many records are in each partition, and what a fair share would be."""
    figure, (axes,) = frame("Spread over partitions", [1.8])
    records = dict.fromkeys(subject.verdict.offsets, 0) | subject.series.partitions
    found = sorted(records.items(), key=lambda pair: (len(pair[0]), pair[0]))
    axes.set_xlabel("partition")
    axes.set_ylabel("records")
    if not sum(records.values()):
        axes.set_xticks([])
        axes.set_yticks([])
        nothing(axes, "nothing in Kafka")
        return figure
    names, events = [name for name, _ in found], [events for _, events in found]
    axes.bar(range(len(found)), events, color=BLUE, width=0.75, label="records")
    axes.axhline(sum(events) / len(events), color=VERMILION, linestyle=(0, (4, 1.5)), label="a fair share")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.15 * max(events))
    axes.set_xlim(-0.6, len(found) - 0.4)
    step = len(found) // _MOST_NAMES + 1
    axes.set_xticks(range(0, len(found), step), [drawable(shortened(name, 12)) for name in names[::step]])
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(round(value))))
    legend(figure, axes)
    return figure


def hottest(subject: ReportSubject, _until_us: int) -> Figure:
    """The keys with most events, and the p99 of each."""
    keys = subject.series.hottest[:_MOST_KEYS]
    figure, (axes,) = frame("Hottest keys", [max(1.2, 0.24 * len(keys))], legends=0)
    box = axes.get_position()
    axes.set_position((_NAMES / WIDTH, box.y0, (WIDTH - _NAMES - RIGHT - _P99) / WIDTH, box.height))
    other = figure.add_axes(((WIDTH - RIGHT - _P99 + 0.2) / WIDTH, box.y0, (_P99 - 0.2) / WIDTH, box.height))
    axes.set_xlabel("events")
    other.set_xlabel("p99 to the log" if subject.run else "p99 of age")
    if not keys:
        for each in (axes, other):
            each.set_xticks([])
            each.set_yticks([])
        nothing(axes, "nothing in Kafka")
        return figure
    rows = range(len(keys))
    axes.barh(rows, [each.events for each in keys], color=BLUE, height=0.65)
    axes.set_yticks(rows, [shortened(drawable(f"{each.bucket}/{each.key}"), 44) for each in keys], fontsize=8.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(round(value))))
    for row, key in enumerate(keys):
        inside = "none" if is_few(key.events) else VERMILION
        other.plot([max(MS, key.p99_us)], [row], "o", color=VERMILION, markerfacecolor=inside, markersize=5)
    other.set_yticks(rows, [])
    latency_axis(other, "x", most=4)
    for each in (axes, other):
        each.set_ylim(len(keys) - 0.4, -0.6)
        each.grid(visible=False, axis="y")
        each.tick_params(axis="y", length=0)
    return figure


# ------------------------------------------------------------------------------------------ parts of them


def _samples(subject: ReportSubject, name: str) -> int:
    """How many there are to be drawn; without a schedule the response is the service, and is not drawn again."""
    found = subject.verdict.latencies.get(name)
    is_drawn = name in CURVES and (name != "response" or subject.has_schedule)
    return found.samples if found and is_drawn else 0


def _curve(axes: Axes, name: str, points: Sequence[tuple[int, float]], dash: Any) -> None:
    """Steps down to the largest sample, where the share above is nothing and the line ends at the bottom."""
    x = np.maximum([us for us, _ in points], clock_us(name))
    y = np.maximum([share for _, share in points], _NO_SHARE)
    axes.plot(np.append(x[:1], x), np.append([1.0], y), color=_COLORS[name], linestyle=dash, drawstyle="steps-post")


def _name_curves(figure: Figure, axes: Axes, subjects: Sequence[ReportSubject]) -> None:
    """A colour for each clock, and with two runs a dash for each of these; how many samples is with either."""
    shown = [name for name in CURVES if any(_samples(subject, name) for subject in subjects)]
    if len(subjects) == 1:
        numbers = {name: f", n = {count(_samples(subjects[0], name))}" for name in shown}
    else:
        numbers = dict.fromkeys(shown, "")
        looks = zip(subjects, DASHES, strict=False)
        runs = [Line2D([], [], color=INK, linestyle=dash, label=_name_of_run(each)) for each, dash in looks]
        legend(figure, axes, runs, row=1)
    has_schedule = any(subject.has_schedule for subject in subjects)
    names = {name: label(name, has_schedule=has_schedule) + numbers[name] for name in shown}
    legend(figure, axes, [Line2D([], [], color=_COLORS[name], label=text) for name, text in names.items()])


def _name_of_run(subject: ReportSubject) -> str:
    numbers = sorted({_samples(subject, name) for name in CURVES} - {0})
    shown = " to ".join(count(number) for number in dict.fromkeys((*numbers[:1], *numbers[-1:])))
    return f"{shortened(drawable(subject.name), 32)}, " + (f"n = {shown}" if shown else "no samples")
