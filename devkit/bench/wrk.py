"""Debian's wrk: as many requests as a server answers, from one thread."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devkit.bench.clusters import BenchError


@dataclass(frozen=True)
class Answered:
    """Requests that were answered, and the time from request to answer."""

    requests: int
    seconds: float
    p50_s: float
    p99_s: float


def wrk(script: Path, url: str, connections: int, seconds: float) -> Answered:
    """Run a script of `write_wrk_script`. Raises BenchError where a request is refused or breaks, or has no answer."""
    argv = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    argv += ["--timeout", "60s", "-s", str(script), url]  # a disk that stalls is to show in the latencies
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BenchError("wrk is missing: run scripts/setup, or install Debian's wrk") from None
    if done.returncode:
        raise BenchError(f"wrk failed: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    refused, broken = found.pop("refused"), found.pop("broken")
    if refused or broken:
        raise BenchError(f"{url}: {refused} requests were refused, and {broken} broke")
    if not found["requests"]:
        raise BenchError(f"{url}: no request was answered in {seconds:g} s")
    return Answered(**found)
