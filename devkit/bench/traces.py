"""What traces cost delivery: a backlog without them, and with a receiver that takes spans, is slow, or is away.

In turns, each with daemons and a store of its own on one broker. The receiver runs in this program and reads what it
gets; the slow one answers a second later than it could. All share this host's processors.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from devkit.bench.backlog import Shape, deliver, print_turn
from devkit.bench.clusters import Clusters, running_clusters

TITLE = "traces: what a receiver of spans costs delivery that takes them, is slow, or is away"

SLOW_S = 1.0

_TRACES = '\n[traces]\nendpoint = "{url}"\nsample = {sample}\n'


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench traces` understands."""
    parser.add_argument("--sample", type=int, default=1, help="percentage of work that is sampled (default: 1)")
    parser.add_argument("--entries", type=int, default=500_000, help="of a turn (default: 500,000)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind (default: 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
        _receiver(0) as taking,
        _receiver(SLOW_S) as slow,
    ):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            away = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/traces"
        kinds = {"without": "", "taken": taking, "slow": slow, "away": away}
        shapes = {
            kind: Shape(workers=2, more=_TRACES.format(url=url, sample=options.sample) if url else "")
            for kind, url in kinds.items()
        }
        return asyncio.run(_turns(clusters, options, shapes, Path(folder)))


async def _turns(
    clusters: Clusters, options: argparse.Namespace, shapes: dict[str, Shape], folder: Path
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {kind: [] for kind in shapes}
    used: dict[str, list[float]] = {kind: [] for kind in shapes}
    for _ in range(options.rounds):
        for kind, shape in shapes.items():
            turn = await deliver(clusters, folder, options.entries, shape)
            rates[kind].append(turn.rate)
            used[kind].append(turn.daemon_cpu_s_per_1000)
            print_turn(kind, turn)
    found = {
        kind: {
            "rate": statistics.median(rates[kind]) / statistics.median(rates["without"]),
            "cpu": statistics.median(used[kind]) / statistics.median(used["without"]),
        }
        for kind in shapes
        if kind != "without"
    }
    for kind, each in found.items():
        print(f"{kind:6} / without:  rate {each['rate']:.2f}, the daemon's processor time {each['cpu']:.2f}")
    return {"rates": rates, "ratios": found}


@contextmanager
def _receiver(pause_s: float) -> Iterator[str]:
    """The URL of a receiver that answers so late."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(pause_s)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()
