"""`remora drain`: giving this host's queues to other hosts before maintenance."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from remora.cli.admin_client import DaemonControl, fetch_status
from remora.cli.options import daemon_option, seconds, token_file_option
from remora.cli.output import print_line, run_async
from remora.cli.steps import SILENT_S, told
from remora.config import Settings
from remora.model.errors import DaemonNotReachable
from remora.model.exits import Exit
from remora.model.words import several

LOOK_INTERVAL_S = 0.25


@click.command()
@daemon_option
@click.option(
    "--timeout", "timeout_s", metavar="DURATION", default="60s", show_default=True, callback=seconds,
    help="How long to wait until this host holds no queue; seconds or with a unit.",
)  # fmt: skip
@click.option("--undo", is_flag=True, help="Take part again, at once.")
@token_file_option
def drain(settings: Settings, timeout_s: float, undo: bool, token_file: Path | None) -> None:
    """Have this host give its queues to other hosts' workers, before it is maintained.

    The daemon goes on running and takes events in, but holds no queue; /-/ready says no. That lasts until --undo, or
    until the daemon is started again. Where there is no other host, what is in the queues waits.

    Exits with 3 when queues are still held at the end of the time; they are given away all the same. With 69 no daemon
    was reached, or none answered in time: then the message says whether the host may drain nevertheless. Only root, the
    daemon's user and members of its group may ask for it: for all others the exit code is 77.

    \b
    Example:
      remora drain --timeout 2m && systemctl stop remora
    """
    with told(after_s=SILENT_S) as tell:
        tell(f"waiting until this host holds no queue, for up to {timeout_s:g} s")
        left = run_async(_drained(DaemonControl(settings, token_file), timeout_s, on=not undo))
    if undo:
        print_line("this host takes part again")
    elif not left:
        print_line("this host holds no queues any more")
    else:
        print_line(f"remora: {left} after {timeout_s:g} s; `remora status` says more", err=True)
        sys.exit(Exit.DRAIN_TIMEOUT)


async def _drained(daemon: DaemonControl, timeout_s: float, *, on: bool) -> str:
    """Say it to the daemon; what is left when the time is over."""
    await daemon.drain(on)
    until = asyncio.get_running_loop().time() + timeout_s
    try:
        while on and (left := _held(await fetch_status(daemon.settings.admin))):
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0:
                return left
            await asyncio.sleep(min(LOOK_INTERVAL_S, left_s))
    except DaemonNotReachable as exc:
        raise DaemonNotReachable(f"{exc}; this host drains nevertheless, until `remora drain --undo`") from exc
    return ""


def _held(status: dict[str, Any]) -> str:
    """What keeps a drain from being done; empty when it is. A worker that does not answer may hold anything."""
    queues = sum(each["shards"] for each in status["workers"])
    silent = sum(not each["answers"] for each in status["workers"])
    said = [f"{several(queues, 'queue is', 'queues are')} still held"] if queues else []
    return ", ".join([*said, f"{several(silent, 'worker does', 'workers do')} not answer"] if silent else said)
