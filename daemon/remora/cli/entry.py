"""`remora entry`: look into raw queue entries."""

from __future__ import annotations

import json
import sys
from typing import BinaryIO

import click

from remora.cli.groups import CommandGroup
from remora.cli.output import print_line
from remora.codec.event_entry import decode, explain
from remora.codec.rendering_plain import body
from remora.model.errors import CodecError
from remora.model.exits import Exit

MOST_BYTES = 128_000_000
"""A queue holds no more; what is larger is no entry."""


@click.group(cls=CommandGroup)
def entry() -> None:
    """Decode raw entries of queues (event_entry_t): radosgw's own format, in both stores."""


@entry.command("decode")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--explain",
    "explained",
    is_flag=True,
    help="Print every field with its offset, type and value, as far as they can be read; credentials too.",
)
def decode_command(file: BinaryIO, explained: bool) -> None:
    """Print the notification that radosgw would post for the raw entry in FILE, or on standard input.

    The bytes are those of one queue entry, without the 10-byte header that it has inside a queue object of
    RADOS: as `remora topic dump --raw` gives them in base64, and `remora dlq show --raw` as they are.

    \b
    Example:
      remora topic dump orders --raw | head -n1 | jq -r .raw | base64 -d | remora entry decode
    """
    name = getattr(file, "name", "-")
    try:
        raw = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise click.FileError(name, exc.strerror) from exc
    problem: CodecError | None = None
    if explained:
        fields, problem = explain(raw)
        for each in fields:
            print_line(f"{each.offset:>6}  {each.path}  ({each.type})  {_shown(each.value)}")
    else:
        try:
            said = body(decode(raw))
            if sys.stdout.isatty():
                print_line(said.decode(errors="backslashreplace"))
            else:
                sys.stdout.buffer.write(said + b"\n")  # may hold bytes that are no UTF-8
        except CodecError as exc:
            problem = exc
    if problem is not None:
        print_line(f"remora: {'standard input' if name == '<stdin>' else name}: {problem}", err=True)
        sys.exit(Exit.FAILURE)


def _shown(value: object) -> str:
    """A field's value on one line: text in quotes, with what is no text escaped."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return json.dumps(value.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return repr(value)
