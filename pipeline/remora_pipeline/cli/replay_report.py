"""`remora replay report`: what a verification found, as a page with pictures."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from remora.cli.options import FOLDER, json_option
from remora.cli.output import print_json, print_line
from remora.cli.steps import SILENT_S, told
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.report.job import report as make


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--against", metavar="RUN", type=FOLDER, help="Another run, to be shown beside this one.")
@click.option(
    "--noise",
    metavar="RUN",
    type=FOLDER,
    help="A second replay of the same as --against, neither with faults: what differs between them is noise.",
)
@json_option
def report(run: Path, against: Path | None, noise: Path | None, as_json: bool) -> None:
    """Show what verify found in RUN, as one page with pictures.

    Writes RUN/report/index.html: the verdict, all counts, latencies, rates and faults. It needs no other file and no
    network. Beside it are the same pictures as PNGs, and summary.json with all numbers for programs. What was there
    before is replaced. Needs neither Spark nor Kafka.

    RUN/faults.json, where there is one, names what was done to the server meanwhile, in microseconds since 1970; it
    is shaded in the pictures: [{"name": "broker down", "from_us": ..., "to_us": ...}]

    With --against the numbers of two runs stand side by side with their differences, their latency tails are drawn
    over one another, and all other pictures have the same axes.

    With --noise each change stands beside what the same trace, replayed twice without faults, differs by: what is not
    larger says nothing.

    The exit code is 0 when the report was made, whatever the verdict is: that is for remora replay verify to say.

    \b
    Examples:
      remora replay report run-1
      remora replay report run-2 --against run-1
      remora replay report run-3 --against run-1 --noise run-2
    """
    if noise is not None and against is None:
        raise click.UsageError("--noise needs --against: it is a second replay of the same as that")
    with told(after_s=SILENT_S) as tell:
        tell("drawing the pictures")
        summary = make(run, against, noise)
    if as_json:
        print_json(msgspec.to_builtins(summary))
        return
    page = RunDirectory(run).report / "index.html"
    print_line(f"{summary.verdict}  {'; '.join(summary.reasons) or summary.name}")
    print_line(str(page))
