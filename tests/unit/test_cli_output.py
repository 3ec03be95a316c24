"""What commands print is text, whatever names and answers from outside have in them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.cli.output import print_json, print_line, print_table
from remora.cli.steps import told
from remora.model.exits import Exit
from remora.model.words import printable
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

ODD = "a\x1b[2J\x07b\r\nc\x7f\x85\x9b\u2028\u202e\udc80\U000e0001é"
"""What clears a screen, begins a line, turns the writing round, and what no terminal can write."""


@given(st.text())
def test_a_printable_text_is_one_line_and_keeps_what_can_be_shown(text: str) -> None:
    """Nothing in it begins a line or is obeyed by a terminal, and a text without such characters stays as it is."""
    shown = printable(text)

    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


def test_a_line_and_a_cell_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A name with line breaks forges no line of its own, and none of its characters reaches a terminal."""
    print_line(f"topic {ODD}")
    print_line(f"remora: {ODD}", err=True)
    print_table(("NAME", ODD), [(ODD, 1)])

    said = capsys.readouterr()
    lines = [*said.out.split("\n"), *said.err.split("\n")]
    assert all(each.isprintable() for each in lines)
    assert len([each for each in lines if each]) == 4
    assert r"a\x1b[2J\x07b\r\nc\x7f\x85\x9b\u2028\u202e\udc80\U000e0001é" in said.out


@given(st.text())
def test_json_is_what_it_was_and_can_be_printed(text: str) -> None:
    """Texts in a document are escaped as JSON escapes them: a program reads what was written."""
    with pytest.MonkeyPatch.context() as patched:
        written: list[str] = []
        patched.setattr("remora.cli.output.click.echo", written.append)
        for value in (text, ODD):
            print_json({value: [value]})

            document = written.pop()
            assert json.loads(document) == {value: [value]}
            assert all(line.isprintable() for line in document.split("\n"))


def test_a_step_is_one_line() -> None:
    """The names of what a command waits for are escaped, too."""
    stream = io.StringIO()
    with told(stream) as tell:
        tell(f"looking for {ODD}")

    (line,) = stream.getvalue().removesuffix("\n").split("\n")
    assert line.isprintable()


def test_a_configuration_forges_no_line(remora: Run, config: Path) -> None:
    """Unknown names of sections and options, which a file of somebody else's may have, are escaped in what is said."""
    config.write_text('"a\\u001b[2J\\nremora: all is well" = 1\n[log]\n"b\\u001b[2J\\nremora: all is well" = 1\n')

    done = remora("check-config", config)

    assert done.code == Exit.CONFIG
    lines = done.err.removesuffix("\n").split("\n")
    assert len(lines) == 2
    assert all(each.isprintable() for each in lines)


def test_wrong_usage_forges_no_line(remora: Run, tmp_path: Path) -> None:
    """A file's name in an error of the command line is escaped."""
    done = remora("send", "orders", tmp_path / "a\x1b[2J\nremora: all is well")

    assert done.code == Exit.USAGE
    assert "\x1b" not in done.err
    assert "\nremora: all is well" not in done.err


def test_a_group_without_a_command_shows_its_help(remora: Run) -> None:
    """The help that click gives as an error keeps its lines."""
    done = remora("topic")

    assert done.code == Exit.USAGE
    assert "\n  create  " in done.err


OWN_TEXT = ("completion.py", "config.py", "output.py", "simulate.py")
"""Modules that print whole files of their own, or JSON in a form of their own."""


def test_commands_print_in_one_way() -> None:
    """No command writes to the terminal past the functions that escape what they print."""
    root = Path(__file__).parents[2]
    for folder in ("daemon/remora/cli", "pipeline/remora_pipeline/cli"):
        for module in (root / folder).glob("*.py"):
            if module.name not in OWN_TEXT:
                assert "click.echo(" not in module.read_text(), module
