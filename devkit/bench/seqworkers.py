"""What a second worker of the sequencer brings, beside what a second process brings to the ceiling, and beside a peer.

All servers run at the same time, and each window measures one of them: `remora sequencer` with one worker and with two,
and the ceiling with one process and with two. The first process of each is bound to one of two processors and the
second to the other, and the load may use both, so that all are placed alike. The threads of a peer, another server that
speaks the protocol, may use both as well. The load checks that each position comes once, over all of its connections
and so over both workers.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from devkit.bench.clusters import BenchError
from devkit.bench.sequencer import Load, Programs, Server, cores, pin, remora_on
from devkit.processes.processes import children

LOAD = Load(64)
WANTED = 0.9
"""The second worker's gain, as a part of the ceiling's."""

WANTED_BESIDE_PEER = 1.0
"""The rate of two workers, as a part of the peer's."""


def run(seconds: float, rounds: int, peer: Server | None = None) -> dict[str, Any]:
    """Measure and print; returns the figures. Raises BenchError without two processors and the compiled core."""
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    if len(cpus) < 2 or cores()[-1] != "compiled":
        raise BenchError("--workers needs two processors and the compiled core")
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-")))
        programs = Programs(folder)
        servers: dict[str, Server] = {}
        for count in (1, 2):
            servers[f"remora, {count}"] = remora = stack.enter_context(remora_on(folder, "compiled", 1, count))
            servers[f"ceiling, {count}"] = ceiling = stack.enter_context(programs.ceiling(count))
            _place(children(remora.pid) if count > 1 else [remora.pid], cpus)
            _place([ceiling.pid, *children(ceiling.pid)], cpus)
        if peer is not None:
            servers[peer.name] = peer
            pin(peer.pid, *cpus)
        order = random.SystemRandom()
        for _ in range(rounds):
            for name in order.sample(list(servers), len(servers)):
                rates.setdefault(name, []).append(_rate(programs, servers[name], seconds))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    gains = {what: medians[f"{what}, 2"] / medians[f"{what}, 1"] for what in ("remora", "ceiling")}
    found: dict[str, Any] = {"load": LOAD.name, "cpus": cpus, "rates": rates, "medians": medians, "gains": gains}
    if peer is not None:
        found["beside_peer"] = medians["remora, 2"] / medians[peer.name]
    _print(found)
    return found


def _place(pids: Sequence[int], cpus: Sequence[int]) -> None:
    for pid, cpu in zip(pids, cpus, strict=False):
        pin(pid, cpu)


def _rate(programs: Programs, server: Server, seconds: float) -> float:
    """Requests a second of a window, whose load runs on all processors. Raises BenchError where it finds a fault."""
    argv = programs.load_words(server.address, LOAD, seconds, server.logs)
    done = subprocess.run([str(each) for each in argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{server.name}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    rate: float = found["requests"] / found["took_s"]
    return rate


def _print(found: Mapping[str, Any]) -> None:
    print(f"-- {found['load']}, processors {', '.join(map(str, found['cpus']))}")
    for name, rate in found["medians"].items():
        windows = found["rates"][name]
        print(f"{name:12} {rate:12,.0f} requests/s ({min(windows):,.0f} to {max(windows):,.0f})")
    for what, gain in found["gains"].items():
        print(f"{what:12} a second process brings {gain:.2f} times")
    part = found["gains"]["remora"] / found["gains"]["ceiling"]
    _print_gate("its part of the ceiling gain", part, WANTED)
    if "beside_peer" in found:
        _print_gate("two workers / peer", found["beside_peer"], WANTED_BESIDE_PEER)


def _print_gate(name: str, value: float, wanted: float) -> None:
    print(f"{name:50} {value:.2f} of {wanted}   {'reached' if value >= wanted else 'MISSED'}")
