"""How commands print: tables for people, JSON for programs, one line for errors.

What only commands need that wait for something is imported by them: `--version` prints, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from remora.model.words import printable

T = TypeVar("T")

LETTERS = ("dead letter", "dead letters")
"""For `several`."""


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's one coroutine; while it waits for a silent cluster or for credit, standard error says so."""
    import asyncio
    from contextvars import copy_context

    from remora.cli.store_credit import metered
    from remora.cluster_answer import credit, notice

    def run() -> T:
        notice.set(_waiting)
        credit.set(metered)
        return asyncio.run(work)

    return copy_context().run(run)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    from remora.cli.steps import told  # most commands wait for nothing, and start sooner without it

    with told() as tell:
        tell(what)
        yield


def ask(question: str) -> None:
    """Go on where the answer is yes. In a script, where nobody answers, the option that does is named."""
    try:
        is_yes = click.confirm(question, err=True)
    except click.Abort as exc:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("nobody answered: --yes does") from exc
    if not is_yes:
        raise click.Abort


def print_line(text: str = "", *, err: bool = False) -> None:
    """One line on standard output or standard error, whatever is in the text."""
    click.echo(printable(text), err=err)


def print_json(value: object, indent: int | None = 2) -> None:
    """One JSON document on standard output, whatever is in its texts."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if not text.isascii() or "\x7f" in text:  # what cannot be shown as JSON escapes it, which leaves DEL
        shown = (each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
        text = "".join(shown).replace("\x7f", "\\u007f")
    click.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], none: str = "there are none") -> None:
    """A plain table: columns padded, nothing cut, no colour, so that it can be piped and searched.

    Without rows it is the sentence `none`.
    """
    rows = list(rows)
    if not rows:
        print_line(none)
        return
    lines = [[printable(str(cell)) for cell in line] for line in (columns, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def size(nbytes: float) -> str:
    """Bytes for a person: `512B`, `3.4MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f}B" if unit == "B" else f"{nbytes:.1f}{unit}"
        nbytes /= 1024
    raise AssertionError("unreachable")
