"""Numbers of the sequencer beside those of Redis' `INCR`: 8 connections with 16 requests under way, in turns.

Each server shares one processor with its load. The loads are different programs (`redis-benchmark`, and the sequencer's
own in C), so what is compared is a server's processor time for a request; the rate for each second of processor time of
both stands beside it. Redis once keeps nothing, and once syncs each write (`appendfsync always`). Windows that others
disturbed count as in `sequencer`. In a last turn of each the server gets SIGKILL in the middle, and what it hands out
before and after, of a counter, is compared; see `devkit/bench/against_redis_killed.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from devkit.bench import programs
from devkit.bench.against_redis_killed import Ask, HandedOut, killed
from devkit.bench.clusters import BenchError
from devkit.bench.sequencer import (
    POOL,
    Load,
    Programs,
    Server,
    configuration_in,
    cores,
    free_address,
    remora_on,
    sequencer_running,
    summary,
    watched,
)
from devkit.bench.sigkill import PATIENCE_S
from devkit.processes.ports import free_port
from devkit.processes.processes import children_cpu_s
from remora.client import SequencerClient, SequencerUnavailable
from remora.model.log import LogKind, LogName

REDIS, REMORA = "redis", "remora sequencer"
LOAD = Load(8, 16)
KEPT = {
    "redis, nothing kept": ["--appendonly", "no"],
    "redis, each write synced": ["--appendonly", "yes", "--appendfsync", "always"],
}
WANTED = 1.0
"""Requests for a second of the server's processor time, beside a Redis that keeps nothing."""

FIRST_REQUESTS = 20_000
"""Of a first window, which says how many make one of the wanted length."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    missing = [name for name in ("redis-server", "redis-benchmark") if shutil.which(name) is None]
    if missing:
        raise BenchError(f"{missing[0]} is missing: install Debian's package redis-server")
    cpus = sorted(os.sched_getaffinity(0))[-1:]
    windows: dict[str, list[Mapping[str, float]]] = {name: [] for name in (*KEPT, REMORA)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-")))
        load = Programs(folder)
        ours = stack.enter_context(remora_on(folder, cores()[-1], 1))
        redis = {name: stack.enter_context(_redis(folder / name, name, free_port())) for name in KEPT}
        counts = {name: _enough(server, cpus, options.seconds) for name, server in redis.items()}
        for _ in range(options.rounds):
            for name, server in redis.items():
                windows[name].append(watched(server.pid, cpus, partial(_counted, server, counts[name], cpus)))
            windows[REMORA].append(watched(ours.pid, cpus, partial(load.load, ours, LOAD, options.seconds, cpus[0])))
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as place:
        after = _killed(Path(place))
    rows = {name: summary(each, "one") for name, each in windows.items()}
    value = rows[next(iter(KEPT))]["server_ns"] / rows[REMORA]["server_ns"]
    _print(rows, value)
    for name, found in after.items():
        print(f"after a SIGKILL: {name:26} {found.numbers:,} numbers, {found.copies:,} copies, "
              f"{found.out_of_order:,} others out of order")  # fmt: skip
    return {
        "version": _version(),
        "rows": rows,
        "ratio": {"wanted": WANTED, "value": value},
        "after_sigkill": {name: found.figures for name, found in after.items()},
    }


@contextmanager
def _redis(place: Path, name: str, port: int) -> Iterator[Server]:
    place.mkdir(exist_ok=True)
    argv = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(place), "--save", "", *KEPT[name]]
    with programs.running(argv, place / "log") as process:
        programs.answering(lambda: _ping(port), REDIS, place / "log")
        yield Server(name, f"127.0.0.1:{port}", process.pid, [])


def _ping(port: int) -> None:
    done = subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, check=False)
    if done.returncode:
        raise OSError(done.stderr)


def _enough(server: Server, cpus: Sequence[int], seconds: float) -> int:
    """Requests that take about so long."""
    first = _counted(server, FIRST_REQUESTS, cpus)
    return max(FIRST_REQUESTS, round(FIRST_REQUESTS / first["took_s"] * seconds))


def _counted(server: Server, requests: int, cpus: Sequence[int]) -> dict[str, float]:
    """A window of so many requests, as the sequencer's load tells of one."""
    words = ["-p", server.address.rpartition(":")[2], "-c", LOAD.connections, "-P", LOAD.depth, "-n", requests, "--csv"]
    argv = ["taskset", "--cpu-list", str(cpus[0]), "redis-benchmark", *map(str, words), "INCR", "ids"]
    began, own = time.monotonic(), children_cpu_s()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    figures = list(csv.DictReader(done.stdout.splitlines()))
    if done.returncode or not figures:
        raise BenchError(f"redis-benchmark failed: {done.stdout.strip()[-300:]} {done.stderr.strip()[-300:]}")
    return {
        "requests": requests,
        "positions": requests,
        "took_s": time.monotonic() - began,
        "client_cpu_s": children_cpu_s() - own,
        "p50_s": float(figures[0]["p50_latency_ms"]) / 1e3,
        "p99_s": float(figures[0]["p99_latency_ms"]) / 1e3,
    }


# --------------------------------------------------------------------------------------------- a SIGKILL


def _killed(folder: Path) -> dict[str, HandedOut]:
    """What each server hands out around a SIGKILL."""
    found = {}
    for name in KEPT:
        port = free_port()
        found[name] = killed(partial(_redis_killable, folder / name, name, port), partial(_redis_client, port))
    address = ":".join(free_address())
    configuration = configuration_in(folder, "counter", kind=LogKind.COUNTER)
    found[REMORA] = killed(partial(_sequencer_killable, configuration, address), partial(_sequencer_client, address))
    return found


@contextmanager
def _redis_killable(place: Path, name: str, port: int) -> Iterator[Callable[[], None]]:
    with _redis(place, name, port) as server:
        yield partial(os.kill, server.pid, signal.SIGKILL)


@contextmanager
def _sequencer_killable(configuration: Path, address: str) -> Iterator[Callable[[], None]]:
    with sequencer_running(configuration, address) as pid:
        yield partial(os.kill, pid, signal.SIGKILL)


@asynccontextmanager
async def _redis_client(port: int) -> AsyncIterator[Ask]:
    """A connection, made anew when it breaks."""
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask() -> int | None:
        nonlocal streams
        try:
            streams = streams or await asyncio.open_connection("127.0.0.1", port)
            reader, writer = streams
            writer.write(b"INCR ids\r\n")
            said = await reader.readuntil(b"\r\n")
        except (OSError, asyncio.IncompleteReadError):
            streams = None
            return None
        return int(said[1:]) if said.startswith(b":") else None  # else it still reads what it has kept

    try:
        yield ask
    finally:
        if streams is not None:
            streams[1].close()


@asynccontextmanager
async def _sequencer_client(address: str) -> AsyncIterator[Ask]:
    log = LogName(POOL.encode(), b"killed")
    async with SequencerClient([address], timeout_s=PATIENCE_S, repeats=False) as client:

        async def ask() -> int | None:
            try:
                return (await client.next(log)).position
            except SequencerUnavailable:
                return None

        yield ask


def _version() -> str:
    return subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def _print(rows: Mapping[str, Mapping[str, Any]], value: float) -> None:
    print("| server | µs a request | ratio | load, µs | requests for a second of one CPU | ratio | p99, µs |")
    print("|---|---|---|---|---|---|---|")
    first = next(iter(rows.values()))
    for name, each in rows.items():
        print(
            f"| {name} | {each['server_ns'] / 1e3:.2f} | {first['server_ns'] / each['server_ns']:.2f} | "
            f"{each['client_ns'] / 1e3:.2f} | {each['rate']:,.0f} | {each['rate'] / first['rate']:.2f} | "
            f"{each['p99_s'] * 1e6:,.0f} |{' busy' * each['busy']}"
        )
    print(f"beside a Redis that keeps nothing: {value:.2f} of {WANTED}   {'reached' if value >= WANTED else 'MISSED'}")
