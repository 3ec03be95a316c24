"""`remora dlq`: entries that left their queue undelivered."""

from __future__ import annotations

import base64
import datetime
import sys

import click

from remora import app
from remora.cli.output import config_option, json_option, print_json, print_table, run_async, size
from remora.config import Settings
from remora.model.errors import RemoraError
from remora.model.record import DeadLetter


class UnknownLetter(RemoraError):
    """There is no dead letter at this place."""


@click.group()
def dlq() -> None:
    """Show dead letters: entries that could not be delivered, with cause and raw bytes.

    They are kept when their topic is removed, too. `entry decode` shows what is in one.
    """


@dlq.command("list")
@click.argument("queue", required=False)
@config_option
@json_option
def list_command(settings: Settings, queue: str | None, as_json: bool) -> None:
    """List dead letters of QUEUE, or of all queues, in queue order.

    \b
    Example:
      remora dlq list --json | jq -r '.[] | [.queue, .cause, .reason] | @tsv'
    """
    letters = run_async(_letters(settings, queue))
    if as_json:
        print_json([as_json_row(each) for each in letters])
        return
    print_table(
        ("QUEUE", "POSITION", "CAUSE", "ATTEMPTS", "PARKED", "BYTES", "REASON"),
        [
            (
                each.queue,
                f"{each.incarnation}:{each.position}",
                each.cause,
                each.attempts,
                _time(each.parked_at),
                size(len(each.raw)),
                each.reason,
            )
            for each in letters
        ],
    )


@dlq.command("show")
@click.argument("queue")
@click.argument("position")
@click.option("--raw", is_flag=True, help="Write the raw entry to standard output, as `entry decode` reads it.")
@config_option
def show_command(settings: Settings, queue: str, position: str, raw: bool) -> None:
    """Show the dead letter of QUEUE at POSITION (as `dlq list` prints it).

    \b
    Example, with POSITION as `dlq list` has it:
      remora dlq show orders.3 POSITION --raw | remora entry decode
    """
    for each in run_async(_letters(settings, queue)):
        if position in (each.position, f"{each.incarnation}:{each.position}"):
            if raw:
                sys.stdout.buffer.write(each.raw)
            else:
                print_json(as_json_row(each))
            return
    raise UnknownLetter(f"there is no dead letter of {queue!r} at {position}; `remora dlq list {queue}` shows them")


async def _letters(settings: Settings, queue: str | None) -> list[DeadLetter]:
    async with app.store_of(settings) as store:
        return [each async for each in store.letters(queue)]


def as_json_row(letter: DeadLetter) -> dict[str, object]:
    """A dead letter with the names that `remora dlq list --json` promises; `raw` is base64."""
    return {
        "queue": letter.queue,
        "incarnation": letter.incarnation,
        "position": letter.position,
        "next_position": letter.next_position,
        "cause": letter.cause,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "first_seen": _time(letter.first_seen),
        "parked_at": _time(letter.parked_at),
        "raw": base64.b64encode(letter.raw).decode(),
    }


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
