"""How the suite runs: what the gate leaves out, what shares a process, how many examples, and which tests are slow."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.paths import ROOT
from devkit.testing import durations

TESTS = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.fixture(scope="session")
def zone16(): ...
@pytest.fixture(scope="session")
def zone20(): ...
@pytest.fixture(params=[16, 20])
def zone(request): ...
@pytest.fixture(scope="module")
def broken(): ...

@pytest.mark.full("a release's")
def test_release(): ...
@pytest.mark.ceph
@pytest.mark.full("a release's")
def test_cluster(): ...
@pytest.mark.ceph
@pytest.mark.full("a release's, on each")
def test_each(zone): ...
@pytest.mark.ceph
def test_older(zone16): ...
def test_newer(zone20): ...
def test_both(zone): ...
def test_hurts(broken): ...
@pytest.mark.parametrize("kind", ["file", pytest.param("amqp", marks=pytest.mark.asks_for("rabbitmq"))])
def test_kinds(kind): ...
def test_plain(): ...

TRIED = []
@settings(max_examples=40)
@given(st.integers())
def test_property(number): TRIED.append(number)
def test_how_often(): print(f"tried {len(TRIED)}")
"""


def ran(folder: Path, *options: str, **env: str) -> str:
    """What a run of these tests prints, each with its outcome."""
    (folder / "conftest.py").write_text('pytest_plugins = ["devkit.testing.plugin"]\n')
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  full(reason): x\n  asks_for: x\n  xdist_group: x\n  ceph: x\n  long: x\n"
    )
    (folder / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-vs", "-p", "no:cacheprovider", *options],
        cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "REMORA_DEV_HOME": str(folder), "PYTEST_ADDOPTS": ""} | env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long("starts pytest")
def test_the_gate_leaves_out_what_guards_releases(tmp_path: Path) -> None:
    """With `--gate --ceph 20` neither a test marked `full` nor one of the other Ceph release runs; all run without."""
    everything, gate = ran(tmp_path), ran(tmp_path, "--gate", "--ceph", "20")

    assert "test_release PASSED" in everything
    assert everything.count("test_both") == 2
    assert "test_release" not in gate
    assert "test_older" not in gate
    assert "test_both[20] PASSED" in gate
    assert "test_both[16]" not in gate
    assert "test_newer PASSED" in gate


@pytest.mark.long("starts pytest")
def test_the_other_release_has_what_needs_it(tmp_path: Path) -> None:
    """With `--ceph 16 --again` only what needs Ceph runs, and of `full` tests only those of that release's radosgw."""
    said = ran(tmp_path, "--ceph", "16", "--again")

    assert sorted(line.split()[0].partition("::")[2] for line in said.splitlines() if "PASSED" in line) == [
        "test_each[16]", "test_older",
    ]  # fmt: skip


@pytest.mark.long("starts pytest")
def test_examples_are_scaled(tmp_path: Path) -> None:
    """`DEVKIT_EXAMPLES` multiplies what a property test asks for."""
    quarter, twice = ran(tmp_path, DEVKIT_EXAMPLES="0.25"), ran(tmp_path, DEVKIT_EXAMPLES="2")

    assert "tried 10\n" in quarter
    assert "tried 80\n" in twice


@pytest.mark.long("starts pytest")
def test_tests_that_share_a_server_run_in_one_process(tmp_path: Path) -> None:
    """Tests of one radosgw have its group, also those that name their server; those with a server of their module have
    the module's, and others none."""
    (tmp_path / "groups.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    for item in session.items:\n"
        "        mark = item.get_closest_marker('xdist_group')\n"
        "        print(f'{item.name}: {mark.args[0] if mark else None};')\n"
    )

    said = ran(tmp_path, "-p", "groups", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")

    in_processes = ran(tmp_path, "-n", "2", "--dist", "loadgroup")

    assert "test_it.py::test_older@zone16" in in_processes
    for line in ("test_older: zone16;", "test_both[16]: zone16;", "test_newer: zone20;", "test_plain: None;",
                 "test_kinds[file]: None;", "test_kinds[amqp]: rabbitmq;"):  # fmt: skip
        assert line in said
    assert "test_hurts: " in said
    assert "test_hurts: None;" not in said


def test_what_is_collected_is_no_garbage() -> None:
    """What was there when the first test began is looked at by no search for garbage, and there are searches again."""
    assert gc.isenabled()
    assert gc.get_freeze_count() > 50_000


class Reporter:
    """Keeps what a run says at its end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    line = section


def run_that_took(seconds: float, *keywords: str) -> list[str]:
    """What a run says in which one unit test took this long."""
    durations.begin()
    report: Any = SimpleNamespace(
        when="call", passed=True, nodeid="tests/unit/test_x.py::test_it@group", duration=seconds, keywords=keywords
    )
    durations.keep(report)
    reporter = Reporter()
    durations.tell(reporter)
    return reporter.lines


@pytest.fixture
def own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without earlier runs, on a quick machine; this run's own figures are kept from it."""
    monkeypatch.setenv("REMORA_DEV_HOME", str(tmp_path))
    monkeypatch.setenv("DEVKIT_SLOWNESS", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(durations, "_took", {})
    monkeypatch.setattr(durations, "_long", set())
    return tmp_path / "durations.json"


def test_a_test_above_its_budget_three_times_in_a_row_is_listed(own_figures: Path) -> None:
    """It is named after the third run, with its least time; a quick run in between begins the count anew."""
    first, second, third = run_that_took(0.5), run_that_took(0.4), run_that_took(0.6)

    assert first == second == []
    assert third[1:] == ["   0.40 s of 0.2  tests/unit/test_x.py::test_it"]
    assert run_that_took(0.1) == []
    assert run_that_took(0.5) == []
    assert json.loads(own_figures.read_text()) == {"tests/unit/test_x.py::test_it": [0.6, 0.1, 0.5]}


def test_a_long_test_has_no_budget(own_figures: Path) -> None:
    """A test that is marked `long` is never listed."""
    assert [run_that_took(5, "long") for _ in range(4)] == [[]] * 4
