"""Options that several commands share."""

from __future__ import annotations

import dataclasses

import click
from click.testing import CliRunner

from remora.cli.options import gathered_into


@dataclasses.dataclass(frozen=True)
class _Options:
    size: int
    is_loud: bool


def test_options_reach_a_command_as_one_value() -> None:
    """A command gets the options that a dataclass names as one value of it, and all others as arguments."""
    seen: list[tuple[str, _Options]] = []

    @click.command()
    @click.argument("name")
    @click.option("--size", type=int, default=3)
    @click.option("--loud", "is_loud", is_flag=True)
    @gathered_into(_Options)
    def command(name: str, asked: _Options) -> None:
        seen.append((name, asked))

    for words in (["a"], ["b", "--loud", "--size", "7"]):
        assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0

    assert seen == [("a", _Options(3, False)), ("b", _Options(7, True))]
