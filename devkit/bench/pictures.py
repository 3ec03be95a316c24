"""A benchmark's figures as a picture: bars of the medians, with a point for each turn; lines for `scale` and others."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]

LATENCIES_IN_A_LINE = 4


@dataclass(frozen=True)
class Panel:
    """Bars below each other; `what` they show, with its unit, and the figures of each by its name."""

    what: str
    bars: Mapping[str, Sequence[float]]


def picture_file(text: str) -> Path:
    """An option's value: where a picture goes, in a format that matplotlib knows by the name."""
    file = Path(text)
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"{text}: its name must end with .png, .svg or .pdf")
    return file


def draw(name: str, figures: Figures, file: Path) -> None:
    """The picture of the benchmark of this name; nothing for one that has no figures of its own."""
    if name == "scale":
        _draw_axes(figures, file)
    elif name == "fleet" and "ratios" in figures:
        _draw_ratios(figures["ratios"], file)
    elif name == "fleet":
        _draw_minutes(figures["turns"], file)
    elif name == "shards" and "latencies" in figures:
        _draw_latencies(figures["rows"], file)
    elif name == "shards":
        _draw_shards(figures["rows"], file)
    elif name in _PANELS:
        _draw_bars(name, _PANELS[name](figures), file)


def _draw_bars(title: str, panels: Sequence[Panel], file: Path) -> None:
    from matplotlib.figure import Figure  # slow to import, and seldom wanted

    heights = [0.8 + 0.4 * len(panel.bars) for panel in panels]
    figure = Figure(figsize=(8, 0.5 + sum(heights)), layout="constrained")
    rows = figure.subplots(len(panels), squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for row, panel in zip(rows, panels, strict=True):
        row.barh(list(panel.bars), [statistics.median(turns) for turns in panel.bars.values()], alpha=0.6)
        for place, turns in enumerate(panel.bars.values()):
            row.plot(turns, [place] * len(turns), "o", color="black", markersize=3)
        row.invert_yaxis()
        row.set(xlabel=panel.what, xlim=(0, None))
    figure.suptitle(title)
    figure.savefig(file)


def _draw_axes(figures: Figures, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(figures), 5), layout="constrained")
    for column, (axis, turns) in enumerate(figures.items()):
        values = [turn[axis] for turn in turns]
        for row, (what, key) in enumerate(
            (("entries/s", "rate"), ("daemon's CPU s per 1,000", "daemon_cpu_s_per_1000"))
        ):
            plot = figure.add_subplot(2, len(figures), 1 + column + row * len(figures))
            plot.plot(values, [turn[key] for turn in turns], marker="o")
            plot.set(xscale="log", xticks=values, xticklabels=[f"{value:,}" for value in values], ylim=(0, None))
            plot.set(xlabel=axis, ylabel=what if not column else None)
            plot.minorticks_off()
    figure.savefig(file)


def _draw_shards(rows: Sequence[Figures], file: Path) -> None:
    """A column for each store: events a second, and the slowest commits, over queues; a line for each many writers."""
    from matplotlib.figure import Figure

    stores = list(dict.fromkeys(row["store"] for row in rows))
    figure = Figure(figsize=(5 * len(stores), 7), layout="constrained")
    plots = figure.subplots(2, len(stores), squeeze=False, sharex=True)
    for column, store in enumerate(stores):
        here = [row for row in rows if row["store"] == store]
        rates, slowest = plots[:, column]
        for writers in dict.fromkeys(row["writers"] for row in here):
            line = [row for row in here if row["writers"] == writers]
            queues = [row["queues"] for row in line]
            rates.plot(queues, [row["rate"] for row in line], marker="o", label=f"{writers} writers")
            slowest.plot(queues, [row["p99_s"] * 1e3 for row in line], marker="o")
        ticks = sorted({row["queues"] for row in here})
        rates.set(title=store, ylim=(0, None), ylabel=None if column else "events/s")
        rates.legend()
        slowest.set(xscale="log", xticks=ticks, xticklabels=[str(tick) for tick in ticks], yscale="log")
        slowest.set(xlabel="queues", ylabel=None if column else "p99 of a commit, ms")
        slowest.minorticks_off()
    figure.savefig(file)


def _draw_latencies(rows: Sequence[Figures], file: Path) -> None:
    """A plot for each work and kind of queues: events a second over queues, a line for each latency.

    What is done without queues is a dashed line.
    """
    from matplotlib.figure import Figure

    shown = list(dict.fromkeys((row["work"], row["kind"]) for row in rows if row["queues"]))
    lines = -(-len(shown) // LATENCIES_IN_A_LINE)
    figure = Figure(figsize=(3.6 * LATENCIES_IN_A_LINE, 3 * lines), layout="constrained")
    for number, (work, kind) in enumerate(shown, 1):
        plot = figure.add_subplot(lines, LATENCIES_IN_A_LINE, number)
        here = [row for row in rows if (row["work"], row["kind"]) == (work, kind)]
        for place, asked_s in enumerate(dict.fromkeys(row["asked_s"] for row in rows)):
            line, color = [row for row in here if row["asked_s"] == asked_s], f"C{place}"
            queues, rates = [row["queues"] for row in line], [row["rate"] for row in line]
            plot.plot(queues, rates, marker="o", color=color, label=f"L = {asked_s * 1e3:g} ms")
            for row in rows:
                if (row["asked_s"], row["work"], row["queues"]) == (asked_s, work, 0):
                    plot.axhline(row["rate"], linestyle="--", linewidth=1, color=color)
        ticks = sorted({row["queues"] for row in here})
        plot.set(title=f"{work}: {kind}", xscale="log", xticks=ticks, xticklabels=[str(tick) for tick in ticks])
        plot.set(ylim=(0, None), xlabel="queues", ylabel="events/s")
        plot.minorticks_off()
        if number == 1:
            plot.legend()
    figure.savefig(file)


def _draw_minutes(turns: Sequence[Figures], file: Path) -> None:
    """A column for each scenario: spread of usage, moves and rows read over its minutes, a line for each seed."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(turn["scenario"] for turn in turns))
    figure = Figure(figsize=(4 * len(names), 7), layout="constrained")
    plots = figure.subplots(3, len(names), squeeze=False, sharex=True)
    for column, name in enumerate(names):
        usage, moves, rows = plots[:, column]
        for turn in turns:
            if turn["scenario"] != name:
                continue
            usage.plot(turn["usage"]["max"], color="tab:red")
            usage.plot(turn["usage"]["mean"], color="black")
            usage.plot(turn["usage"]["stddev"], color="tab:blue")
            moves.plot(turn["by_load"], color="tab:red")
            moves.plot(turn["by_number"], color="tab:blue")
            rows.plot([each / 1e6 for each in turn["read_bytes_per_s"]], color="black")
        usage.set(title=name, ylim=(0, None), ylabel=None if column else "usage, %: max, mean, deviation")
        moves.set(ylim=(0, None), ylabel=None if column else "moves: by load, by number")
        rows.set(ylim=(0, None), xlabel="minutes", ylabel=None if column else "rows read, MB/s")
    figure.savefig(file)


def _draw_ratios(rows: Sequence[Figures], file: Path) -> None:
    """The deviation of destinations' rates in each minute, a line for each ratio; quarantines that end early apart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    plots = figure.subplots(1, 2, sharey=True)
    for plot, early in zip(plots, (False, True), strict=True):
        for row in rows:
            if row["early_release"] is early:
                label = f"{row['ratio']:.0%}: {row['stddev_mb']:.1f} MB/s in all"
                plot.plot(row["by_minute_mb"], label=label)
        plot.set(title="early release" if early else "for half an hour", xlabel="minutes", ylim=(0, None))
        plot.legend(title="quarantine.ratio")
    plots[0].set(ylabel="deviation of a destination's rate, MB/s")
    figure.savefig(file)


# ------------------------------------------------------------------------------- what is shown of each


def _each(turns: Iterable[Figures], key: str, factor: float = 1) -> list[float]:
    return [turn[key] * factor for turn in turns]


def _drain(figures: Figures) -> list[Panel]:
    turns = {kind: each for kind, each in figures["turns"].items() if each}
    rates = {kind: _each(each, "rate") for kind, each in turns.items()}
    if figures["producer_performance"]:
        rates["ProducerPerformance beside a reader"] = figures["producer_performance"]
    return [
        Panel("entries/s", rates),
        Panel(
            "daemon's CPU, ms per 1,000",
            {kind: [turn["cpu_s_per_1000"]["daemon"] * 1e3 for turn in each] for kind, each in turns.items()},
        ),
        Panel("most resident memory, MB", {kind: _each(each, "peak_rss_bytes", 1e-6) for kind, each in turns.items()}),
    ]


def _exact(figures: Figures) -> list[Panel]:
    turns = figures["turns"]
    return [
        Panel("entries/s", {mode: _each(each, "rate") for mode, each in turns.items()}),
        Panel(
            "daemon's CPU, ms per 1,000",
            {mode: _each(each, "daemon_cpu_s_per_1000", 1e3) for mode, each in turns.items()},
        ),
    ]


def _limits(figures: Figures) -> list[Panel]:
    rates = {"remora": _each(figures["turns"], "rate"), "ProducerPerformance": figures["producer_performance"]}
    return [Panel("records/s", rates)]


def _consume(figures: Figures) -> list[Panel]:
    rows = {f"{row['shards']:,} shards, {row['partitions']} partitions": row["rates"] for row in figures["rows"]}
    return [Panel("records/s", rows)]


def _reconcile(figures: Figures) -> list[Panel]:
    name = f"{figures['objects']:,} objects"
    return [Panel("s", {name: [figures["took_s"]]}), Panel("memory, GB", {name: [figures["peak_rss_bytes"] / 1e9]})]


def _memory(figures: Figures) -> list[Panel]:
    steps = {f"{step['backlog']:,} entries, {step['what']}": [step["rss_bytes"] / 1e6] for step in figures["steps"]}
    return [Panel("resident memory, MB", steps)]


def _footprint(figures: Figures) -> list[Panel]:
    idle = {"idle": figures["idle"]}
    steps = idle | {f"{step['events']:,} events": [step] for step in figures["steps"]}
    return [
        Panel(f"{name}, MB", {what: [each[key] / 1e6 for each in found] for what, found in steps.items()})
        for name, key in (("resident", "rss_bytes"), ("in proportion", "pss_bytes"))
    ]


def _ingest(figures: Figures) -> list[Panel]:
    if "events_per_s" in figures:
        more = {f"{name} a request": [cost["more_us"]] for name, cost in figures.get("costs", {}).items()}
        costs = [Panel("more than by name, us an event", more)] if more else []
        return [Panel("events/s", figures["events_per_s"]), *costs]
    rates = {"radosgw's reserve and commit": [figures["enqueued"]["rate"]]} if "enqueued" in figures else {}
    doing = {False: "storing only", True: "delivering"}
    turns = {f"{turn['load']}, {doing[turn['delivering']]}": turn for turn in figures["turns"]}
    return [
        Panel("events/s", rates | {load: [turn["rate"]] for load, turn in turns.items()}),
        Panel("time of a request, p99, ms", {load: [turn["p99_s"] * 1e3] for load, turn in turns.items()}),
    ]


def _latency(figures: Figures) -> list[Panel]:
    return [
        Panel(f"age on {figures['store']}, {name}, ms", {turn["load"]: [turn[key] * 1e3] for turn in figures["turns"]})
        for name, key in (("p50", "p50_s"), ("p99", "p99_s"), ("p99.9", "p999_s"))
    ]


def _handover(figures: Figures) -> list[Panel]:
    gaps = {what: [max(gaps) for gaps in rounds] for what, rounds in figures["gaps_s"].items()}
    return [Panel(f"longest gap of any shard on {figures['store']}, s", gaps)]


def _endpoints(figures: Figures) -> list[Panel]:
    beside = {name: each["turns"] for name, each in figures.items() if "turns" in each}
    panels = [
        Panel(f"entries/s, {name}", {kind: _each(each, "rate") for kind, each in turns.items()})
        for name, turns in beside.items()
    ]
    alone = {way: each for way, each in figures.get("alone", {}).items() if isinstance(each, list)}
    return [*panels, Panel("entries/s, remora alone", {way: _each(each, "rate") for way, each in alone.items()})]


def _idle(figures: Figures) -> list[Panel]:
    idle, restart = figures["idle"], figures["restart"]
    return [
        Panel("of one processor, idle, %", {f"{idle['shards']:,} shards": [idle["cpu"] * 100]}),
        Panel(
            "seconds",
            {
                "all shards held after": [idle["served_after_s"]],
                "restart: first record after": restart["firsts_s"],
                "restart: last record after": [restart["last_s"]],
            },
        ),
    ]


def _isolation(figures: Figures) -> list[Panel]:
    if "share" in figures:
        return [Panel("entries/s", {kind: [rate] for kind, rate in figures["share"]["rates"].items()})]
    turns = figures["turns"]
    return [
        Panel("entries/s", {kind: _each(each, "rate") for kind, each in turns.items()}),
        Panel("age of a steady load, p99, ms", {kind: _each(each, "age_p99_s", 1e3) for kind, each in turns.items()}),
    ]


def _replay(figures: Figures) -> list[Panel]:
    late = figures["punctual"]
    return [
        Panel("events/s", {f"into {kind}": [figures[kind]["rate"]] for kind in ("null", "ingest")}),
        Panel("lateness, ms", {each: [late[f"lateness_{each}_us"] / 1e3] for each in ("p50", "p99")}),
    ]


def _replay_verify(figures: Figures) -> list[Panel]:
    turns = {f"{turn['records']:,} records": turn for turn in figures["turns"]}
    return [
        Panel("seconds", {name: [turn["seconds"]] for name, turn in turns.items()}),
        Panel("most memory, GB", {name: [turn["peak_bytes"] / 1e9] for name, turn in turns.items()}),
    ]


def _against(figures: Figures) -> list[Panel]:
    if "loads" in figures:
        return [
            panel
            for load, turns in figures["loads"].items()
            for panel in (
                Panel(f"events/s, {load}", {server: _each(each, "rate") for server, each in turns.items()}),
                Panel(
                    f"CPU, us an event, {load}",
                    {server: [turn["cpu_us"]["server"] for turn in each] for server, each in turns.items()},
                ),
            )
        ]
    if "turns" not in figures:
        return [
            Panel("requests for a second of one CPU", {name: each["rates"] for name, each in figures["rows"].items()})
        ]
    turns = figures["turns"]
    return [
        Panel("events/s", {sender: _each(each, "rate") for sender, each in turns.items()}),
        Panel("CPU, us an event", {name: [turn["cpu_us"]["sender"] for turn in each] for name, each in turns.items()}),
    ]


def _enqueue(figures: Figures) -> list[Panel]:
    return [Panel("events/s", {"radosgw's reserve and commit": [figures["enqueued"]["rate"]]})]


def _sequencer(figures: Figures) -> list[Panel]:
    if "rates" in figures:
        return [
            Panel(f"{work}/s", {what: [rate] for what, rate in figures["rates"].items() if what.startswith(work)})
            for work in ("positions", "appends")
        ]
    servers = figures["figures"]["one"]
    return [
        Panel(
            f"{of['of']} for a second of one CPU, {load}",
            {server: loads[load]["rates"] for server, loads in servers.items() if load in loads},
        )
        for load, of in servers["python"].items()
    ]


_PANELS: Mapping[str, Callable[[Figures], list[Panel]]] = {
    "drain": _drain,
    "exactly-once": _exact,
    "endpoints": _endpoints,
    "limits": _limits,
    "memory": _memory,
    "footprint": _footprint,
    "ingest": _ingest,
    "latency": _latency,
    "handover": _handover,
    "idle": _idle,
    "isolation": _isolation,
    "replay": _replay,
    "replay-verify": _replay_verify,
    "enqueue-radosgw": _enqueue,
    "sequencer": _sequencer,
    "consume": _consume,
    "reconcile": _reconcile,
    "against": _against,
}
