"""The report: its numbers are the verdict's, and whatever happened it is a page that can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from remora_pipeline.cli.replay_report import report as command
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import Fault, RunDirectory, read, write
from remora_pipeline.replay.report import distributions, over_time, texts
from remora_pipeline.replay.report.canvas import LEFT, RIGHT, WIDTH, FaultSpan, drawing, fly
from remora_pipeline.replay.report.job import report
from remora_pipeline.replay.report.panels import FILES, align
from remora_pipeline.replay.report.subject import load
from remora_pipeline.replay.report.summary import Summary
from remora_pipeline.replay.results import Example, Percentiles, Series, TimelineMark, TopicVerdict
from replay.verified import ORIGIN_US, simulate, tail

PERCENTILES = ("p50_us", "p90_us", "p99_us", "p999_us", "max_us")
FEW = 200
LESS_US = 200_000


class Page(HTMLParser):
    """What a page says: numbers by the name of their row, cells in order; all words; all addresses it points to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.numbers: dict[str, list[tuple[float, str]]] = {}
        self.words = ""
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self._row: str | None = None
        self._value: float | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the row and the value that a text belongs to."""
        found = dict(attrs)
        self.tags.add(tag)
        self.addresses += [value for name in ("src", "href") if (value := found.get(name)) is not None]
        if tag == "tr":
            self._row = found.get("data-name")
        if tag == "data":
            self._value = float(found["value"] or "nan")

    def handle_data(self, data: str) -> None:
        """A text, which is that of a number when one has begun."""
        if self.get_starttag_text() != "<style>":
            self.words += data
        if self._value is not None and self._row is not None:
            self.numbers.setdefault(self._row, []).append((self._value, data))
        self._value = None


def page_of(run: RunDirectory) -> Page:
    """The page that was made of a run."""
    return Page((run.report / "index.html").read_text())


def words_in(figure: Figure) -> set[str]:
    """All texts of a figure, those of its axes too."""
    return {each.get_text() for axes in figure.axes for each in axes.texts} | {each.get_text() for each in figure.texts}


def fault(name: str, begin_s: float, end_s: float) -> Fault:
    """Something that was done to the server, this many seconds after the beginning."""
    return Fault(name, ORIGIN_US + int(begin_s * 1e6), ORIGIN_US + int(end_s * 1e6))


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with losses and inversions, on which a report was made."""
    run = simulate(
        tmp_path_factory.mktemp("runs") / "failed",
        events=FEW,
        seconds=1,
        interval_us=LESS_US,
        faults=[fault("broker down", 0.2, 0.5), fault("daemon killed", 0.6, 0.6)],
        marks=[
            TimelineMark(500_000, "inversion", 3),
            TimelineMark(600_000, "inversion", 40),
            TimelineMark(700_000, "duplicate", 0),
        ],
        counts={"lost": 2, "inversions": 2, "max_depth": 40, "duplicates": 1, "in_kafka": 12_345, "resent": 1},
        examples={"lost": (Example(bucket="tides", key="north.csv", seq=17, kseq=2),)},
        reasons=["2 events were acknowledged and are not in Kafka"],
        caveats=["opaqueData was compared with nothing"],
    )
    report(run.path)
    return run


# ------------------------------------------------------------------------------------------ numbers


def test_counts_on_the_page_are_the_verdicts(failed: RunDirectory) -> None:
    """The page has each count of the verdict once, with the same value, and the text beside it says it too."""
    found = page_of(failed).numbers
    counts = read(failed.verdict, TopicVerdict).counts

    assert {name: [value for value, _ in found[name]] for name in counts} == {name: [n] for name, n in counts.items()}
    assert [found[name][0][1] for name in counts] == [f"{n:,}" for n in counts.values()]


UNUSED = {"limited": 0, "limited_us": 0, "numbered": 0, "number_gaps": 0, "number_gaps_explained": 0,
          "numbers_repeated": 0, "numbers_torn": 0, "numbers_inverted": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("used", "behind"), [({}, 8), ({"numbered": 9}, 2), ({"limited": 2}, 6), ({"numbers_torn": 1}, 7)]
)
def test_zeros_of_what_is_not_used_come_last(tmp_path: Path, used: dict[str, int], behind: int) -> None:
    """Counts of numbers and limits that a run does not use stand behind the pictures, each once; those that are
    something, and what belongs to them, stand before."""
    run = simulate(tmp_path / "run", events=3, counts=UNUSED | used)
    report(run.path)

    before, _, after = (run.report / "index.html").read_text().partition('<section id="pictures">')

    found = [name in Page(after).numbers for name in UNUSED]
    assert [name in Page(before).numbers for name in UNUSED] == [not each for each in found]
    assert sum(found) == behind


@pytest.mark.parametrize(("events", "is_marked"), [(99, True), (100, False)])
def test_a_p99_of_few_events_is_marked(tmp_path: Path, events: int, is_marked: bool) -> None:
    """A p99 of fewer than 100 events is marked in each picture with intervals, with the keys, and in the tables."""
    keys = [("tides", "one")]
    run = simulate(tmp_path / "run", events=events, seconds=0.1, interval_us=10_000_000, keys=keys)
    report(run.path)
    subject = load(run.path)
    with drawing():
        figures = [over_time.percentiles(subject, subject.end_us), over_time.lateness(subject, subject.end_us)]
        keys_drawn = distributions.hottest(subject, subject.end_us)

    told = "p99 of fewer than 100 events"
    assert [any(told == line.get_label() for line in figure.axes[0].lines) for figure in figures] == [is_marked] * 2
    (point,) = keys_drawn.axes[1].lines
    assert (point.get_markerfacecolor() == "none") is is_marked
    html = (run.report / "index.html").read_text()
    tables = html.partition('<section id="pictures">')[0], html.partition('<section id="keys-table">')[2]
    assert [told in each for each in tables] == [is_marked] * 2


def test_latencies_on_the_page_are_the_verdicts(failed: RunDirectory) -> None:
    """The page has each percentile of each latency with its number of samples, rounded in the text and no more."""
    found = page_of(failed).numbers
    latencies = read(failed.verdict, TopicVerdict).latencies

    assert latencies.keys() == {"lateness", "service", "response", "to_log"}
    assert "Latencies samplesp50p90p99p99.9largest" in " ".join(page_of(failed).words.split())
    for name, expected in latencies.items():
        assert [v for v, _ in found[name]] == [expected.samples, *(getattr(expected, each) for each in PERCENTILES)]
        off_us = 500 if name == "to_log" else 0.5
        assert all(in_us(text) == pytest.approx(value, rel=1e-3, abs=off_us) for value, text in found[name][1:])


def in_us(text: str) -> float:
    """What a text like `12.35 ms` says."""
    number, unit = text.split()
    return float(number.replace(",", "")) * {"µs": 1, "ms": 1_000, "s": 1_000_000}[unit]


def test_summary_is_the_verdict_for_programs(failed: RunDirectory) -> None:
    """summary.json has the verdict, its reasons, counts and latencies unchanged, and the page's rates are its rates."""
    summary = read(failed.report / "summary.json", Summary)
    verdict = read(failed.verdict, TopicVerdict)
    rates = page_of(failed).numbers

    assert (summary.verdict, summary.reasons) == (verdict.verdict, verdict.reasons)
    assert summary.caveats == verdict.caveats
    assert (summary.counts, summary.latencies) == (verdict.counts, verdict.latencies)
    assert summary.rates.keys() == {"due", "acked", "in_log"}
    assert rates["rate-due"][1][0] == summary.rates["due"].over_us
    assert rates["rate-in_log"][3][0] == summary.rates["in_log"].peak_per_s
    assert rates["rate-due"][0][0] == FEW


def test_rates_and_backlogs_are_those_of_the_series(failed: RunDirectory) -> None:
    """A mean rate is over the time from the first to the last interval with events; a peak is that of one interval."""
    summary = read(failed.report / "summary.json", Summary)
    intervals = read(failed.series, Series).intervals

    due = summary.rates["due"]
    assert (due.events, due.over_us) == (FEW, 1_000_000)
    assert due.mean_per_s == pytest.approx(FEW)
    assert due.peak_per_s == max(each.due for each in intervals) * 1e6 / LESS_US
    assert summary.backlogs["in_log"] == max(each.backlog_in_log for each in intervals) > 0


def test_verdict_and_reasons_come_first(failed: RunDirectory) -> None:
    """The first words of the page are the verdict, why, and what it does not say; an example stands with its places."""
    words = page_of(failed).words.split("Counts")[0]

    assert "FAIL" in words
    assert "2 events were acknowledged and are not in Kafka" in words
    assert "not known: opaqueData was compared with nothing" in words
    assert "lost: 1 of 2 bucketkeyseqkseq tidesnorth.csv172" in " ".join(page_of(failed).words.split())


def test_two_runs_stand_side_by_side(failed: RunDirectory, tmp_path: Path) -> None:
    """With another run each number is there of both, with the difference of the two, and pictures of both."""
    run = simulate(tmp_path / "new", events=FEW, seconds=1, interval_us=LESS_US, seed=2, slow=2, run_id="r2")

    summary = report(run.path, failed.path)

    found = page_of(run).numbers
    assert [value for value, _ in found["lost"]] == [0, 2, -2]
    assert found["in_kafka"][2:] == [(FEW - 12_345, "−12,145")]
    new, old = (read(each.verdict, TopicVerdict).latencies["response"] for each in (run, failed))
    assert [v for v, _ in found["response"]][7:] == [getattr(old, each) for each in PERCENTILES]
    assert [v for v, _ in found["response-change"]] == [getattr(new, each) - getattr(old, each) for each in PERCENTILES]
    assert {"against-rate.png", "rate.png", "tail.png"} <= {each.name for each in run.report.iterdir()}
    assert read(run.report / "summary.json", Summary) == summary


def test_a_change_stands_beside_the_noise(tmp_path: Path) -> None:
    """What two replays of one trace differ by without faults, without a sign, stands below each change of a third."""
    first, again, run = (
        simulate(tmp_path / name, events=FEW, seconds=1, interval_us=LESS_US, seed=seed, slow=slow, run_id=name)
        for name, seed, slow in (("a", 1, 1), ("b", 2, 1), ("c", 3, 2))
    )

    summary = report(run.path, first.path, again.path)

    a, b = (read(each.verdict, TopicVerdict).latencies["response"] for each in (first, again))
    found = page_of(run)
    assert [v for v, _ in found.numbers["response-noise"]] == [
        abs(getattr(a, each) - getattr(b, each)) for each in PERCENTILES
    ]
    assert " · noise" in found.words
    assert summary.noise is not None
    assert set(summary.noise.latencies) == {"lateness", "service", "response", "to_log"}
    assert read(run.report / "summary.json", Summary) == summary
    assert report(run.path, first.path).noise is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"speed": 30.0}, "--speed is another one"),
        ({"faults": [fault("broker down", 0.2, 0.5)]}, "has faults"),
        ({"events": FEW}, ""),
    ],
)
def test_noise_is_of_replays_of_the_same(change: dict[str, object], told: str, tmp_path: Path) -> None:
    """Two replays at another speed, or one with a fault, have no noise between them: the report is refused."""
    same: dict[str, object] = {"events": FEW, "seconds": 1, "interval_us": LESS_US}
    run, first = simulate(tmp_path / "run", **same), simulate(tmp_path / "first", **same)  # type: ignore[arg-type]
    again = simulate(tmp_path / "again", **same | change)  # type: ignore[arg-type]

    if not told:
        assert report(run.path, first.path, again.path).noise is not None
        return
    with pytest.raises(ReplayRefused, match=told):
        report(run.path, first.path, again.path)


# ------------------------------------------------------------------------------------------ the page and its files


def test_page_needs_no_other_file(failed: RunDirectory) -> None:
    """All pictures are within the page, which runs no script; its only addresses are those of its own pictures."""
    page = page_of(failed)

    pictures = {address for address in page.addresses if not address.startswith("data:image/png;base64,")}
    assert pictures == {each.name for each in failed.report.glob("*.png")}
    assert not page.tags & {"script", "link", "iframe", "object"}
    assert "url(" not in (failed.report / "index.html").read_text()


def test_details_tell_how_to_do_it_again(failed: RunDirectory) -> None:
    """The end of the page has trace, hash, speed, host, cores, seed, options, versions and the raw files."""
    words = page_of(failed).words

    told = ("harbour", "5f" * 32, "×60", "tester, 2 cores", "--seed7", "--window2000", "--max-lateness5 ms", "4.2.0")
    for each in (*told, "verify/verdict.json"):
        assert each in words


def test_pictures_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    """A picture that a report does not have any more is gone; a file of somebody else stays."""
    run = simulate(tmp_path / "run", events=3, speed=0)
    run.report.mkdir()
    for name in (*FILES, "notes.txt"):
        (run.report / name).write_text("old")

    report(run.path)

    there = {each.name for each in run.report.iterdir()}
    assert "lateness.png" not in there
    assert not {name for name in there if name.startswith("against-")}
    assert (run.report / "notes.txt").read_text() == "old"
    assert (run.report / "rate.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_delivered_is_said(tmp_path: Path) -> None:
    """A run of no events has a page, and pictures that say that there is nothing."""
    run = simulate(tmp_path / "run", events=0)

    report(run.path)

    assert "nothing was delivered" in page_of(run).words
    subject = load(run.path)
    with drawing():
        assert {"no inversions", "no duplicates"} <= words_in(over_time.marks(subject, subject.end_us))
        assert "nothing in Kafka" in words_in(over_time.density(subject, subject.end_us))
        assert "nothing in Kafka" in words_in(distributions.partitions(subject, subject.end_us))
        assert "nothing in Kafka" in words_in(distributions.hottest(subject, subject.end_us))
        assert "no samples" in words_in(distributions.tail([subject]))
        assert "no events" in words_in(over_time.rates(subject, subject.end_us))


def test_one_event_is_drawn(tmp_path: Path) -> None:
    """A run of one event has all pictures, and its tail ends at that event."""
    run = simulate(tmp_path / "run", events=1, seconds=0.001)

    report(run.path)

    assert {each.name for each in run.report.glob("*.png")} == {name for name in FILES if "against" not in name}
    figure = distributions.tail([load(run.path)])
    response = read(run.verdict, TopicVerdict).latencies["response"].max_us
    assert response in {line.get_xdata()[-1] for line in figure.axes[0].lines}  # type: ignore[index]


def test_a_topic_alone_has_fewer_pictures(tmp_path: Path) -> None:
    """Without a journal nothing is shown of due times, answers or backlogs, and nothing is made up for them."""
    run = simulate(tmp_path / "run", events=FEW, seconds=1, interval_us=LESS_US)
    run.run.unlink()
    verdict, series = read(run.verdict, TopicVerdict), read(run.series, Series)
    ages = [1_000 * n for n in range(1, 50)]
    alone = {"in_kafka": FEW, "distinct": FEW, "duplicates": 0, "inversions": 0, "chain_gaps": 1}
    age = {"age": Percentiles("time stamp in Kafka - eventTime", 49, 25_000, 45_000, 49_000, 49_000, 49_000)}
    write(run.verdict, msgspec.structs.replace(verdict, run_id=None, counts=alone, latencies=age))
    bare = [
        msgspec.structs.replace(each, due=0, acked=0, response=None, to_log=None, lateness=None)
        for each in series.intervals
    ]
    write(run.series, msgspec.structs.replace(series, intervals=tuple(bare), tail={"age": tail(ages)}))

    summary = report(run.path)

    assert {each.name for each in run.report.glob("*.png")} == {
        "tail.png", "rate.png", "density.png", "marks.png", "partitions.png", "keys.png",
    }  # fmt: skip
    assert summary.rates.keys() == {"in_log"}
    assert summary.backlogs == {}
    found = page_of(run)
    assert "acked" not in found.numbers
    assert "lost" not in found.numbers
    assert found.numbers["age"][0] == (49, "49")


def test_as_fast_as_allowed_nothing_was_due(tmp_path: Path) -> None:
    """With speed 0 latencies count from when events were sent, and say so; there is no lateness and no limit to it."""
    run = simulate(tmp_path / "run", events=FEW, seconds=1, interval_us=LESS_US, speed=0)

    report(run.path)

    words = page_of(run).words
    assert "as fast as allowed" in words
    assert "sent → log" in words
    assert "due → log" not in words
    assert not (run.report / "lateness.png").exists()
    with drawing():
        legends = distributions.tail([load(run.path)]).legends
    assert [text.get_text() for each in legends for text in each.get_texts()] == [
        f"sent → answer, n = {FEW}",
        f"sent → log, n = {FEW}",
    ]


def test_lateness_is_drawn_with_its_limit(failed: RunDirectory) -> None:
    """What makes a run invalid is a line in the picture of the send lateness."""
    subject = load(failed.path)

    with drawing():
        figure = over_time.lateness(subject, subject.end_us)

    assert 5_000 in {line.get_ydata()[0] for line in figure.axes[0].lines}  # type: ignore[index]
    assert "most that the run's p99 may be (5 ms)" in {each.get_text() for each in figure.legends[0].get_texts()}


def test_partitions_without_records_are_drawn(tmp_path: Path) -> None:
    """A partition in which nothing lies has its place, and its part in what a fair share is."""
    run = simulate(tmp_path / "run", events=FEW, seconds=1, interval_us=LESS_US)
    write(run.series, msgspec.structs.replace(read(run.series, Series), partitions={"1": 12}))
    subject = load(run.path)

    with drawing():
        axes = distributions.partitions(subject, subject.end_us).axes[0]

    assert [each.get_height() for each in axes.patches if isinstance(each, Rectangle)] == [0, 12]
    assert axes.lines[0].get_ydata()[0] == 6  # type: ignore[index]


def test_names_of_any_kind_are_shown_and_do_nothing(tmp_path: Path) -> None:
    """A key of markup, control characters, dollars or letters that no font has is text, in full, and breaks nothing."""
    odd = ["<script>alert(1)</script>", "a\nb\x00c", "safe\u202egnp.exe", "$x_{1}$ 100%+ü", "鍵" * 300, ""]
    run = simulate(
        tmp_path / "a $run$ & <more>",
        events=FEW,
        seconds=1,
        interval_us=LESS_US,
        keys=[("b&c", key) for key in odd],
        faults=[fault("<b>broker $x^2$ 断</b>", 0.1, 0.3)],
        examples={"lost": tuple(Example(bucket="b", key=key, detail="<i>") for key in odd)},
        counts={"lost": 6, "<img src=x>": 1},
    )

    report(run.path)

    page = page_of(run)
    assert not page.tags & {"script", "i", "img src=x"}
    for each in ("<script>alert(1)</script>", r"a\nb\x00c", r"safe\u202egnp.exe", "$x_{1}$ 100%+ü", "鍵" * 300):
        assert each in page.words
    assert "<b>broker $x^2$ 断</b>" in page.words


# ------------------------------------------------------------------------------------------ pictures


def test_faults_are_shaded_and_named_in_all_time_plots(failed: RunDirectory) -> None:
    """Each picture over time has each fault as a span in each of its axes, and its name above."""
    subject = load(failed.path)

    with drawing():
        for figure in time_plots(failed):
            assert {"broker down", "daemon killed"} <= words_in(figure)
            for axes in time_axes(figure):
                assert {(200, 300), (600, 0)} <= spans_in(axes)
    assert subject.end_us < 2_000_000  # so that the axes count milliseconds


def test_time_axes_stand_one_above_the_other(failed: RunDirectory) -> None:
    """The time axes of all pictures begin and end at the same place and time."""
    with drawing():
        boxes = {
            (*axes.get_xlim(), round(axes.get_position().x0 * WIDTH, 6), round(axes.get_position().x1 * WIDTH, 6))
            for figure in time_plots(failed)
            for axes in time_axes(figure)
        }

    assert boxes == {(0, load(failed.path).end_us / 1000, LEFT, WIDTH - RIGHT)}


def time_plots(run: RunDirectory) -> Iterator[Figure]:
    """All pictures of a run that have a time axis."""
    subject = load(run.path)
    for draw in (
        over_time.percentiles,
        over_time.rates,
        over_time.backlog,
        over_time.density,
        over_time.lateness,
        over_time.marks,
    ):
        yield draw(subject, subject.end_us)


def spans_in(axes: Axes) -> set[tuple[float, float]]:
    """Where each shaded span of an axes begins, and how long it is."""
    return {
        (round(each.get_x(), 6), round(each.get_width(), 6)) for each in axes.patches if isinstance(each, Rectangle)
    }


def time_axes(figure: Figure) -> list[Axes]:
    """The axes of a figure that count time, and no colour bar."""
    return [axes for axes in figure.axes if axes.get_xlim()[0] == 0]


def test_pictures_of_two_runs_have_the_same_axes(failed: RunDirectory, tmp_path: Path) -> None:
    """What is compared by eye has the same scale: the wider of both, in time and upwards."""
    slower = load(simulate(tmp_path / "run", events=2 * FEW, seconds=2, interval_us=LESS_US, slow=50, seed=5).path)
    subjects, until_us = [load(failed.path), slower], slower.end_us

    with drawing():
        for draw in (over_time.rates, over_time.percentiles, over_time.density):
            alone = [draw(each, until_us).axes[0].get_ylim() for each in subjects]
            figures = [draw(each, until_us) for each in subjects]
            align(figures)

            limits = {(each.axes[0].get_xlim(), each.axes[0].get_ylim()) for each in figures}
            widest = min(low for low, _ in alone), max(high for _, high in alone)
            assert limits == {(figures[0].axes[0].get_xlim(), widest)}


def test_a_fault_of_another_time_is_listed_and_not_drawn(tmp_path: Path) -> None:
    """A fault before the replay is in the table of faults, and in no picture; one that reaches into it is cut."""
    faults = [fault("long ago", -9, -8), fault("from before", -1, 0.5)]
    run = simulate(tmp_path / "run", events=FEW, seconds=1, interval_us=LESS_US, faults=faults)

    report(run.path)

    assert "long ago" in page_of(run).words
    subject = load(run.path)
    with drawing():
        figure = over_time.rates(subject, subject.end_us)
    assert "long ago" not in words_in(figure)
    assert "from before" in words_in(figure)
    assert spans_in(figure.axes[0]) == {(0, 500)}


@given(
    st.lists(
        st.tuples(st.floats(0, 60), st.floats(0, 20), st.sampled_from(["broker down", "x", "a long name of a fault"])),
        max_size=30,
    )
)
def test_names_of_faults_never_meet(drawn: list[tuple[float, float, str]]) -> None:
    """However faults lie, their names are on the axis, no two overlap, and no pole goes through a name."""
    spans = [FaultSpan(name, begin, min(60.0, begin + lasted)) for begin, lasted, name in drawn]

    flags = fly(spans, 60.0, WIDTH - LEFT - RIGHT)

    for flag in flags:
        assert flag.left >= 0
        assert flag.left + flag.width <= WIDTH - LEFT - RIGHT + 1e-9
    for one, other in combinations(flags, 2):
        if one.lane == other.lane:
            assert one.left + one.width <= other.left or other.left + other.width <= one.left
        high, low = (one, other) if one.lane > other.lane else (other, one)
        assert not low.left <= high.x < low.left + low.width or high.lane == low.lane


# ------------------------------------------------------------------------------------------ bad input, and the command


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("verify/verdict.json", None, "no verdict"),
        ("verify/verdict.json", b"{", "verdict.json"),
        ("verify/series.json", None, "series.json: is missing; .* without --no-series"),
        ("verify/series.json", b"[]", "series.json"),
        ("run.json", None, "run.json: is missing"),
        ("run.json", b"\xff", "run.json"),
        ("faults.json", b'[{"name": "x"}]', "faults.json"),
        ("report", b"", "report"),
    ],
)
def test_what_cannot_be_read_is_named(file: str, content: bytes | None, expected: str, tmp_path: Path) -> None:
    """A file that is missing or broken is named in one line, and no page is made."""
    run = simulate(tmp_path / "run", events=3)
    (run.path / file).unlink(missing_ok=True)
    if content is not None:
        (run.path / file).write_bytes(content)

    with pytest.raises(ReplayRefused, match=expected) as caught:
        report(run.path)

    assert "\n" not in str(caught.value)
    assert not (run.report / "index.html").exists()


def test_a_verdict_on_another_run_is_refused(tmp_path: Path) -> None:
    """A verdict that is not on the run beside it is refused, with both names."""
    run = simulate(tmp_path / "run", events=3)
    write(run.verdict, msgspec.structs.replace(read(run.verdict, TopicVerdict), run_id="r9"))

    with pytest.raises(ReplayRefused, match=r"run\.json: is of run r1, and the verdict is on run r9"):
        report(run.path)


def test_command_says_the_verdict_and_where_the_page_is(failed: RunDirectory) -> None:
    """The command prints verdict and page, and ends with 0 for a run that failed; it imports nothing of Spark."""
    code = (
        "import sys; from remora.cli import group; group(sys.argv[1:], standalone_mode=False);"
        " assert not [name for name in sys.modules if name.startswith(('pyspark', 'py4j'))]"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "replay", "report", failed.path], capture_output=True, text=True
    )

    assert done.returncode == 0
    assert not [line for line in done.stderr.splitlines() if "drawing the pictures" not in line]
    assert done.stdout.splitlines() == [
        "FAIL  2 events were acknowledged and are not in Kafka",
        str(failed.report / "index.html"),
    ]


def test_same_files_make_the_same_report(failed: RunDirectory) -> None:
    """A report that is made again has the same bytes, in every file; with --json its summary is printed."""
    before = {each.name: each.read_bytes() for each in failed.report.iterdir()}

    done = CliRunner().invoke(command, [str(failed.path), "--json"])

    assert {each.name: each.read_bytes() for each in failed.report.iterdir()} == before
    assert json.loads(done.stdout) == json.loads(before["summary.json"])


# ------------------------------------------------------------------------------------------ numbers in words


@pytest.mark.parametrize(
    ("us", "clock_us", "text"),
    [
        (0, 1, "0 µs"),
        (7, 1, "7 µs"),
        (1_234, 1, "1.234 ms"),
        (12_345, 1, "12.35 ms"),
        (1_234_567, 1, "1.235 s"),
        (7_200_000_000, 1, "7,200 s"),
        (400, 1000, "<1 ms"),
        (12_345, 1000, "12 ms"),
        (1_234_567, 1000, "1.235 s"),
        (-5_000, 1000, "−5 ms"),
    ],
)
def test_durations_have_no_more_digits_than_their_clock(us: int, clock_us: int, text: str) -> None:
    """A duration is shown in up to four digits, and in none that its clock does not count."""
    assert texts.latency(us, clock_us) == text


@pytest.mark.parametrize(
    ("per_s", "text"), [(0, "0/s"), (8.364e-05, "0.0000836/s"), (5, "5.00/s"), (667.2, "667/s"), (12_345.6, "12,346/s")]
)
def test_rates_are_plain_numbers(per_s: float, text: str) -> None:
    """A rate is a number without an exponent, however small or large it is."""
    assert texts.rate(per_s) == text


@given(st.text())
def test_names_are_shown_on_one_line(name: str) -> None:
    """A shown name has nothing that hides or breaks the line, and can be read back: two names never look the same."""
    shown = texts.visible(name)

    assert shown.isprintable()
    assert shown.encode("latin-1", "backslashreplace").decode("unicode_escape") == name
