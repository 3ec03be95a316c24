"""On what a benchmark ran: versions, the machine, and what was asked for."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from devkit.paths import ROOT
from remora import __version__
from remora.codec.speedups import IMPLEMENTATION

_NO_SETTING = frozenset({"run", "command", "json", "name", "keep"})


def surroundings(options: argparse.Namespace) -> Mapping[str, Any]:
    """What stands in a benchmark's JSON beside its figures."""
    return {
        "benchmark": options.command,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "settings": {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
            if key not in _NO_SETTING
        },
        "versions": {
            "remora": __version__,
            "commit": _commit(),
            "codec": IMPLEMENTATION,
            "python": platform.python_version(),
            "aiokafka": version("aiokafka"),
            "sqlite": sqlite3.sqlite_version,
            "system": platform.platform(),
        },
        "machine": {
            "processors": os.cpu_count(),
            "processor": _processor(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "load_average": os.getloadavg()[0],
        },
    }


def _commit() -> str | None:
    """The commit of this checkout, with a `+` where files differ from it; None without git."""
    try:
        said = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()


def _processor() -> str | None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), None)
