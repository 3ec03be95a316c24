"""The command line: parse, load the configuration, call one function of `app`, print what it gives."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import click

from remora import __version__
from remora.cli.groups import CommandGroup
from remora.model.errors import ConfigError, RemoraError
from remora.model.exits import Exit, exit_code
from remora.process.program import end_at_once

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = MappingProxyType(
    {
        "run": "run:run",
        "check-config": "run:check_config",
        "status": "status:status",
        "explain": "explain:explain",
        "demo": "demo:demo",
        "drain": "host:drain",
        "shaping": "shaping:shaping",
        "topic": "topic:topic",
        "notification": "notification:notification",
        "shard": "shard:shard",
        "spill": "spill:spill",
        "balance": "balance:balance",
        "quarantine": "quarantine:quarantine",
        "store": "store:store",
        "ledger": "ledger:ledger",
        "slo": "slo:slo",
        "entry": "entry:entry",
        "dlq": "dlq:dlq",
        "log": "log:log",
        "sequencer": "sequencer:sequencer",
        "token": "token:token",
        "send": "send:send",
        "config": "config:config",
        "completion": "completion:completion",
    }
)
"""Each command with its module and its name there."""

OFFERED = "remora.commands"
"""The group of entry points in which other distributions offer commands."""

ELSEWHERE = MappingProxyType(dict.fromkeys(("pipeline", "replay", "simulate"), "remorad-pipeline"))
"""Commands that another distribution of the same release offers, each with that one's name."""


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a file system that has no room for what a command writes or prints."""

NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The errors of one that lets this user not do it, or nobody."""


class Commands(CommandGroup):
    """Imports a command on its first use, so that `run` starts quickly without the imports of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, those of other distributions too."""
        return sorted({*COMMANDS, *_offered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None where there is none. Of one that lies elsewhere an error says what to install."""
        command: click.Command
        if cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name].partition(":")
            command = getattr(import_module(f"remora.cli.{module}"), name)
        elif found := _offered().get(cmd_name):
            command = found.load()
        elif cmd_name in ELSEWHERE:
            raise click.ClickException(
                f"the command {cmd_name} is in the distribution {ELSEWHERE[cmd_name]}; install it with:"
                f" pip install {ELSEWHERE[cmd_name]}=={__version__} (of Debian's packages it is remora-pipeline)"
            )
        else:
            return None
        return command


def _offered() -> dict[str, EntryPoint]:
    """The commands that other distributions of this environment offer; of ours only those of this very release."""
    from importlib.metadata import entry_points  # a large module, which `run` does not need

    return {
        each.name: each
        for each in entry_points(group=OFFERED)
        if each.name not in ELSEWHERE or (each.dist is not None and each.dist.version == __version__)
    }


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="remora")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error what a command does besides.")
def group(verbose: bool) -> None:
    """Deliver persistent bucket notifications to Kafka, HTTP, AMQP or NATS, in order and without loss.

    Notifications wait in queues until their endpoint has acknowledged them. The queues lie in files of this host and
    are filled over HTTP (store.kind = "sqlite", the default), or they are those of a Ceph cluster, filled by radosgw
    too ("rados"): remora locks them as radosgw itself would.

    \b
    Start with:
      remora demo                    ten events through a daemon, in 20 seconds
      remora check-config -c FILE    is this configuration valid?
      remora topic create --help     make a topic of remora's own
      remora topic list              which topics does remora deliver, and which radosgw?
      remora run -c FILE             take events in, and deliver
      remora status                  health of the running daemon
      remora explain WHAT            where an event or queue is, and why it waits
      remora drain                   have other hosts deliver, before maintenance of this one
      remora sequencer --help        hand out the positions of shared logs

    \b
    Exit codes: 0 done; 1 failed; 2 wrong usage; 3 drain timed out, a replay failed its
    verification, or topics differ from their file; 4 a replay proves nothing; 69 store or
    daemon not reachable; 71 no memory left; 75 try again; 77 no permission; 78 configuration
    refused. `remora log read` has codes of its own, 3 to 5.

    A command that root runs, and that reads the embedded store, goes on as the store's owner.
    """
    if verbose:
        logging.basicConfig(level=logging.INFO, format="remora: %(message)s")


def main() -> None:
    """Run the command; an error that remora knows is a line and its exit code, never a traceback.

    A configuration has a line for each of its problems.
    """
    # What these have to say is for a daemon's log, and without a handler it goes to standard error.
    for library in ("asyncio", "aiokafka"):
        logging.getLogger(library).addHandler(logging.NullHandler())
    try:
        group(standalone_mode=True)
    except RemoraError as exc:
        for each in exc.problems if isinstance(exc, ConfigError) else (exc,):
            _complain(str(each))
        _leave(exit_code(exc))
    except OSError as exc:
        if exc.errno in NO_ROOM:
            _complain(f"cannot write {exc.filename or 'what is printed'}: {exc.strerror}")
            _leave(Exit.FAILURE)
        if exc.filename is None:
            raise
        _complain(f"{os.fsdecode(exc.filename)}: {exc.strerror}")
        _leave(Exit.NO_PERMISSION if exc.errno in NOT_PERMITTED else Exit.FAILURE)
    except UnicodeEncodeError:
        # Names of files and keys of objects may be any bytes; all other arguments are texts.
        odd = (each for each in sys.argv[1:] if any("\ud800" <= character <= "\udfff" for character in each))
        if (wrong := next(odd, None)) is None:
            raise
        _complain(f"the argument {wrong} is not UTF-8")
        _leave(Exit.USAGE)
    except SystemExit as exc:
        _leave(exc.code)


def _complain(text: str) -> None:
    from remora.cli.output import print_line  # with modules that `--version` does not need

    print_line(f"remora: {text}", err=True)


def _leave(code: str | int | None) -> NoReturn:
    """End with this code; at once where a thread is left behind.

    Spark's Java is ended by what runs at a usual exit, and its commands use no store.
    """
    is_left_behind = any(each.daemon for each in threading.enumerate()) and "pyspark" not in sys.modules
    if not is_left_behind or isinstance(code, str):
        sys.exit(code)
    end_at_once(code or 0)
