"""`remora log` on an embedded store, without a sequencer."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.processes.daemon import write_config
from remora.model.exits import Exit
from support.commands import Run, config, remora

__all__ = ["config", "remora"]


@pytest.fixture
def log(remora: Run, config: Path, tmp_path: Path) -> Run:
    """The command, on a store with a log and a counter."""
    write_config(
        config,
        {
            "store": {"kind": "sqlite"},
            "sqlite": {"directory": str(tmp_path / "queues"), "files": 1},
            "sequencer": {"listen": f"unix:{tmp_path}/nobody.sock"},
        },
    )
    for name, kind in (("orders", "log"), ("ids", "counter")):
        assert remora("log", "create", name, "--kind", kind, "-c", config).code == Exit.OK
    return remora


def test_logs_are_listed_as_a_table(log: Run, config: Path) -> None:
    """With names above the columns, as other lists have them, and a line for each log."""
    listed = log("log", "list", "-c", config)

    assert [each.split() for each in listed.out.decode().splitlines()] == [
        ["LOG", "KIND", "EPOCH", "SEQUENCER"],
        ["remora/ids", "counter", "0", "-"],
        ["remora/orders", "log", "0", "-"],
    ]


def test_an_append_to_a_counter_asks_no_sequencer(log: Run, config: Path) -> None:
    """It is refused at once, though no sequencer is there, which an append to a log waits for."""
    refused = log("log", "append", "ids", "-c", config, stdin=b"x")

    assert (refused.code, refused.err) == (Exit.FAILURE, "remora: remora/ids is a counter: it holds no entries\n")
