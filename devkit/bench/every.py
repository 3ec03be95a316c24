"""All benchmarks one after the other, at sizes that end within 40 minutes together on two processors.

Each is a run of `scripts/bench` of its own, on clusters that all of them share. What each one prints, its JSON and
its picture go into a folder; the figures in docs/benchmarks.md are those of such a run. One that fails does not keep
the others from running, and is told in the end.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from devkit.bench.clusters import BenchError, running_clusters
from devkit.paths import ROOT

TITLE = "all: everything below, one after the other, in less than 40 minutes"

RUNS: dict[str, list[str]] = {
    "drain": ["drain", "--entries", "150000", "--rounds", "2"],
    "drain-1-queue": ["drain", "--entries", "50000", "--queues", "1", "--rounds", "2"],
    "drain-20": ["drain", "--release", "20", "--entries", "150000", "--rounds", "2"],
    "endpoints": ["endpoints", "--entries", "20000", "--rounds", "1"],
    "memory": ["memory", "--hold=5", "--backlogs=10000,200000,2000000", "--queues=22", "--partitions=3"],
    "footprint": ["footprint", "--events", "1000000"],
    "ingest": ["ingest", "--seconds", "6"],
    "latency": ["latency", "--seconds", "15", "--rate", "8000"],
    "latency-rados": ["latency", "--store", "rados", "--seconds", "15", "--rate", "1000"],
    "exactly-once": ["exactly-once", "--entries", "200000", "--rounds", "3"],
    "limits": ["limits"],
    "scale": ["scale"],
    "idle": ["idle", "--seconds", "20", "--restarts", "2"],
    "isolation": ["isolation", "--entries", "100000", "--seconds", "8", "--rounds", "2"],
    "handover": ["handover"],
    "handover-rados": ["handover", "--store", "rados"],
    "replay": ["replay", "--seconds", "6"],
    "replay-verify": ["replay-verify"],
    "sequencer": ["sequencer", "--seconds", "0.3", "--rounds", "3"],
    "shaping": ["shaping", "--only", "hold", "--workers", "2", "--seconds", "16"],
    "traces": ["traces", "--entries", "200000", "--rounds", "2"],
    "shards": ["shards", "--seconds", "1", "--writers", "1,32,128", "--queues", "1,4,11"],
    "shards-latency": ["shards", "--commit-latency", "10ms", "--seconds", "1", "--queues", "1,11"],
    "against-kcat": ["against", "kcat", "--entries", "100000", "--rounds", "1"],
    "fleet": ["fleet", "--seeds", "1"],
    "consume": ["consume"],
    "reconcile": ["reconcile", "--objects", "1000000"],
    "lake": ["lake", "--events", "200000"],
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench all` understands."""
    parser.add_argument("--out", type=Path, default=ROOT / "bench-results", help="folder (default: bench-results)")
    parser.add_argument("--only", metavar="NAME", choices=sorted(RUNS), action="append", help="can be repeated")
    parser.add_argument("--more", default="", metavar="OPTIONS", help="for each of them, behind its own")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all of them; returns how long each took. Raises BenchError when one failed."""
    options.out.mkdir(parents=True, exist_ok=True)
    took: dict[str, float] = {}
    failed: list[str] = []
    with ExitStack() as stack:
        if options.only is None:
            stack.enter_context(running_clusters(options.name, options.keep))
        for name in options.only or RUNS:
            print(f"== {name}", flush=True)
            began = time.monotonic()
            if not _ran([*RUNS[name], *shlex.split(options.more)], name, options):
                failed.append(name)
            took[name] = round(time.monotonic() - began, 1)
    print("   ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items()))
    print(f"all in {sum(took.values()) / 60:.1f} minutes, in {options.out}")
    if failed:
        raise BenchError(f"failed: {', '.join(failed)}")
    return {"took_s": took}


def _ran(argv: list[str], name: str, options: argparse.Namespace) -> bool:
    """Whether a benchmark went well; shows what it says, and keeps it."""
    kept_as = ["--json", f"{name}.json", "--picture", f"{name}.png"]
    command = [sys.executable, str(ROOT / "scripts/bench"), *argv, *kept_as, "--name", options.name]
    if options.keep:
        command.append("--keep")
    with (
        (options.out / f"{name}.txt").open("w") as kept,
        subprocess.Popen(
            command, cwd=options.out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            kept.write(line)
    return process.returncode == 0
