"""The command line: parse, load the configuration, call one function of `app`, print what it gives."""

from __future__ import annotations

import sys

import click

from remora import __version__
from remora.cli.completion import completion
from remora.cli.dlq import dlq
from remora.cli.entry import entry
from remora.cli.output import exit_code
from remora.cli.run import check_config, run, status
from remora.cli.send import send
from remora.cli.shard import shard
from remora.cli.token import token
from remora.cli.topic import topic
from remora.model.errors import RemoraError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="remora")
def group() -> None:
    """Deliver persistent bucket notifications to Kafka, in order and without loss.

    Notifications wait in queues until Kafka has acknowledged them. The queues lie in files of this host and are
    filled over HTTP (store.kind = "sqlite", the default), or they are those of a Ceph cluster, filled by radosgw
    too ("rados"): remora locks them as radosgw itself would.

    \b
    Start with:
      remora check-config -c FILE    is this configuration good?
      remora topic create --help     make a topic of remora's own
      remora topic list              what is delivered, and what stays with radosgw?
      remora run -c FILE             take events in, and deliver
      remora status                  how is the running daemon doing?

    \b
    Exit codes: 0 done; 1 failed; 2 wrong usage; 3 drain timed out; 69 store or daemon not reachable;
    75 try again; 77 no permission; 78 configuration refused.
    """


for command in (run, check_config, status, topic, shard, entry, dlq, token, send, completion):
    group.add_command(command)


def main() -> None:
    """Run the command; an error that remora knows is one line and its exit code, never a traceback."""
    try:
        group(standalone_mode=True)
    except RemoraError as exc:
        click.echo(f"remora: {exc}", err=True)
        sys.exit(exit_code(exc))
