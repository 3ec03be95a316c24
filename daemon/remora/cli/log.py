"""`remora log`: shared logs, their positions, and what is written there."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO, TypeVar

import click

from remora import app
from remora.cli.groups import CommandGroup
from remora.cli.options import config_option, json_option
from remora.cli.output import print_json, print_line, print_table, run_async
from remora.client import SequencerClient, SequencerUnavailable
from remora.config import Settings
from remora.log import open_log
from remora.log.entries import LogTimes
from remora.log.shared import Log, NotAppended
from remora.model.errors import StoreUnavailable
from remora.model.log import MOST_POSITION, MOST_WIDTH, Cell, LogKind, LogName, Projection, Token
from remora.model.words import several
from remora.ports.log import Logs

T = TypeVar("T")

ANSWER_S = 10.0
"""How long a command waits for the sequencer."""

READ_CODES = {Cell.DATA: 0, Cell.FILLED: 3, Cell.UNWRITTEN: 4, Cell.TRIMMED: 5}

POSITION = click.IntRange(1, MOST_POSITION)
MOST_ENTRY = 16 << 20

pool_option = click.option(
    "--pool", default="", help="The pool that holds the log.  [default: the queues' pool; in an embedded store remora]"
)


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument NAME and the option --pool."""
    return click.argument("name")(pool_option(function))


@click.group(cls=CommandGroup)
def log() -> None:
    """Shared logs, as CORFU and ZLog have them: positions from a sequencer, entries in the store.

    `remora sequencer` hands the positions out. A counter is a log without entries: only its positions are used.
    Commands that ask for positions need the running sequencer; all others only look into the store.

    \b
    Start with:
      remora log create orders
      remora sequencer &
      echo hello | remora log append orders    # prints the position
      remora log read orders 1
    """


@log.command("create")
@named
@click.option(
    "--kind",
    type=click.Choice([str(each) for each in LogKind]),
    default=str(LogKind.LOG),
    show_default=True,
    help="log: entries are written at its positions; counter: only the positions are wanted.",
)
@click.option(
    "--width",
    type=click.IntRange(1, MOST_WIDTH),
    default=8,
    show_default=True,
    help="Objects that the entries are striped over, on RADOS.",
)
@config_option
def create(settings: Settings, name: str, pool: str, kind: str, width: int) -> None:
    """Make a log.

    \b
    Example:
      remora log create orders --kind counter
    """
    which = _log(settings, pool, name)
    _in_store(settings, lambda logs: logs.create(which, LogKind(kind), width), make=True)
    print_line(f"log {which} is made: a {kind}")


@log.command("list")
@json_option
@config_option
def list_command(settings: Settings, as_json: bool) -> None:
    """List all logs with their kind, epoch and sequencer.

    \b
    Example:
      remora log list
    """
    found = _in_store(settings, lambda logs: logs.all())
    rows = [_shown(each, projection) for each, projection in found]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("LOG", "KIND", "EPOCH", "SEQUENCER"),
        [(f"{row['pool']}/{row['name']}", row["kind"], row["epoch"], row["address"] or "-") for row in rows],
        "there is no log",
    )


@log.command("show")
@named
@json_option
@config_option
def show(settings: Settings, name: str, pool: str, as_json: bool) -> None:
    """Show a log: its projection, its state and tail at its sequencer, its tail by the store, and how much it holds.

    \b
    Example:
      remora log show orders --json
    """
    which = _log(settings, pool, name)

    async def look(logs: Logs) -> dict[str, object]:
        projection = await logs.projection(which)
        row = _shown(which, projection)
        figures = await logs.figures(which)
        row |= {
            "state": "not served",
            "tail": None,
            "stored_tail": figures.tail,
            "trimmed": figures.trimmed,
            "keys": figures.keys,
        }
        row["remark"] = ""
        if figures.advised_keys and figures.keys > figures.advised_keys:
            row["remark"] = (
                f"a stripe holds {several(figures.keys, 'key')}, more than {figures.advised_keys}: trim the log"
            )
        try:
            addresses = dict.fromkeys(filter(None, (projection.address, settings.sequencer.listen)))
            async with SequencerClient([*addresses], timeout_s=2.0) as client:
                token = await client.tail(which)
                row |= {"state": f"serving epoch {token.epoch}", "tail": token.position}
        except SequencerUnavailable as exc:
            row["sequencer"] = str(exc)
        return row

    row = _in_store(settings, look)
    if row["remark"]:
        print_line(f"remora: {row['remark']}", err=True)
    if as_json:
        print_json(row)
        return
    for key, value in row.items():
        print_line(f"{key:12} {'-' if value in (None, '') else value}")


@log.command("rm")
@named
@config_option
def rm(settings: Settings, name: str, pool: str) -> None:
    """Delete a log with all it holds; refused while a sequencer serves it.

    \b
    Example:
      remora log rm orders
    """
    which = _log(settings, pool, name)
    _in_store(settings, lambda logs: logs.remove(which))
    print_line(f"log {which} is deleted")


@log.command("next")
@named
@click.option(
    "-n", "wanted", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="How many positions."
)
@config_option
def next_command(settings: Settings, name: str, pool: str, wanted: int) -> None:
    """Ask the sequencer for positions, and print one a line.

    \b
    Example:
      remora log next orders -n 3
    """
    which = _log(settings, pool, name)

    async def ask(client: SequencerClient) -> None:
        left = wanted
        while left:
            token, granted = await client.next_range(which, min(left, 4096))
            for place in range(granted):
                print_line(str(token.position + place))
            left -= granted

    _at_sequencer(settings, ask)


@log.command("tail")
@named
@config_option
def tail(settings: Settings, name: str, pool: str) -> None:
    """Print the last position that the sequencer handed out; 0 where there was none.

    \b
    Example:
      remora log tail orders
    """
    which = _log(settings, pool, name)
    print_line(str(_at_sequencer(settings, lambda client: client.tail(which)).position))


@log.command("append")
@named
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--position", type=POSITION, help="Write there instead of asking the sequencer.")
@click.option("--epoch", type=click.IntRange(1), help="With --position: the epoch that it was handed out in.")
@config_option
def append(settings: Settings, name: str, pool: str, file: BinaryIO, position: int | None, epoch: int | None) -> None:
    """Write FILE, or standard input, as one entry, and print its position.

    The entry is written once: it takes another position if the first one is lost or the epoch ends. With --position
    the command says "stale epoch", "taken" or "trimmed", with exit code 1, if that position cannot be written.

    \b
    Example:
      echo hello | remora log append orders
    """
    if (position is None) != (epoch is None):
        raise click.UsageError("--position and --epoch belong together")
    which, data = _log(settings, pool, name), file.read(MOST_ENTRY + 1)
    if position is None or epoch is None:
        position = _with_log(settings, which, lambda log: log.append(data))
    else:
        token = Token(epoch, position)
        _in_store(settings, lambda logs: logs.append(which, token.epoch, token.position, data))
    print_line(str(position))


@log.command("read")
@named
@click.argument("position", type=POSITION)
@config_option
def read(settings: Settings, name: str, pool: str, position: int) -> None:
    """Print the entry at POSITION, or say filled, unwritten or trimmed, with exit code 3, 4 or 5.

    filled: written off, go on with the next one. unwritten: wait, or fill it. trimmed: deleted for good.

    \b
    Example:
      remora log read orders 17
    """
    which = _log(settings, pool, name)
    cell, data = _in_store(settings, lambda logs: logs.read(which, position))
    if cell is Cell.DATA:
        sys.stdout.buffer.write(data)
    else:
        print_line(str(cell), err=True)
    sys.exit(READ_CODES[cell])


@log.command("fill")
@named
@click.argument("position", type=POSITION)
@config_option
def fill(settings: Settings, name: str, pool: str, position: int) -> None:
    """Write POSITION off, so that readers pass it. Nothing behind the log's tail is written off.

    \b
    Example:
      remora log fill orders 17
    """
    _with_log(settings, _log(settings, pool, name), lambda log: log.fill(position))


@log.command("trim")
@named
@click.argument("position", type=POSITION)
@config_option
def trim(settings: Settings, name: str, pool: str, position: int) -> None:
    """Delete all entries up to POSITION for good. Nothing behind the log's tail is trimmed.

    \b
    Example:
      remora log trim orders 1000
    """
    which = _log(settings, pool, name)
    _with_log(settings, which, lambda log: log.trim(position))


@log.command("seal")
@named
@config_option
def seal(settings: Settings, name: str, pool: str) -> None:
    """Begin a new epoch: the sequencer that serves the log is refused from now on, and registers it anew.

    \b
    Example:
      remora log seal orders
    """
    which = _log(settings, pool, name)
    print_line(f"epoch {_in_store(settings, lambda logs: logs.seal(which))}")


# --------------------------------------------------------------------------------------------- helpers


def _log(settings: Settings, pool: str, name: str) -> LogName:
    named_pool = pool or run_async(app.default_log_pool(settings))
    return LogName(named_pool.encode(errors="surrogateescape"), name.encode(errors="surrogateescape"))


def _shown(log: LogName, projection: Projection) -> dict[str, object]:
    return {
        "pool": log.pool.decode(errors="replace"),
        "name": log.name.decode(errors="replace"),
        "id": projection.id,
        "kind": str(projection.kind),
        "width": projection.width,
        "epoch": projection.epoch,
        "owner": projection.owner,
        "address": projection.address,
    }


def _in_store(settings: Settings, work: Callable[[Logs], Awaitable[T]], *, make: bool = False) -> T:
    async def run() -> T:
        async with app.open_logs(settings, waits=False, make=make) as logs:
            return await work(logs)

    return run_async(run())


def _with_log(settings: Settings, which: LogName, work: Callable[[Log], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            async with open_log(which, config=settings, times=LogTimes(give_up_s=ANSWER_S)) as log:
                return await work(log)
        except NotAppended as exc:
            raise StoreUnavailable(f"sequencer at {settings.sequencer.listen}: {exc}") from exc

    return run_async(run())


def _at_sequencer(settings: Settings, work: Callable[[SequencerClient], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            async with SequencerClient([settings.sequencer.listen], timeout_s=ANSWER_S) as client:
                return await work(client)
        except SequencerUnavailable as exc:
            raise StoreUnavailable(f"sequencer at {settings.sequencer.listen}: {exc}") from exc

    return run_async(run())
