"""Pytest's plugin of the suite: the gate, groups of tests that share a server, budgets, and the scale of examples.

`scripts/test` runs the gate (`--gate --ceph 20`): all but what is marked `full`, against one Ceph release.
`scripts/test --full` runs everything with the same release, and then with the other one (`--again`) what needs Ceph and
is not `full`, and all that asks for a radosgw of that release. Without these options pytest runs what it is given.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from devkit.testing import durations
from devkit.waits import slowness

EXAMPLES = "DEVKIT_EXAMPLES"
"""How many times the examples of a property test are tried: 0.25 at the gate, 1 alone, 5 in full."""

_SETTINGS = "_hypothesis_internal_use_settings"

RELEASES = ("20", "16")

SHARED = {
    "zone16": ("zone16",),
    "zone20": ("zone20",),
    "ceph": ("ceph",),
    "spark": ("spark", "spark_cluster"),
    "rabbitmq": ("rabbitmq", "fragile_rabbitmq"),
    "nats": ("nats_server",),
}
"""Tests with one of these fixtures run in one process: it has one such server, and some tests hurt it.

A test with several goes by the first: a Ceph is one for all processes, each of which may have a Spark of its own. The
verdicts have one for themselves, since the others take as long as they.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--gate`, `--again` and `--ceph`."""
    parser.addoption("--gate", action="store_true", help="leave out what only scripts/test --full runs")
    parser.addoption(
        "--again", action="store_true", help="leave out what a full run with the other Ceph release has had"
    )
    parser.addoption(
        "--ceph", choices=RELEASES, help="the Ceph release of RADOS and radosgw; leaves out what needs the other one"
    )


def pytest_configure() -> None:
    """Sets how property tests run: without a stopwatch, and in CI on the same cases each time."""
    settings.register_profile(
        "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
    )
    settings.load_profile("unhurried")
    durations.begin()


def pytest_report_header() -> str:
    """Says how slow this machine is, which bounds all waits."""
    return f"waits: {slowness():.1f} times a quiet core's; examples: {_scale():g}"


def _scale() -> float:
    return float(os.environ.get(EXAMPLES, "1"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leaves what is collected to the process for good: ten thousand tests and their modules are no garbage.

    Every process collects them all. Tests make many searches for garbage, and each one would go through them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes the gate's tests, scales their examples, and groups those that share a server."""
    if left_out := [item for item in items if _is_left_out(config, item)]:
        config.hook.pytest_deselected(items=left_out)
        kept = set(items) - set(left_out)
        items[:] = [item for item in items if item in kept]
    _scale_examples(items)
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    # The groups are the longest way through the suite: they begin first.
    items.sort(key=lambda item: 0 if _group(item).partition("-")[0] in SHARED else 1)


def _is_left_out(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether a test waits for the full run, or for a run with the other Ceph release."""
    is_full = item.get_closest_marker("full") is not None
    if config.getoption("--gate") and is_full:
        return True
    release = config.getoption("--ceph")
    if config.getoption("--again") and (
        not item.get_closest_marker("ceph") or (is_full and f"zone{release}" not in _zones(item))
    ):
        return True
    others = {f"zone{each}" for each in RELEASES if each != release}
    return bool(release) and not others.isdisjoint(_zones(item))


def _zones(item: pytest.Item) -> set[str]:
    """The radosgws that a test uses, by the names of their fixtures."""
    given = getattr(item, "callspec", None)
    zone = given.params.get("zone") if given else None
    return {*getattr(item, "fixturenames", ()), *([f"zone{zone}"] if zone else [])}


def _group(item: pytest.Item) -> str:
    """The tests that must run in the same process as this one; a test of Python alone runs anywhere."""
    asked = {name for mark in item.iter_markers("asks_for") for name in mark.args}
    fixtures = _zones(item) | asked
    for name, of in SHARED.items():
        if not fixtures.isdisjoint(of):
            return f"{name}-verify" if name == "spark" and item.path.name.startswith("test_verify") else name
    if item.get_closest_marker("ceph") and "zone" not in fixtures:
        return "ceph"  # it asks for the cluster by itself
    info = getattr(item, "_fixtureinfo", None)
    scopes = {each[-1].scope for each in info.name2fixturedefs.values()} if info else set()
    return f"{item.path.parent.name}/{item.path.name}" if asked or "module" in scopes else ""


def _scale_examples(items: Iterable[Any]) -> None:
    """Multiplies what each property test asks for, once for each function."""
    seen: set[int] = set()
    for item in items:
        function = getattr(item, "function", None)
        inner = getattr(function, _SETTINGS, None)
        if function is None or inner is None or id(function) in seen:
            continue
        seen.add(id(function))
        examples = max(min(5, inner.max_examples), round(inner.max_examples * _scale()))
        # Hypothesis has no public way to change the settings of a function that is decorated already.
        setattr(function, _SETTINGS, settings(inner, max_examples=examples))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keeps how long each test took."""
    durations.keep(report)


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Lists the tests that were above their budget three times in a row."""
    yield
    durations.tell(terminalreporter)
