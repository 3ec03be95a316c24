"""`remora simulate`: what the policies would do, in virtual time."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from remora.model.exits import Exit
from remora.simulate.form import NoScript
from remora.simulate.models import FORMS
from remora.simulate.script import answer, line, read, script_from


@click.command()
@click.argument("file", type=click.File("rb"), metavar="FILE.json")
def simulate(file: BinaryIO) -> None:
    """Run the script in FILE.json, or on standard input (-), and print what the policies of remora do.

    A script says what is configured and what happens, step by step; the answer has one result for each step. The
    command runs the policies of the daemon itself, in virtual time; it needs no daemon and changes none. Equal scripts
    give equal answers. A file may hold a list of scripts; then the answer is a list.

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
        remora simulate - | jq .results[1].released
    """
    try:
        document = read(file.read())
        scripts = document if isinstance(document, list) else [document]
        checked = [
            script_from(each, FORMS, f"[{place}]" if isinstance(document, list) else "")
            for place, each in enumerate(scripts)
        ]
    except NoScript as exc:
        click.echo(f"remora: {exc}", err=True)
        sys.exit(Exit.USAGE)
    answers = [answer(each) for each in checked]
    if isinstance(document, list):
        click.echo("[" + ",\n ".join(map(line, answers)) + "]")
    else:
        click.echo(line(answers[0]))
    if any("refused" in each for each in answers):
        sys.exit(Exit.CONFIG)
