"""`remora sequencer`."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from remora.cli.attributes import DURATION
from remora.cli.options import config_option
from remora.cli.output import print_line
from remora.config import Settings


@click.command()
@config_option
@click.option("--listen", metavar="ADDRESS", help="host:port or unix:/path.  [default: sequencer.listen]")
@click.option(
    "--report-interval",
    "report_s",
    type=DURATION,
    default=0,
    help="Print the rates of each interval, such as 5s, on standard output.",
)
def sequencer(settings: Settings, listen: str | None, report_s: int) -> None:
    """Hand out the positions of shared logs until SIGTERM or SIGINT.

    The positions of a log are 1, 2, 3 and so on: each is handed out once in an epoch, over all connections. ZLog's
    clients of 2014 and 2015 understand the protocol, and `remora.client.SequencerClient`. The first request for a log
    registers it: the sequencer takes its lock and begins a new epoch, and no write of an earlier epoch lands from then
    on. Clients get "not yet" (INIT_LOG) until then, and while the store is away.

    \b
    Example:
      remora log create orders
      remora sequencer --listen 127.0.0.1:5678 --report-interval 5s
    """
    if listen is not None:
        settings = replace(settings, sequencer=replace(settings.sequencer, listen=listen))
    from remora.sequencer import process

    def report(line: str) -> None:
        print_line(line)
        sys.stdout.flush()

    sys.exit(process.run(settings, report_s, report))
