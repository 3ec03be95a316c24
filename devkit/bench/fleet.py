"""What a thousand hosts do by remora's policies: how shards move, how even the load gets, what is read of the rows.

Each scenario is a script of `remora simulate`, model `fleet`, and runs once for each seed: in Spark, a task for each,
or with --local in this process. Both run the same function, and give the same lines. The scenarios, of an hour each:

  constant   a load by Zipf's law, as it is; or a prepared trace (--trace)
  burst      twenty shards get ten times their load for ten minutes
  failing    one of ten destinations fails for ten minutes
  hosts      a twentieth of the hosts joins, as many drain, and as many end without a word

The figures are those of each minute. --lines keeps the answers, one below the other.

With --ratio nothing of this runs, but another model: how even the rates of a hundred destinations are where so many
percent of the hosts leave one alone that fails (`quarantine_ratio`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devkit.bench.clusters import BenchError
from devkit.bench.quarantine_ratio import print_rows, ratios, sweep
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.simulate.form import NoScript
from remora_pipeline.simulate.side_by_side import COLUMNS, in_pandas, line_of

TITLE = "fleet: a thousand hosts in virtual time: how shards move by load, and what that costs (Spark)"
MINUTE_S = 60
EVENT_BYTES = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench fleet` understands."""
    parser.add_argument("--hosts", type=int, default=1000, help="hosts (default: 1000)")
    parser.add_argument("--workers", type=int, default=1, help="workers of each (default: 1)")
    parser.add_argument("--shards", type=int, help="shards of all (default: eleven for each worker)")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each scenario (default: 2)")
    parser.add_argument("--minutes", type=int, default=60, help="virtual minutes of each (default: 60)")
    parser.add_argument("--load", type=float, default=0.3, help="part of what the workers can do (default: 0.3)")
    parser.add_argument("--skew", type=float, default=0.4, help="exponent of Zipf's law (default: 0.4)")
    parser.add_argument("--strategy", choices=("threshold", "overload", "count"), default="threshold")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), action="append", help="can be repeated (default: all)")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="a prepared trace instead of Zipf's law")
    parser.add_argument("--speed", type=float, default=1.0, help="of the trace (default: 1)")
    parser.add_argument("--ratio", type=ratios, metavar="PERCENTS", help="compare quarantine.ratio, such as 100,30")
    parser.add_argument("--destinations", type=int, default=100, help="with --ratio (default: 100)")
    parser.add_argument("--local", action="store_true", help="in this process, without Spark")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="also write the answers, a line for each")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all scenarios and print what they did; returns the figures. Raises BenchError."""
    if options.ratio:
        rows = sweep(options.ratio, options.hosts, options.destinations, options.minutes, seed=1)
        print_rows(rows)
        return {"ratios": rows}
    names = [(name, seed) for name in options.scenario or SCENARIOS for seed in range(1, options.seeds + 1)]
    began, began_cpu = time.monotonic(), time.process_time()
    lines = _answers([json.dumps(script(options, name, seed)) for name, seed in names], options)
    took_s, cpu_s = time.monotonic() - began, time.process_time() - began_cpu
    turns = [figures(name, seed, json.loads(each)) for (name, seed), each in zip(names, lines, strict=True)]
    for name in dict.fromkeys(name for name, _ in names):
        _print(name, [turn for turn in turns if turn["scenario"] == name])
    where = f"{cpu_s / len(lines):.1f} s of a processor for each" if options.local else "in Spark"
    print(f"{len(lines)} times {options.minutes} minutes in {took_s:.1f} s, {where}")
    return {"took_s": took_s, "cpu_s": cpu_s if options.local else None, "turns": turns}


def _answers(scripts: Sequence[str], options: argparse.Namespace) -> list[str]:
    """The answer of each script, here or in Spark; kept where that is asked for. Raises BenchError."""
    try:
        lines = [line_of(each) for each in scripts] if options.local else in_spark(scripts)
    except (NoScript, ReplayError, ReplayRefused) as exc:
        raise BenchError(str(exc)) from exc
    if options.lines:
        options.lines.write_text("".join(f"{each}\n" for each in lines))
    return lines


def in_spark(scripts: Sequence[str]) -> list[str]:
    """The answers of the scripts in their order, each computed by a task of its own."""
    from remora_pipeline.replay.session import session  # slow to import, and needed without --local only

    with session("fleet", light=True) as spark:
        rows = spark.createDataFrame(list(enumerate(scripts)), "number long, script string")
        apart = rows.repartitionByRange(max(1, len(scripts)), "number")
        found = apart.mapInPandas(in_pandas, COLUMNS).orderBy("number").collect()
    return [row["line"] for row in found]


# ------------------------------------------------------------------------------------------ scenarios


def script(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """The script of one scenario: a run for each minute, and what happens between two of them."""
    workers = options.hosts * options.workers
    config: dict[str, Any] = {
        "hosts": options.hosts,
        "workers": options.workers,
        "shards": options.shards or 11 * workers,
        "destinations": 10,
        "strategy": options.strategy,
        "seed": seed,
    }
    if options.trace:
        config["load"] = {"trace": str(options.trace.resolve()), "speed": options.speed}
    else:
        config |= {"bytes": int(options.load * 100_000_000 * workers), "skew": options.skew}
    events = SCENARIOS[name](max(1, options.hosts // 20))
    steps: list[dict[str, Any]] = []
    for minute in range(options.minutes):
        steps += [step for at, step in events if at == minute]
        steps.append({"op": "run", "seconds": MINUTE_S})
    return {"version": 1, "model": "fleet", "config": config, "steps": steps}


SCENARIOS: Mapping[str, Callable[[int], list[tuple[int, dict[str, Any]]]]] = {
    "constant": lambda _some: [],
    "burst": lambda _some: [(20, {"op": "burst", "shards": 20, "factor": 10, "seconds": 600})],
    "failing": lambda _some: [(10, {"op": "fail", "destinations": 1, "seconds": 600})],
    "hosts": lambda some: [
        (10, {"op": "join", "hosts": some}),
        (20, {"op": "drain", "hosts": some}),
        (30, {"op": "leave", "hosts": some}),
    ],
}
"""What happens in each scenario, and at which minute; given a twentieth of the hosts."""


# ------------------------------------------------------------------------------------------ figures


def figures(name: str, seed: int, answered: dict[str, Any]) -> dict[str, Any]:
    """What an answer says of each of its minutes. Raises BenchError for a config that was refused."""
    if "refused" in answered:
        raise BenchError(answered["refused"])
    minutes = [each for each in answered["results"] if "moves" in each]
    return {
        "scenario": name,
        "seed": seed,
        "by_load": [each["moves"]["load"] for each in minutes],
        "by_number": [each["moves"]["count"] for each in minutes],
        "twice_in_grace": sum(each["twice_in_grace"] for each in minutes),
        "beyond_giver": sum(each["beyond_giver"] for each in minutes),
        "unowned": [each["unowned"] for each in minutes],
        "usage": {key: [each["usage"][key] for each in minutes] for key in ("min", "mean", "max", "stddev")},
        "read_bytes_per_s": [each["members"]["read_bytes_per_s"] for each in minutes],
        "quarantined": [each["quarantine"]["still_quarantined"] for each in minutes],
    }


def _print(name: str, turns: Sequence[dict[str, Any]]) -> None:
    """One line about a scenario: medians of its seeds, and the worst where that counts."""
    last = {key: statistics.median(turn["usage"][key][-1] for turn in turns) for key in ("mean", "max", "stddev")}
    first = statistics.median(turn["usage"]["stddev"][0] for turn in turns)
    print(
        f"{name}: moves by load {statistics.median(sum(turn['by_load']) for turn in turns):,.0f}, by number "
        f"{statistics.median(sum(turn['by_number']) for turn in turns):,.0f}, in the last quarter of an hour at most "
        f"{max(sum(turn['by_load'][-15:]) + sum(turn['by_number'][-15:]) for turn in turns)}; twice in grace "
        f"{max(turn['twice_in_grace'] for turn in turns)}, beyond their giver "
        f"{max(turn['beyond_giver'] for turn in turns)}; usage {last['mean']:.1f} % +- {last['stddev']:.1f} "
        f"(first {first:.1f}), at most {last['max']:.1f} %; rows read "
        f"{statistics.median(statistics.mean(turn['read_bytes_per_s']) for turn in turns) / 1e6:.1f} MB/s; most "
        f"quarantined {max(max(turn['quarantined']) for turn in turns)}; most unowned "
        f"{max(max(turn['unowned']) for turn in turns)}"
    )
