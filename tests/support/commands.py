"""Commands of `remora` that run inside the test's process."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import pytest

from devkit.processes.daemon import Ended
from remora import app
from remora.cli import main
from remora.config import load
from remora.ports.store import ShardStore

T = TypeVar("T")
Run = Callable[..., Ended]


def subcommands(group: click.Group) -> dict[str, click.Command]:
    """The commands of a group by their names, in order."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


@pytest.fixture
def remora(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command as its script does, save for a process of its own, which would take a second each."""

    def run(*args: str | Path, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["remora", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfdbinary.readouterr()
        return Ended(int(end.value.code or 0), out, err.decode())

    return run


def in_store(config: Path, work: Callable[[ShardStore], Awaitable[T]]) -> T:
    """Do something in the store that the commands look into."""

    async def run() -> T:
        async with app.store_of(load(config), make=True) as store:
            return await work(store)

    return asyncio.run(run())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A file for a test to write its configuration to."""
    return tmp_path / "remora.toml"
