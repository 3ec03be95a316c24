"""`remora store directory`: what it changes, refuses and shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devkit.processes.daemon import write_config
from remora.model.exits import Exit
from support.commands import Run, config, remora

__all__ = ["config", "remora"]


@pytest.fixture
def run(remora: Run, config: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs `remora ...` on an embedded store of this test alone, with a topic."""
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "one"), "files": 1}})

    def command(*words: str | Path) -> Any:
        return remora(*words, "-c", config)

    assert command("topic", "create", "t", "--endpoint", "kafka://broker:9092", "--shards", "1").code == Exit.OK
    return command


def test_a_directory_is_added_listed_and_removed(run: Callable[..., Any], tmp_path: Path) -> None:
    """Topics that are made later lie in both; the directory goes when none lies in it, and the first one never does."""
    two = tmp_path / "two"
    added, again = run("store", "directory", "add", two), run("store", "directory", "add", two)
    made = [run("topic", "create", f"u{i}", "--endpoint", "kafka://broker", "--shards", "1") for i in range(6)]
    listed = run("store", "directory", "list", "--json").json
    checked = run("store", "check")
    kept = run("store", "directory", "rm", two)
    gone = [run("topic", "rm", f"u{i}") for i in range(6)]
    removed, first = run("store", "directory", "rm", two), run("store", "directory", "rm", tmp_path / "one")

    assert added.out.decode() == f"{two} is used\n"
    assert again.out.decode() == f"{two} is in use already\n"
    assert {each.code for each in (*made, *gone, removed)} == {Exit.OK}
    assert [each["path"] for each in listed] == [str(tmp_path / "one"), str(two)]
    assert sum(each["topics"] for each in listed) == 7
    assert listed[1]["topics"] > 0
    assert f"{two / 'queues-001.db'}: good" in checked.out.decode()
    assert kept.code == Exit.TEMPORARY
    assert "takes no topics from now on" in kept.err
    assert (first.code, "first directory" in first.err) == (Exit.NO_PERMISSION, True)
    assert run("store", "directory", "list").out.decode().splitlines()[1:] == [
        f"{tmp_path / 'one'}  yes         1 topic with 0 entries, 0 dead letters"
    ]


def test_the_only_directory_is_neither_added_nor_removed(run: Callable[..., Any], tmp_path: Path) -> None:
    """It is in use already, and none of the store's files is said to be in the way."""
    only = tmp_path / "one"
    added, removed = run("store", "directory", "add", only), run("store", "directory", "rm", only)

    assert (added.code, added.out.decode()) == (Exit.OK, f"{only} is in use already\n")
    assert (removed.code, "is the first directory" in removed.err) == (Exit.NO_PERMISSION, True)


def test_commands_name_a_directory_that_is_lost(run: Callable[..., Any], tmp_path: Path) -> None:
    """What lists topics shows the others and fails, and a topic that nobody finds may lie in the lost one."""
    two = tmp_path / "two"
    run("store", "directory", "add", two)
    two.rename(tmp_path / "away")

    stats, unknown = run("topic", "stats", "--json"), run("explain", "u0")

    assert [each["topic"] for each in stats.json] == ["t"]
    assert stats.code == Exit.FAILURE
    assert f"{two} is lost" in stats.err
    assert f"{two} is lost" in unknown.err + unknown.out.decode()
