"""Usage: man_pages.py FOLDER

Writes a manual page for remora and one for each of its commands, from the commands themselves. Their date is that of
SOURCE_DATE_EPOCH. click-man was weighed: it finds no command behind an entry point that is a function, and none that
is loaded when it is asked for.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from remora.cli import group


def pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each page."""
    context = click.Context(group, info_name="remora")
    commands = dict(_commands(context))
    yield "remora.1", _page(context, [f"remora-{name}" for name in commands])
    for name, each in commands.items():
        yield f"remora-{name}.1", _page(each, ["remora"])


def _commands(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    """The names of a group's commands, and a context to ask each in; none for what is no group.

    Commands that need more packages than are installed, those with Spark, say so instead and have no manual.
    """
    command = context.command
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        try:
            found = command.get_command(context, name)
        except click.ClickException:
            continue
        if found is not None and not found.hidden:
            yield name, click.Context(found, parent=context, info_name=name)


def _page(context: click.Context, others: list[str]) -> str:
    name = context.command_path.replace(" ", "-")
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    lines = [f'.TH "{name.upper()}" "1" "{date}" "remora {version("remorad")}" "User Commands"', ".SH NAME"]
    lines += [f"{_plain(name)} \\- {_plain(context.command.get_short_help_str(limit=200).rstrip('.'))}", ".SH SYNOPSIS"]
    lines += [*_synopsis(context), ".SH DESCRIPTION", *_text(context.command.help or "")]
    lines += _options(context, ".SH OPTIONS")
    inner = list(_commands(context))
    if inner:
        lines.append(".SH COMMANDS")
    for _, each in inner:
        lines += _section(each) if context.parent else _summary(each)
    lines += [".SH SEE ALSO", ",\n".join(f".BR {_plain(each)} (1)" for each in others)]
    return "\n".join(lines).replace(",\n.BR", "\n.BR") + "\n"


def _summary(context: click.Context) -> list[str]:
    """A command that has a page of its own."""
    said = context.command.get_short_help_str(limit=500)
    return [".TP", f".BR {_plain(context.command_path.replace(' ', '-'))} (1)", _plain(said)]


def _section(context: click.Context) -> list[str]:
    """A command within its group's page, with its own commands behind it."""
    lines = [f'.SS "{_plain(context.command_path)}"', *_synopsis(context), *_text(context.command.help or "")]
    lines += _options(context, "")
    for _, each in _commands(context):
        lines += _section(each)
    return lines


def _synopsis(context: click.Context) -> list[str]:
    words = " ".join(context.command.collect_usage_pieces(context))
    return [f".B {_plain(context.command_path)}", f".I {_plain(words)}", ".PP"]


def _options(context: click.Context, title: str) -> list[str]:
    records = [record for each in context.command.get_params(context) if (record := each.get_help_record(context))]
    lines = [title] if title and records else []
    for names, said in records:
        lines += [".TP", f".B {_plain(names)}", *(_plain(said).splitlines() or ["\\&"])]
    return lines


def _text(help_text: str) -> list[str]:
    """Paragraphs; those that begin with click's \\b stand as they are."""
    lines: list[str] = []
    for paragraph in re.split(r"\n{2,}", inspect.cleandoc(help_text.partition("\f")[0])):
        first, _, rest = paragraph.partition("\n")
        if first.strip() == "\b":
            lines += [".nf", *_plain(rest).splitlines(), ".fi", ".PP"]
        else:
            lines += [_plain(" ".join(paragraph.split())), ".PP"]
    return lines[:-1]


def _plain(text: str) -> str:
    """Text in which roff finds no commands."""
    escaped = text.replace("\\", "\\(rs").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file, page in pages():
        (folder / file).write_text(page)
