"""The shape of the engine: how deep its modules build on each other, and that no part of it stands there twice."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from devkit.waits import PATIENT_S

DAEMON = Path(__file__).parents[2] / "daemon"
ENGINE = {
    ".".join(file.relative_to(DAEMON).with_suffix("").parts): file
    for file in (DAEMON / "remora/engine").rglob("*.py")
    if file.name != "__init__.py"
}
DEEPEST = 9
ALIKE = 6
"""This many lines in a row, one after the other, are a part that stands there twice."""


def imports(file: Path) -> set[str]:
    """The modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def test_the_engine_is_at_most_nine_levels_deep() -> None:
    """No chain of imports within the engine has more than nine modules."""
    graph = {module: sorted(imports(file) & ENGINE.keys()) for module, file in ENGINE.items()}

    @cache
    def below(module: str) -> tuple[str, ...]:
        return (module, *max((below(each) for each in graph[module]), key=len, default=()))

    longest = max((below(module) for module in graph), key=len)

    assert len(longest) <= DEEPEST, " -> ".join(longest)


def test_neither_sender_repeats_the_other() -> None:
    """No six lines in a row stand in both senders, imports and blank lines aside."""
    folder = DAEMON / "remora/engine/delivery"
    lanes = blocks(folder / "lanes.py")
    transactions = blocks(folder / "transactions.py") | blocks(folder / "committer.py")

    assert len(lanes) > 100
    assert not lanes & transactions


def blocks(file: Path) -> set[tuple[str, ...]]:
    """All runs of six lines of code."""
    lines = [line.strip() for line in file.read_text().splitlines()]
    code = [line for line in lines if line and not line.startswith(("from ", "import ", "#"))]
    return {tuple(code[at : at + ALIKE]) for at in range(len(code) - ALIKE + 1)}


def test_the_supervisor_loads_no_client_of_a_worker() -> None:
    """The command line and the supervisor are loaded without the libraries of endpoints, stores and servers."""
    code = (
        "import sys, remora.cli, remora.cli.run, remora.supervisor.process;"
        "print({'aiohttp', 'aiokafka', 'httptools', 'pamqp', 'rados', 'sqlite3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_daemon_loads_no_client_of_http() -> None:
    """What a supervisor with its admin server has loaded, which its workers share, is no more than they need.

    aiohttp takes 10 MB of each process that loads it, readers of packages 1 MB.
    """
    code = (
        "import sys, remora.cli, remora.cli.run, remora.worker, remora.servers.admin, remora.servers.control;"
        "from remora import app, config;"
        "app.import_for_workers(config.Settings(store=config.StoreSettings(kind='sqlite')));"
        "print(len(sys.modules), *sorted({'aiohttp', 'aiokafka', 'pamqp', 'attr', 'rich', 'opentelemetry', 'rados',"
        " 'zipfile', 'importlib.resources', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, *heavy = done.stdout.split()

    assert heavy == []
    assert int(count) <= MOST_LOADED["daemon"]


MOST_LOADED = {"daemon": 670, "worker": 502, "run": 439, "version": 120}
"""How many modules a process may load before it does anything: each costs its start a third of a millisecond."""


def loaded(*arguments: str, inherited: tuple[int, ...] = ()) -> list[str]:
    """The modules that a `remora` process with these arguments loads, before its first message or as it prints."""
    command = [sys.executable, "-X", "importtime", "-m", "remora", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=inherited, timeout=PATIENT_S)
    return [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]


def test_a_worker_starts_without_the_command_line() -> None:
    """A worker loads no parser of commands, no supervisor and nothing that reads packages, and only so many modules."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        found = loaded("worker", str(theirs.fileno()), inherited=(theirs.fileno(),))

    assert "remora.worker.process" in found
    assert not {"click", "remora.cli", "remora.supervisor.supervisor", "importlib.metadata"} & set(found)
    assert len(found) <= MOST_LOADED["worker"]


@pytest.mark.parametrize(("command", "arguments"), [("run", ("run", "--help")), ("version", ("--version",))])
def test_a_command_loads_little(command: str, arguments: tuple[str, ...]) -> None:
    """A command loads its own modules, and not those of others."""
    assert len(loaded(*arguments)) <= MOST_LOADED[command]


def test_status_loads_no_store_endpoint_or_metrics() -> None:
    """`remora status` asks a daemon, and loads nothing that only daemons and other commands use."""
    heavy = {"aiokafka", "pamqp", "prometheus_client", "sqlite3", "rich", "opentelemetry", "remora.app", "uvloop"}

    assert heavy & set(loaded("status", "--help")) == set()


@pytest.mark.parametrize("command", ["topic", "explain", "ledger", "dlq"])
def test_a_command_that_has_no_daemon_to_ask_loads_no_client_of_http(command: str) -> None:
    """Commands that read a store load aiohttp, a quarter of their start, only where they ask a daemon."""
    assert "aiohttp" not in loaded(command, "--help")
