"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from remora.cli.options import gathered_into
from remora.cli.token_file import token_of
from remora.model.errors import PermissionMissing


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


def test_a_token_is_what_stands_in_its_file(tmp_path: Path) -> None:
    """Without the white space around it; without a file it is empty."""
    file = tmp_path / "token"
    file.write_text(" s3cr\u00e9t \n", encoding="utf-8")

    assert token_of(file) == "s3cr\u00e9t"
    assert token_of(None) == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff", "it is not UTF-8"),
        (b"one\ntwo", "it has several lines, or signs that do not print"),
        (b"a\0b", "it has several lines, or signs that do not print"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_holds_no_token_is_named(content: bytes | None, why: str, tmp_path: Path) -> None:
    """What no request can have, and a file that cannot be read, are told in one line without the content."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(PermissionMissing, match=f"^{re.escape(f'cannot read a token from {file}: {why}')}$"):
        token_of(file)
