"""`remora simulate`: what the policies would do, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import click

from remora.cli.options import json_option
from remora.cli.output import print_line, print_table
from remora.model.exits import Exit
from remora_pipeline.simulate.form import NoScript
from remora_pipeline.simulate.models import FORMS
from remora_pipeline.simulate.script import Script, answer, line, read, script_from


@click.command()
@click.argument("file", type=click.File("rb"), metavar="FILE.json")
@json_option
def simulate(file: BinaryIO, as_json: bool) -> None:
    """Run the script in FILE.json, or on standard input (-), and print what the policies of remora do.

    A script says what is configured and what happens, step by step; the answer has the results of each step, in a
    table that leaves out what is 0, or as JSON with all. The command runs the policies of the daemon itself, in virtual
    time; it needs no daemon and changes none. Equal scripts give equal answers. A file may hold a list of scripts; then
    the answer is a list, too.

    Models of traffic shaping: shaping (guaranteed rates, caps and a shared spare), bucket, select (classes and
    groups), rate (limits of ingest), split (a limit of the whole store). Models of load: shed (which shards move),
    memory (of ingest), reads (how many entries), readahead (what is turned back), quarantine, advice (the number of
    shards), fleet (all workers of many hosts). docs/shaping.md and docs/load.md have their steps.

    Exit code 2: the file is no script, and the path in it is named. 78: the config of a script is refused.

    \b
    Example, a request that waits for credit until the first tick:
      echo '{"version": 1, "model": "shaping",
             "config": {"groups": {"host": {"meters": {
               "client_low": {"guaranteed": 1000000, "burst": 10000}}}}},
             "steps": [{"op": "send", "id": "a", "bucket": "client_low", "bytes": 4000},
                       {"op": "tick"}]}' |
        remora simulate - --json | jq .results[1].released
    """
    try:
        document = read(file.read())
        scripts = document if isinstance(document, list) else [document]
        checked = [
            script_from(each, FORMS, f"[{place}]" if isinstance(document, list) else "")
            for place, each in enumerate(scripts)
        ]
    except NoScript as exc:
        print_line(f"remora: {exc}", err=True)
        sys.exit(Exit.USAGE)
    answers = [answer(each) for each in checked]
    if not as_json:
        for script, each in zip(checked, answers, strict=True):
            _print(script, each)
    elif isinstance(document, list):
        click.echo("[" + ",\n ".join(map(line, answers)) + "]")
    else:
        click.echo(line(answers[0]))
    if any("refused" in each for each in answers):
        sys.exit(Exit.CONFIG)


def _print(script: Script, found: Mapping[str, Any]) -> None:
    """One answer: a row for each figure that is not 0, or why the script is refused."""
    if "refused" in found:
        print_line(f"{script.model}: refused: {_shown(found['refused'])}")
        return
    rows = [
        (number, op, name, _shown(value))
        for number, ((op, _), result) in enumerate(zip(script.steps, found["results"], strict=True), 1)
        for name, value in list(_figures("", result)) or [("-", "nothing")]
    ]
    print_line(f"{script.model}:")
    print_table(("STEP", "OP", "RESULT", "VALUE"), rows, "the script has no steps")


def _figures(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of what is not 0 and not empty, each with the names of what it lies in."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _figures(f"{path}.{_shown(name)}" if path else _shown(name), each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _figures(f"{path}[{number}]", each)
    elif isinstance(value, bool) or value:
        yield path or "-", value


def _shown(value: Any) -> str:
    """A value for a person; a name of a script may be no text that can be written."""
    match value:
        case bool():
            return "yes" if value else "no"
        case str():
            return ascii(str(value))[1:-1]  # of an enumeration, too
        case _:
            return str(value)
