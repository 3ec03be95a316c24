"""What all pictures have in common: measures, colours, axes of time and latency, and faults as shaded spans.

Everything has its place in inches, whatever is in it: a picture has a row for its title, one for its legend, as many as
the names of the faults need, and then its axes. So nothing overlaps, and the time axes of all pictures of a run stand
exactly one above the other.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter

from remora_pipeline.replay.layout import Fault
from remora_pipeline.replay.report.subject import ReportSubject
from remora_pipeline.replay.report.texts import shortened, tick, visible

# Okabe and Ito's colours, which differ for all kinds of sight, and on paper by their brightness.
INK, GREY, PALE = "#1a1a1a", "#6b6b6b", "#d9d9d9"
BLUE, VERMILION, GREEN, SKY, ORANGE, PURPLE = "#0072b2", "#d55e00", "#009e73", "#56b4e9", "#e69f00", "#a8528a"

DPI = 144
WIDTH, LEFT, RIGHT = 9.0, 0.95, 0.3
_TITLE, _LEGEND, _LANE, _BELOW, _BETWEEN = 0.36, 0.3, 0.19, 0.55, 0.2
_FLAG = 8.0
_MOST_LANES = 4
_FEW_FAULTS = 5

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every host
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "agg.path.chunksize": 10_000,
}


@contextmanager
def drawing() -> Iterator[None]:
    """The look of all pictures, whatever else the host has configured."""
    with style.context(["default", _STYLE]):
        yield


def png(figure: Figure) -> bytes:
    """The picture; the same one gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def frame(
    title: str, heights: Sequence[float], *, legends: int = 1, lanes: int = 0, right: float = RIGHT
) -> tuple[Figure, list[Axes]]:
    """A figure with axes of these heights in inches, from the top; the lower ones share the x axis of the first."""
    above = _TITLE + legends * _LEGEND + lanes * _LANE
    height = above + sum(heights) + _BETWEEN * (len(heights) - 1) + _BELOW
    figure = Figure(figsize=(WIDTH, height))
    figure.text(0.12 / WIDTH, 1 - 0.09 / height, title, va="top", fontsize=11, fontweight="bold")
    axes: list[Axes] = []
    top = height - above
    for each in heights:
        box = (LEFT / WIDTH, (top - each) / height, (WIDTH - LEFT - right) / WIDTH, each / height)
        axes.append(figure.add_axes(box, sharex=axes[0] if axes else None))
        top -= each + _BETWEEN
    for upper in axes[:-1]:
        upper.tick_params(labelbottom=False)
    return figure, axes


def legend(figure: Figure, axes: Axes, handles: Sequence[Artist] | None = None, *, row: int = 0) -> None:
    """Name the curves of an axes, or these, in a row under the title."""
    named = axes.get_legend_handles_labels()[0] if handles is None else list(handles)
    figure.legend(
        handles=named,
        loc="upper left",
        bbox_to_anchor=(axes.get_position().x0, 1 - (_TITLE + row * _LEGEND - 0.02) / figure.get_figheight()),
        borderaxespad=0,
        borderpad=0,
        ncols=max(1, len(named)),
        columnspacing=1.6,
        handlelength=2.2,
        handletextpad=0.5,
    )


def legend_box(figure: Figure, width: float, height: float) -> tuple[float, float, float, float]:
    """A place at the right end of the row under the title, as parts of the figure, for what is no list of curves."""
    total = figure.get_figheight()
    return ((WIDTH - RIGHT - width) / WIDTH, 1 - (_TITLE + height + 0.03) / total, width / WIDTH, height / total)


def nothing(axes: Axes, words: str) -> None:
    """Say in the middle of empty axes what it is that there is none of."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 3}
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=11, bbox=box)


# ------------------------------------------------------------------------------------------ axes of time and latency


@dataclass(frozen=True)
class TimeUnit:
    """In what the time axis counts."""

    name: str
    us: float

    @classmethod
    def fitting(cls, span_us: float) -> TimeUnit:
        """The unit in which a run of this length has neither many zeros nor many digits."""
        for name, us, most in (("ms", 1e3, 2e6), ("s", 1e6, 6e8), ("min", 6e7, 1.08e10)):
            if span_us < most:
                return cls(name, us)
        return cls("h", 3.6e9)


def timed(
    title: str, subject: ReportSubject, until_us: int, heights: Sequence[float], *, legends: int = 1
) -> tuple[Figure, list[Axes], TimeUnit]:
    """A figure whose axes share the time from the beginning of the replay, with its faults shaded and named."""
    unit = TimeUnit.fitting(until_us)
    end = until_us / unit.us
    spans = [span for each in subject.faults if (span := _span(each, subject, unit, end)) is not None]
    flags = fly(spans, end, WIDTH - LEFT - RIGHT)
    figure, axes = frame(title, heights, legends=legends, lanes=1 + max((flag.lane for flag in flags), default=-1))
    axes[0].set_xlim(0, end)
    axes[-1].set_xlabel(f"time since the {'replay began' if subject.run else 'first record'} ({unit.name})")
    axes[-1].xaxis.set_major_locator(
        MaxNLocator(nbins=10, steps=[1, 1.5, 2, 3, 6, 10] if unit.name == "min" else [1, 2, 2.5, 5, 10])
    )
    shade = 0.2 if len(spans) <= _FEW_FAULTS else 0.07  # so that many at a time do not hide what lies behind them
    for each in axes:
        for span in spans:
            each.axvspan(span.begin, span.end, color=ORANGE, alpha=shade, linewidth=0)
            each.axvline(span.begin, color=ORANGE, linewidth=0.9)
            each.axvline(span.end, color=ORANGE, linewidth=0.9)
    _raise(figure, axes[0], flags)
    return figure, axes, unit


class RoundDurations(Locator):
    """Ticks at 1, 2 and 5 of each power of ten where there is room for them, else at powers of ten."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self) -> Sequence[float]:
        """The ticks of what is in view."""
        assert self.axis is not None
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """The ticks between two durations in microseconds."""
        low, high = sorted((vmin, vmax))
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1, 2, 5), (1,)):
            found = [step * 10.0**power for power in decades for step in steps if low <= step * 10.0**power <= high]
            if len(found) <= self._most:
                break
        return found[:: len(found) // (self._most + 1) + 1]


def latency_axis(axes: Axes, which: Literal["x", "y"], *, most: int = 9) -> None:
    """Make an axis logarithmic, a factor of ten long at least, with at most `most` round durations on it."""
    axis, set_scale, set_limits = (
        (axes.xaxis, axes.set_xscale, axes.set_xlim) if which == "x" else (axes.yaxis, axes.set_yscale, axes.set_ylim)
    )
    set_scale("log")
    low, high = axis.get_view_interval()
    if high < 10 * low:
        middle = math.sqrt(low * high)
        set_limits(middle / math.sqrt(10), middle * math.sqrt(10))
    axis.set_major_locator(RoundDurations(most))
    axis.set_major_formatter(FuncFormatter(lambda us, _: tick(us)))
    axis.set_minor_locator(LogLocator(subs="all", numticks=12))
    axis.set_minor_formatter(NullFormatter())


# ------------------------------------------------------------------------------------------ names of faults


@dataclass(frozen=True)
class FaultSpan:
    """A fault on the time axis, in its unit."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Flag:
    """The name of a fault above the axes: its pole stands at `x`, its text begins at `left`; all in inches."""

    name: str
    x: float
    left: float
    width: float
    lane: int


def fly(spans: Sequence[FaultSpan], end: float, width: float) -> list[Flag]:
    """Names for spans on an axis of this width, in lanes, such that no text meets another text or another's pole.

    Where the names do not fit into a few lanes, the faults are numbered instead, as the table of faults is.
    """
    names = [shortened(drawable(span.name), 40) for span in spans]
    for texts in (names, [str(number + 1) for number in range(len(spans))]):
        flags = _placed(spans, texts, end, width)
        if len(flags) == len(spans):
            break
    return flags


def _placed(spans: Sequence[FaultSpan], texts: Sequence[str], end: float, width: float) -> list[Flag]:
    """From the right, each in the lowest lane where it fits; those that fit nowhere are left out."""
    flags: list[Flag] = []
    for span, text in sorted(zip(spans, texts, strict=True), key=lambda pair: -pair[0].begin):
        x, needed = width * span.begin / end, _text_width(text) + 0.12
        left = x if x + needed <= width else x - needed
        for lane in range(_MOST_LANES):
            flag = Flag(text, x, left, needed, lane)
            if not any(_collide(flag, other) or _collide(other, flag) for other in flags):
                flags.append(flag)
                break
    return flags


def _collide(one: Flag, other: Flag) -> bool:
    """Whether two texts overlap, or the pole of the first goes through the text of the other."""
    overlap = one.lane == other.lane and one.left < other.left + other.width and other.left < one.left + one.width
    is_pierced = one.lane >= other.lane and other.left <= one.x < other.left + other.width
    return overlap or is_pierced


def _raise(figure: Figure, axes: Axes, flags: Sequence[Flag]) -> None:
    """Draw the flags above the topmost axes."""
    height = figure.get_figheight()
    box = axes.get_position()
    for flag in flags:
        x = (box.x0 * WIDTH + flag.x) / WIDTH
        text_x = (box.x0 * WIDTH + flag.left + 0.04) / WIDTH
        y = box.y1 + (0.05 + flag.lane * _LANE) / height
        top = y + 0.13 / height
        figure.add_artist(Line2D([x, x], [box.y1, top], transform=figure.transFigure, color=ORANGE, linewidth=0.9))
        figure.text(text_x, y, flag.name, fontsize=_FLAG, color="#8a5a00", va="bottom")


def _span(fault: Fault, subject: ReportSubject, unit: TimeUnit, end: float) -> FaultSpan | None:
    """Where a fault is on the axis; None for one that was before or behind it."""
    begin, until = ((us - subject.series.origin_us) / unit.us for us in (fault.from_us, fault.to_us))
    if until < 0 or begin > end:
        return None
    return FaultSpan(fault.name, max(0.0, begin), min(end, max(begin, until)))


# ------------------------------------------------------------------------------------------ names in pictures


def drawable(text: str) -> str:
    """A name with a box for each character that the font does not have."""
    has = _characters()
    return "".join(c if ord(c) in has else "□" for c in visible(text))


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


@cache
def _text_width(text: str) -> float:
    """In inches, in the size of flags."""
    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text, size=_FLAG, prop=FontProperties(family="DejaVu Sans"))
    return float(path.get_extents().width) / 72
