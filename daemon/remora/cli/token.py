"""`remora token`: make a token for a sender of events."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from remora.cli.options import json_option
from remora.cli.output import print_json, print_line
from remora.model.errors import RemoraError
from remora.servers import tokens


class TokensFileRefused(RemoraError):
    """The tokens file cannot be added to."""


@click.command()
@click.argument("name")
@click.option(
    "--topics",
    metavar="TOPICS",
    help="What it may send to: names and beginnings such as logs-*, with commas between."
    "  [default: *; none with --bucket]",
)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="PATTERN",
    help="Whose events it may send to /v1/events, which names no topic; * stands for anything. Repeatable.",
)
@click.option(
    "--append",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add the line to this tokens file, made with mode 0600 where it is missing, and print the token only.",
)
@json_option
def token(name: str, topics: str | None, buckets: Sequence[str], file: Path | None, as_json: bool) -> None:
    """Make a token for the sender NAME, and the line of the tokens file (ingest.tokens) that admits it.

    In the file of admin.control_tokens such a line permits its holder to change the daemon over admin.listen.

    The file holds a digest: the token itself is shown now and never again. A running daemon reads the file again
    within seconds. To replace a token, add a second line of the same NAME, give the new token to the sender, and then
    remove the old line.

    \b
    Examples:
      remora token gateway-1 --topics 'orders,audit-*'
      remora token gateway-1 --append /etc/remora/tokens
      remora token minio --bucket photos --bucket 'raw-*'
    """
    made = tokens.new_token()
    try:
        line = tokens.line_of(name, made, ("" if buckets else "*") if topics is None else topics, ",".join(buckets))
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if file is not None:
        _append(file, line)
    if as_json:
        print_json({"token": made, "line": line})
    elif file is not None:
        print_line(made)
    else:
        print_line(f"token: {made}")
        print_line(f"line:  {line}")


def _append(file: Path, line: str) -> None:
    """Add the line to the file, whole or not at all for a daemon that reads meanwhile."""
    try:
        opened = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "r+b") as content:
            before = content.read()
            tokens.parse(before, str(file))  # a file that is refused would not let this token in either
            content.write(b"" if not before or before.endswith(b"\n") else b"\n")
            content.write(line.encode() + b"\n")
    except OSError as exc:
        raise TokensFileRefused(f"cannot add to {file}: {exc.strerror}") from exc
