"""A replay's own limits: how punctual and how quick the generator is, and how quick it is with a daemon beside it.

Two tasks of one Spark session replay an invented trace of PUTs and DELETEs over many keys, with a few hot ones. First
into nothing, at a given rate: lateness is when an event was sent, less when it was due. Then as fast as allowed, into
nothing and into the ingest API of a daemon on the embedded store, whose endpoint nobody listens at. Generator, Spark
and daemon share this host's processors.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from devkit.bench import programs
from devkit.bench.clusters import BenchError
from devkit.bench.embedded import NOBODY, Embedded
from devkit.processes.processes import spent
from remora.model.errors import RemoraError
from remora_pipeline.cli.replay_run import run_command
from remora_pipeline.replay.layout import PreparedDirectory, Trace, write
from remora_pipeline.replay.session import ONCE, session

TITLE = "replay: the generator of `remora replay run`, alone and with a daemon beside it"

PUNCTUAL_US = 2000
"""A generator whose p99 of lateness is beyond this is too slow for the rate, or the host too busy."""

WANTED_RATE = 25_000.0
"""Events a second into ingest, as fast as allowed."""

_CHUNK = 100_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench replay` understands."""
    parser.add_argument("--rate", type=int, default=20_000, help="events/s of the punctual replay (default: 20000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the punctual replay (default: 10)")
    parser.add_argument("--events", type=int, default=500_000, help="of the quick replays (default: 500000)")
    parser.add_argument("--keys", type=int, default=50_000, help="in the traces (default: 50000)")
    parser.add_argument("--parts", type=int, default=2, help="tasks that send (default: 2)")
    parser.add_argument("--batch", type=int, default=500, help="events of a request (default: 500)")
    parser.add_argument("--shards", type=int, default=11, help="of the topic (default: 11)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as name:
        folder = Path(name)
        punctual = make_trace(folder / "punctual", int(options.rate * options.seconds), options.keys, options.rate)
        quick = make_trace(folder / "quick", options.events, options.keys, options.rate)
        figures: dict[str, Any] = {}
        with session("bench", master=f"local[{options.parts}]", light=True, settings=ONCE):
            figures["punctual"] = _replayed(punctual, folder / "run-1", options, "--null", "--speed", "1")
            _print_punctual(options.rate, figures["punctual"])
            figures["null"] = _replayed(quick, folder / "run-2", options, "--null", "--speed", "0")
            print(f"into nothing, as fast as allowed   {figures['null']['rate']:,.0f} events/s", flush=True)
            figures["ingest"] = _into_ingest(quick, folder, options)
            _print_ingest(figures["ingest"])
    return figures


def make_trace(folder: Path, events: int, keys: int, rate: int) -> PreparedDirectory:
    """An invented trace of evenly spaced events, always the same, written some at a time."""
    prepared, rng = PreparedDirectory(folder), Random(keys)
    prepared.events.mkdir(parents=True)
    seen = [0] * keys
    schema = pa.schema(
        [
            pa.field(name, pa.string() if name in ("op", "bucket", "key") else pa.int64(), nullable=name == "size")
            for name in ("seq", "ts_us", "op", "bucket", "key", "size", "kseq")
        ]
    )
    with pq.ParquetWriter(prepared.events / "part-0.parquet", schema) as writer:
        for start in range(0, events, _CHUNK):
            rows = []
            for seq in range(start, min(start + _CHUNK, events)):
                key = min(int(rng.paretovariate(1.1)), keys) - 1 if seq % 4 == 0 else rng.randrange(keys)
                op = "DELETE" if seq % 7 == 6 else "PUT"
                name = f"photos/2026/11/21/img-{key:010}.jpg"
                rows.append((seq, seq * 1_000_000 // rate, op, f"bench-{key % 3}", name, 1 << 20, seen[key]))
                seen[key] += 1
            writer.write_table(pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=schema))
    trace = Trace(
        name="invented", sha256="", sources=(), format="invented", options={}, events=events, keys=keys, buckets=3,
        first_us=0, last_us=(events - 1) * 1_000_000 // rate, bytes=events << 20, operations={}, dropped={},
        peak_per_s=rate, hottest=(),
    )  # fmt: skip
    write(prepared.trace, trace)
    return prepared


def _replayed(prepared: PreparedDirectory, out: Path, options: argparse.Namespace, *arguments: str) -> dict[str, Any]:
    """What `remora replay run --json` says, in the session that is there."""
    argv = [
        str(prepared.path),
        "--out",
        str(out),
        "--json",
        "--parts",
        f"{options.parts}",
        "--batch",
        f"{options.batch}",
    ]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            run_command.main([*argv, *arguments], standalone_mode=False)
    except (RemoraError, click.ClickException) as exc:
        raise BenchError(f"remora replay run: {exc}") from exc
    found: dict[str, Any] = json.loads(said.getvalue())
    if found["acked"] != found["in_trace"]:
        raise BenchError(f"{found['in_trace'] - found['acked']} events were not acknowledged")
    return found


def _into_ingest(prepared: PreparedDirectory, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    embedded = Embedded(folder, queue_bytes=1 << 30)
    (topic,) = uvloop.run(embedded.make_topics(["replay"], NOBODY, options.shards))
    with programs.remora_on(embedded) as process:
        uvloop.run(programs.listening(process, embedded))
        before = spent({"daemon": process.pid})
        where = ("--ingest", embedded.ingest, "--topic", topic.name)
        found = _replayed(prepared, folder / "run-3", options, "--speed", "0", *where)
        after = spent({"daemon": process.pid})
    there = uvloop.run(embedded.entries(topic))
    if there != found["acked"]:
        raise BenchError(f"{found['acked']:,} events were acknowledged, and {there:,} are there")
    used_s = after["daemon"] - before["daemon"]
    return found | {"daemon_cpu_s_per_1000": used_s * 1000 / there}


def _print_punctual(rate: int, found: dict[str, Any]) -> None:
    late_us = found["lateness_p99_us"]
    print(
        f"into nothing, at {rate:,} events/s   lateness p50 {found['lateness_p50_us'] / 1000:.2f} ms,"
        f" p99 {late_us / 1000:.2f} ms"
        + (
            ""
            if late_us <= PUNCTUAL_US
            else f"   TOO LATE: above {PUNCTUAL_US / 1000:g} ms, such a rate proves nothing here"
        ),
        flush=True,
    )


def _print_ingest(found: dict[str, Any]) -> None:
    rate = found["rate"]
    print(
        f"into ingest, as fast as allowed   {rate:,.0f} events/s   daemon's CPU ms per 1,000:"
        f" {found['daemon_cpu_s_per_1000'] * 1000:.1f}"
        + ("" if rate >= WANTED_RATE else f"   SLOW: below {WANTED_RATE:,.0f} events/s"),
        flush=True,
    )
