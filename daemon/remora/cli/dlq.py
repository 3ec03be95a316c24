"""`remora dlq`: entries that left their queue undelivered."""

from __future__ import annotations

import base64
import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from remora import app
from remora.cli.groups import CommandGroup
from remora.cli.letters import Filter, filter_options, pick_letters
from remora.cli.options import config_option, daemon_option, gathered_into, json_option
from remora.cli.output import LETTERS, ask, print_json, print_line, print_table, run_async, size
from remora.cli.rows import origin_option
from remora.codec.event_entry import decode
from remora.codec.rendering_plain import body
from remora.config import Settings
from remora.engine.redriving import RedrivePlan, carry_out, letter_place, plan
from remora.model.errors import CodecError, RemoraError
from remora.model.exits import Exit
from remora.model.record import CorruptLetter, DeadLetter
from remora.model.shard import Origin
from remora.model.words import several
from remora.ports.store import ShardStore

MOST_NAMED = 10
STANDING = "that is still in its queue, too: left alone; `remora status` shows what the queue waits for"


class UnknownLetter(RemoraError):
    """There is no dead letter at this place."""


@click.group(cls=CommandGroup)
def dlq() -> None:
    """Show, re-drive and drop dead letters: entries that could not be delivered, with cause and raw bytes.

    They are kept when their topic is removed, too. `entry decode` shows what is in one.

    \b
    Start with:
      remora dlq list --summary
      remora dlq redrive --topic orders --dry-run
    """


# ----------------------------------------------------------------------------------------------- looks


@dlq.command("list")
@click.argument("queue", required=False)
@filter_options
@click.option("--summary", is_flag=True, help="Count them by queue and cause, with those re-driven and dropped.")
@daemon_option
@json_option
def list_command(settings: Settings, queue: str | None, wanted: Filter, summary: bool, as_json: bool) -> None:
    """List dead letters of QUEUE, or of all queues, in queue order.

    \b
    Examples:
      remora dlq list --topic orders --cause expired --newer-than 1h
      remora dlq list --json | jq -r '.[] | [.queue, .cause, .reason] | @tsv'
    """
    if queue is not None:
        wanted = wanted.of_queue(queue)
    if summary:
        _print_summary(settings, wanted, as_json=as_json)
        return
    letters = run_async(_letters(settings, wanted))
    if as_json:
        print_json([as_json_row(each) for each in letters])
    else:
        _print_letters(letters, "there is no dead letter" if wanted.is_everything else "there is no such dead letter")
    _complain_of_corrupt(letters)


def _print_letters(letters: Sequence[DeadLetter], none: str) -> None:
    print_table(
        ("QUEUE", "POSITION", "CAUSE", "ATTEMPTS", "PARKED", "BYTES", "REASON"),
        [
            (
                each.queue,
                f"{each.incarnation}:{each.position}",
                each.cause,
                each.attempts or "-",  # they are counted where a limit or a pace of attempts is set
                _time(each.parked_at) or "-",
                size(len(each.raw)),
                _reason(each),
            )
            for each in letters
        ],
        none,
    )


def _reason(letter: DeadLetter) -> str:
    """Why an entry was given up, and how the last attempt at it failed where that says more."""
    says_more = letter.last_failure and letter.last_failure not in letter.reason
    return f"{letter.reason}; the last attempt failed: {letter.last_failure}" if says_more else letter.reason


def _print_summary(settings: Settings, wanted: Filter, *, as_json: bool) -> None:
    """How many letters there are by queue and cause, and what commands have done with others."""

    async def look() -> tuple[dict[str, dict[str, int]], dict[str, tuple[int, int]]]:
        counts: dict[str, dict[str, int]] = {}
        async with app.store_of(settings) as store:
            for each in await pick_letters(store, wanted):
                of_queue = counts.setdefault(each.queue, {})
                of_queue[each.cause] = of_queue.get(each.cause, 0) + 1
            totals = await store.letters.totals()
        return counts, {queue: (each.redriven, each.dropped) for queue, each in totals.items()}

    counts, totals = run_async(look())
    rows = [
        (queue, sum(counts.get(queue, {}).values()), counts.get(queue, {}), *totals.get(queue, (0, 0)))
        for queue in sorted(counts.keys() | totals.keys())
        if queue in counts or wanted.is_everything
    ]
    if as_json:
        names = ("queue", "letters", "causes", "redriven", "dropped")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(
        ("QUEUE", "LETTERS", "CAUSES", "REDRIVEN", "DROPPED"),
        [
            (queue, count, ", ".join(f"{cause} {n}" for cause, n in sorted(causes.items())) or "-", redriven, dropped)
            for queue, count, causes, redriven, dropped in rows
        ],
        "there is no dead letter",
    )


@dlq.command("show")
@click.argument("queue")
@click.argument("position")
@click.option("--raw", is_flag=True, help="Write the raw entry to standard output, as `entry decode` reads it.")
@daemon_option
def show_command(settings: Settings, queue: str, position: str, raw: bool) -> None:
    """Show the dead letter of QUEUE at POSITION (as `dlq list` prints it), with the event that is in it.

    `body` is what would have been sent. If the entry cannot be decoded, `event` says why.

    \b
    Example, with POSITION as `dlq list` has it:
      remora dlq show orders.3 POSITION --raw | remora entry decode
    """
    for each in run_async(_letters(settings, Filter(queue=queue))):
        if position in (each.position, f"{each.incarnation}:{each.position}"):
            if raw:
                sys.stdout.buffer.write(each.raw)
            else:
                print_json(as_json_row(each) | event_of(each))
            _complain_of_corrupt([each])
            return
    raise UnknownLetter(f"there is no dead letter of {queue!r} at {position}; `remora dlq list {queue}` shows them")


async def _letters(settings: Settings, wanted: Filter) -> list[DeadLetter]:
    async with app.store_of(settings) as store:
        return await pick_letters(store, wanted)


# --------------------------------------------------------------------------------------------- changes

_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


@dataclass(frozen=True, slots=True)
class _RedriveOptions:
    """The options of `remora dlq redrive`."""

    raw: bool
    rate: float
    origin: Origin | None
    dry_run: bool
    yes: bool
    as_json: bool


@dlq.command("redrive")
@filter_options
@click.option("--raw", is_flag=True, help="Also what is corrupt or cannot be decoded, as it is, into its own queue.")
@click.option("--rate", type=click.FloatRange(min=0), default=0, help="Most entries a second; 0: no limit.")
@origin_option
@_dry_run
@_yes
@config_option
@json_option
@gathered_into(_RedriveOptions)
def redrive_command(settings: Settings, wanted: Filter, asked: _RedriveOptions) -> None:
    """Commit the entries of dead letters to their topics again, and delete the letters.

    The order is that of the first commits, so each key stays in order. Ages begin anew. Each entry is committed once,
    also when the command is cut short and repeated. A letter whose entry is still in its queue is left alone.
    Exit code 1 when some cannot be re-driven, or their topic is closed; 75 where a queue is full: the letters that are
    left can be re-driven later.

    \b
    Example:
      remora dlq redrive --topic orders --cause expired --rate 500
    """

    async def work() -> tuple[RedrivePlan, int]:
        async with app.store_of(settings) as store:
            planned = await plan(store, await pick_letters(store, wanted), raw=asked.raw, origin=asked.origin)
            if asked.dry_run or not planned.letters:
                return planned, 0
            _confirm(f"Re-drive {several(planned.letters, *LETTERS)} of {_queues(planned)}?", yes=asked.yes)
            return planned, await _redrive(store, planned, asked.rate)

    planned, done = run_async(work())
    if asked.as_json:
        print_json(
            {
                "planned": planned.letters,
                "redriven": done,
                "undecodable": len(planned.undecodable),
                "homeless": len(planned.homeless),
                "ambiguous": len(planned.ambiguous),
                "standing": len(planned.standing),
                "dry_run": asked.dry_run,
            }
        )
    else:
        print_line(f"{several(planned.letters, *LETTERS)} would be re-driven" if asked.dry_run else f"{done} re-driven")
    _complain(planned.undecodable, "without an entry that can be decoded: re-drive as it is with --raw, or drop")
    _complain(planned.homeless, "without a queue by now: make the topic again, or drop")
    _complain(planned.ambiguous, "of a queue that radosgw and remora both have: say which with --origin")
    _complain(planned.standing, STANDING)
    if planned.undecodable or planned.homeless or planned.ambiguous or planned.standing:
        sys.exit(Exit.FAILURE)


async def _redrive(store: ShardStore, planned: RedrivePlan, rate: float) -> int:
    """Carry out the plan. Reports how far it came before it raises an error."""
    done = 0
    try:
        async for count in carry_out(store, planned.portions, rate):
            done += count
    except RemoraError:
        print_line(f"remora: {done} of {several(planned.letters, *LETTERS)} were re-driven, then:", err=True)
        raise
    return done


@dlq.command("drop")
@filter_options
@_dry_run
@_yes
@config_option
@json_option
def drop_command(settings: Settings, wanted: Filter, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete dead letters for good: their entries are never delivered.

    A letter whose entry is still in its queue is left alone; then the exit code is 1.

    \b
    Example:
      remora dlq drop --topic orders --cause expired --older-than 30d
    """

    async def work() -> tuple[int, int, Sequence[DeadLetter]]:
        async with app.store_of(settings) as store:
            picked = await pick_letters(store, wanted)
            standing = await store.letters.still_standing(picked)
            alone = set(map(letter_place, standing))
            letters = [each for each in picked if letter_place(each) not in alone]
            if dry_run or not letters:
                return len(letters), 0, standing
            _confirm(f"Drop {several(len(letters), *LETTERS)} for good?", yes=yes)
            by_queue: dict[str, list[DeadLetter]] = {}
            for each in letters:
                by_queue.setdefault(each.queue, []).append(each)
            return len(letters), sum([await _drop(store, each) for each in by_queue.values()]), standing

    found, done, standing = run_async(work())
    if as_json:
        print_json({"planned": found, "dropped": done, "standing": len(standing), "dry_run": dry_run})
    else:
        print_line(f"{several(found, *LETTERS)} would be dropped" if dry_run else f"{done} dropped")
    _complain(standing, STANDING)
    if standing:
        sys.exit(Exit.FAILURE)


async def _drop(store: ShardStore, letters: list[DeadLetter]) -> int:
    """Drop letters of one queue, some hundreds at a time."""
    return sum([await store.letters.drop(letters[i : i + 500]) for i in range(0, len(letters), 500)])


def _confirm(question: str, *, yes: bool) -> None:
    if not yes:
        ask(question)


def _queues(planned: RedrivePlan) -> str:
    names = sorted({each.place.shard.queue for each in planned.portions})
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _complain(letters: Sequence[DeadLetter], why: str) -> None:
    if letters:
        print_line(f"remora: {several(len(letters), *LETTERS)} {why}", err=True)


def _complain_of_corrupt(letters: Sequence[DeadLetter]) -> None:
    """Exit with 1 where some of these letters changed in the store."""
    corrupt = [each for each in letters if isinstance(each, CorruptLetter)]
    _complain(corrupt, "with bytes that have changed in the store; `dlq redrive` takes such with --raw only")
    if corrupt:
        sys.exit(Exit.FAILURE)


def as_json_row(letter: DeadLetter) -> dict[str, object]:
    """A dead letter with the names that `remora dlq list --json` promises; `raw` is base64."""
    return {
        "queue": letter.queue,
        "incarnation": letter.incarnation,
        "position": letter.position,
        "next_position": letter.next_position,
        "cause": letter.cause,
        "reason": letter.reason,
        "sequence": letter.sequence or None,
        "attempts": letter.attempts,
        "last_failure": letter.last_failure or None,
        "failed_at": _time(letter.failed_at),
        "first_seen": _time(letter.first_seen),
        "parked_at": _time(letter.parked_at),
        "raw": base64.b64encode(letter.raw).decode(),
    }


def event_of(letter: DeadLetter) -> dict[str, object]:
    """What the entry of a letter says: bucket, key, event and the notification; why not, where that cannot be known."""
    if not letter.is_as_committed:
        return {"event": "unknown: its bytes are not those that were committed"}
    try:
        entry = decode(letter.raw)
        notification = json.loads(body(entry).decode(errors="surrogateescape"))
    except (CodecError, ValueError) as exc:
        return {"event": f"unknown: {exc}"}
    event = entry.event
    return {
        "bucket": event.bucket_name.decode(errors="surrogateescape"),
        "key": event.object_key.decode(errors="surrogateescape"),
        "event": event.event_name.decode(errors="surrogateescape"),
        "event_id": event.event_id.decode(errors="surrogateescape"),
        "body": notification,
    }


def _time(seconds: float) -> str | None:
    """As ISO 8601 has it; None for a time that is not known."""
    return None if not seconds else datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
