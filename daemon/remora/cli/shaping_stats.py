"""`remora shaping stats`: what became of requests for credit, by scope, group and priority."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from remora.cli.admin_client import fetch_shaping
from remora.cli.options import running_option
from remora.cli.output import print_json, print_line, print_table, run_async, size
from remora.cli.status import silence_lines
from remora.config import Settings
from remora.policy.shaping.classes import scope_of
from remora.policy.shaping.credit_flows import COUNTED, WaitCounts

_MOVED = ("donated_bytes", "transferred_bytes")
_OF_GROUP = "group_lost_bytes"

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}

COLUMNS = (
    "GROUP", "PRIORITY", "GRANTED", "PASSED", "BACK", "DONATED", "TRANSFERRED", "LOST", "AT ONCE", "DEFERRED", "WAITED",
    *(f"{each} us" for each in QUANTILES),
)  # fmt: skip


@click.command()
@running_option
@click.option("--scope", "only", metavar="NAME", help="This scope alone.")
@click.option("--summary", is_flag=True, help="A line for each scope, of all its groups and priorities together.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, with the waits by bucket.")
@click.option(
    "--since",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Only what came since an earlier output of --json.",
)
@click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Again each time, what came meanwhile.",
)
def stats(
    settings: Settings, only: str | None, summary: bool, as_json: bool, since: Path | None, watch_s: float | None
) -> None:
    """Show what became of requests for credit: how many passed at once or waited, for how long, and their bytes.

    Counters are those of the workers that run, since each began. A wait is right to 12 %. A request that waits
    counts as deferred, and as waited once it was granted. Credit that a group lost stands at its first line.
    A worker that does not answer is named: what it counted is missing, also from what came since.

    \b
    Examples:
      remora shaping stats --scope uplink
      remora shaping stats --summary --watch 5
      remora shaping stats --json > before; remora shaping stats --since before
    """
    before = _read(since) if since is not None else {}
    while True:
        shown = run_async(fetch_shaping(settings.admin))
        came = came_since(before, shown)
        rows = [each for each in came["flows"] if only in (None, scope_of(each["group"]))]
        rows = summed_by_scope(rows) if summary else rows
        if as_json:
            print_json({**came, "flows": rows})
        else:
            print_line(f"ticks: {came['ticks']}, late by one or more: {came['late_ticks']}")
            silent = silence_lines(came, "counters")
            for line in silent:
                print_line(f"workers: {line}")
            firsts = {each["group"]: each["priority"] for each in reversed(rows)}
            print_table(
                COLUMNS,
                [_row(each, is_first=firsts[each["group"]] == each["priority"]) for each in rows],
                "no request is known" if silent else "no request",
            )
        if watch_s is None:
            return
        before = shown
        run_async(asyncio.sleep(watch_s))


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
        return {each: found[each] for each in ("flows", "ticks", "late_ticks")}
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise click.UsageError(f"{file} is no output of `remora shaping stats --json`: {exc}") from exc


def came_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What the counters have grown by; of workers that began since, all they have."""
    earlier = {(each["group"], each["priority"]): each for each in before.get("flows", ())}
    return {
        "ticks": _grown(now["ticks"], before.get("ticks", 0)),
        "late_ticks": _grown(now["late_ticks"], before.get("late_ticks", 0)),
        "workers": now.get("workers", []),
        "flows": [_flow_since(earlier.get((each["group"], each["priority"]), {}), each) for each in now["flows"]],
    }


def _flow_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    known = before.get("waits", {})
    waits = {bucket: _grown(times, known.get(bucket, 0)) for bucket, times in now["waits"].items()}
    counters = {each: _grown(now[each], before.get(each, 0)) for each in (*COUNTED, *_MOVED, _OF_GROUP)}
    return {**now, **counters, "waits": {bucket: times for bucket, times in waits.items() if times}}


def _grown(now: int, before: int) -> int:
    return now - before if now >= before else now


def summed_by_scope(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The flows of each scope as one, under the scope's name; a group's loss counts once."""
    found: dict[str, dict[str, Any]] = {}
    groups: set[str] = set()
    for each in rows:
        scope = scope_of(each["group"])
        into = found.setdefault(scope, {"group": scope, "priority": "all", "waits": {}})
        for name in (*COUNTED, *_MOVED):
            into[name] = into.get(name, 0) + each[name]
        lost = 0 if each["group"] in groups else each[_OF_GROUP]
        into[_OF_GROUP] = into.get(_OF_GROUP, 0) + lost
        groups.add(each["group"])
        for bucket, times in each["waits"].items():
            into["waits"][bucket] = into["waits"].get(bucket, 0) + times
    return [found[scope] for scope in sorted(found)]


def _row(row: Mapping[str, Any], *, is_first: bool) -> tuple[str, ...]:
    waits = WaitCounts({int(bucket): times for bucket, times in row["waits"].items()})
    times = [waits.quantile_us(part) for part in QUANTILES.values()]
    return (
        row["group"],
        row["priority"],
        *(size(row[each]) for each in ("granted_bytes", "passed_bytes", "given_back_bytes", *_MOVED)),
        size(row[_OF_GROUP]) if is_first else "",
        *(str(row[each]) for each in ("at_once", "deferred", "waited")),
        *("-" if each is None else str(each) for each in times),
    )
