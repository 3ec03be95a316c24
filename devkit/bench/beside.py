"""Two checkouts of remora measured in turns, so that what else the host does falls on both alike.

Each runs its own `scripts/bench ingest`, with its own daemon, generator and interpreter, after one `scripts/setup`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from devkit.bench.clusters import BenchError, running_clusters
from devkit.paths import ROOT

HERE, THERE = "here", "beside"


def ingest_in_turns(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark of ingest in both checkouts, `rounds` times each, and compare the medians."""
    checkouts = {HERE: ROOT, THERE: checkout(options.beside)}
    turns: dict[str, list[dict[str, Any]]] = {HERE: [], THERE: []}
    with (
        running_clusters(options.name, options.keep, [] if options.only == "store" else ["kafka"]),
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
    ):
        for number in range(options.rounds):
            for which in (THERE, HERE) if number % 2 == 0 else (HERE, THERE):
                print(f"== {which}, round {number + 1}", flush=True)
                turns[which] += _ran(checkouts[which], options, Path(folder) / "figures.json")
    return {"turns": turns, "compared": [_compared(load, turns) for load in _loads(turns[HERE])]}


def checkout(folder: Path) -> Path:
    """The folder of a checkout that is set up. Raises BenchError for any other."""
    found = folder.resolve()
    if not (found / ".venv/bin/remora").exists() or not (found / "scripts/bench").exists():
        raise BenchError(f"{folder} is no checkout of remora that scripts/setup has set up")
    return found


def _ran(root: Path, options: argparse.Namespace, figures: Path) -> list[dict[str, Any]]:
    given = {
        "seconds": options.seconds,
        "batch": options.batch,
        "connections": ",".join(map(str, options.connections)),
        "singles": options.singles,
        "shards": options.shards,
        "payload": options.payload,
        "partitions": options.partitions,
        "nice": options.nice,
        "name": options.name,
        "json": figures,
    } | ({"only": options.only} if options.only else {})
    command = [str(root / "scripts/bench"), "ingest", "--without-radosgw"]
    if subprocess.run([*command, *(f"--{name}={value}" for name, value in given.items())], check=False).returncode:
        raise BenchError(f"the benchmark in {root} failed")
    turns: list[dict[str, Any]] = json.loads(figures.read_text())["turns"]
    return turns


def _loads(turns: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return list(dict.fromkeys((turn["load"], turn["delivering"]) for turn in turns))


def _compared(load: tuple[str, bool], turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of one load in both checkouts, printed and returned."""
    found: dict[str, Any] = {"load": load[0], "delivering": load[1]}
    for which, all_turns in turns.items():
        own = [turn for turn in all_turns if (turn["load"], turn["delivering"]) == load]
        found[which] = {
            "rate": statistics.median(turn["rate"] for turn in own),
            "cpu_us": statistics.median(turn["cpu_s_per_1000"]["daemon"] for turn in own) * 1e3,
            "p99_s": statistics.median(turn["p99_s"] for turn in own),
            "peak_rss_bytes": max(turn["peak_rss_bytes"] for turn in own),
        }
    before, now = found[THERE], found[HERE]
    found["ratio"] = now["rate"] / before["rate"]
    print(
        f"{load[0]}, {'delivering' if load[1] else 'storing only'}:"
        f" {before['rate']:,.0f} -> {now['rate']:,.0f} events/s"
        f" = {found['ratio']:.2f} times; the daemon's CPU {before['cpu_us']:.1f} -> {now['cpu_us']:.1f} us an event;"
        f" p99 {before['p99_s'] * 1e3:.1f} -> {now['p99_s'] * 1e3:.1f} ms;"
        f" peak RSS {before['peak_rss_bytes'] / 1e6:.0f} -> {now['peak_rss_bytes'] / 1e6:.0f} MB",
        flush=True,
    )
    return found
