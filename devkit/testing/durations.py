"""How long each test took in the last three runs of this machine, and which are above their budget in all of them.

The figures lie beside the clusters of `scripts/dev-*`, in `durations.json`: seconds of the call alone, without the
servers that it waited for, by test.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from devkit.clusters.state import cache_home
from devkit.waits import slowness

BUDGETS_S = {"unit": 0.2, "engine": 1.0, "contract": 5.0, "acceptance": 30.0, "replay": 30.0}
"""By folder of `tests/`; a test marked `long` has none."""

RUNS = 3

_took: dict[str, float] = {}
_long: set[str] = set()


def begin() -> None:
    """Forgets an earlier run of this process."""
    _took.clear()
    _long.clear()


def keep(report: pytest.TestReport) -> None:
    """Notes the duration of a test's call."""
    if report.when == "call" and report.passed:
        name = report.nodeid.partition("@")[0]
        _took[name] = round(report.duration, 3)
        if "long" in report.keywords:
            _long.add(name)


def budget_s(test: str) -> float:
    """The seconds that a test of this folder may take on this machine."""
    folder = test.split("/")[1] if test.startswith("tests/") else ""
    return BUDGETS_S.get(folder, BUDGETS_S["replay"]) * slowness()


def tell(reporter: Any) -> None:
    """Keeps this run's figures, and writes the tests that were above their budget in each of the last runs."""
    if not _took or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    file = cache_home() / "durations.json"
    before: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
    runs = before | {test: [*before.get(test, []), took][-RUNS:] for test, took in _took.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(runs, indent=0))
    part.replace(file)
    above = {
        test: min(runs[test])
        for test in _took.keys() - _long
        if len(runs[test]) == RUNS and min(runs[test]) > budget_s(test)
    }
    if above:
        reporter.section("above their budget three times in a row")
        for test, least in sorted(above.items(), key=lambda each: -each[1]):
            reporter.line(f"{least:7.2f} s of {budget_s(test):.1f}  {test}")
