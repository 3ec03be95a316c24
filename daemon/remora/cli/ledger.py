"""`remora ledger`: whether every entry that was ever committed is accounted for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click

from remora import app
from remora.cli.layouts import ended_balances
from remora.cli.options import daemon_option, json_option
from remora.cli.output import print_json, print_table, run_async
from remora.cli.rows import Row, balances, complain, origin_option, row_named, rows_of
from remora.cli.steps import SILENT_S, told
from remora.config import Settings
from remora.model.exits import Exit
from remora.model.ledger import Balance, Cause
from remora.model.shard import Origin


@click.command()
@click.argument("topic", required=False)
@origin_option
@daemon_option
@json_option
def ledger(settings: Settings, topic: str | None, origin: Origin | None, as_json: bool) -> None:
    """Count all entries of TOPIC, or of all topics, by shard and outcome. Takes no lock.

    Committed = delivered + dead-lettered + expired + dropped + removed elsewhere + exported + pending. Some of
    those that are pending may be spilled. What is missing is unaccounted, and the command then fails with exit code 1.
    Queues of a former number of shards are counted too, with their final ledgers.

    \b
    Example, shards with entries that something else than remora removed:
      remora ledger --json | jq -r '.[].shards[] | select(.removed_elsewhere > 0) | .queue'
    """

    async def look() -> tuple[list[tuple[Row, list[Balance]]], Mapping[str, str]]:
        async with app.store_of(settings) as store:
            rows = [await row_named(store, topic, origin)] if topic else await rows_of(store)
            chosen = [row for row in rows if origin in (None, row.origin)]
            found = await balances(store, (shard for row in chosen for shard in row.shards))
            return [
                (row, [*await ended_balances(store, row), *(found[shard] for shard in row.shards if shard in found)])
                for row in chosen
            ], store.damaged

    with told(after_s=SILENT_S) as tell:
        tell("counting the entries of each queue")
        rows, damaged = run_async(look())
    if as_json:
        print_json([_topic_json(row, balances) for row, balances in rows])
    else:
        _print(rows)
    complain(damaged.values())
    if any(each.unaccounted for _, balances in rows for each in balances):
        sys.exit(Exit.FAILURE)


def _print(rows: Sequence[tuple[Row, Sequence[Balance]]]) -> None:
    causes = [str(cause).replace("_", " ").upper() for cause in Cause]
    print_table(
        ("TOPIC", "QUEUE", "COMMITTED", *causes, "PENDING", "SPILLED", "UNACCOUNTED"),
        [
            (
                row.label,
                each.shard.queue,
                each.committed,
                *(count for _, count in each.removed.items()),
                each.pending,
                each.spilled,
                each.unaccounted,
            )
            for row, balances in rows
            for each in balances
        ],
        "there is no queue",
    )


def _topic_json(row: Row, balances: Sequence[Balance]) -> dict[str, object]:
    """A topic's ledger with the names that `remora ledger --json` promises."""
    return {
        "topic": row.label,
        "origin": str(row.origin),
        "unaccounted": sum(abs(each.unaccounted) for each in balances),
        "shards": [
            {
                "queue": each.shard.queue,
                "committed": each.committed,
                **{str(cause): count for cause, count in each.removed.items()},
                "pending": each.pending,
                "spilled": each.spilled,
                "unaccounted": each.unaccounted,
            }
            for each in balances
        ],
    }
