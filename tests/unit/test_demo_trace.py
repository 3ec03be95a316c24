"""The demo's trace: it lies in the repository, and is what is said of it."""

from __future__ import annotations

import csv
import gzip
import re
import subprocess
from collections import Counter
from pathlib import Path

from devkit.demo.embedded import OWN_TRACE
from devkit.paths import ROOT


def test_the_trace_is_what_its_readme_says() -> None:
    """Its operations, keys, seconds and the fullest second are those of the facts beside it, in half a megabyte."""
    with gzip.open(OWN_TRACE, "rt") as file:
        rows = list(csv.DictReader(file))
    told = OWN_TRACE.with_name("README.md").read_text()
    operations, seconds = Counter(each["op"] for each in rows), Counter(each["ts_us"] for each in rows)

    facts = [len(rows), operations["PUT"], operations["DELETE"], len({each["key"] for each in rows}), len(seconds)]
    assert [f"{fact:,}" for fact in (*facts, max(seconds.values()))] == re.findall(r"\b\d+,\d{3}\b", told)
    assert OWN_TRACE.stat().st_size < 550_000
    assert "Apache-2.0" in told


def test_nothing_names_files_outside_the_checkout() -> None:
    """A clone alone is enough: no document, script or module names a folder beside the checkout."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = [Path(ROOT / name) for name in files.split("\0") if name and not name.startswith("tests/")]

    beside = re.compile(rb"(?<![\w.])(?:\.\./|/\w+/)shared\b")
    found = [str(each) for each in texts if each.is_file() and beside.search(each.read_bytes())]

    assert found == []
