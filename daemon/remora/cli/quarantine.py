"""`remora quarantine`: the destinations that fail, and using them again at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from remora.cli.admin_client import DaemonControl, fetch_status
from remora.cli.groups import CommandGroup
from remora.cli.options import daemon_option, json_option, running_option, token_file_option
from remora.cli.output import print_json, print_line, print_table, run_async
from remora.cli.rows import complain
from remora.cli.status import silence_lines
from remora.config import Settings
from remora.model.errors import RemoraError
from remora.model.member import WorkerCookie
from remora.model.words import duration
from remora.policy.ownership.quarantine import is_meant


class NotQuarantined(RemoraError):
    """No worker of this host has this destination in quarantine."""


@click.group(cls=CommandGroup)
def quarantine() -> None:
    """Show the destinations that workers of this host leave to others, or have them used again."""


@quarantine.command("list")
@running_option
@json_option
def list_command(settings: Settings, as_json: bool) -> None:
    """List the destinations in quarantine, each with the workers of this host that have it, and how long it lasts.

    DESTINATION#TOPIC is one topic whose endpoint there refuses its events. Exit code 1 where a worker does not answer.

    \b
    Example:
      remora quarantine list --json | jq -r '.[].destination' | sort -u
    """
    status = run_async(fetch_status(settings.admin))
    rows, unknown = _rows(status), silence_lines(status, "quarantines")
    if as_json:
        print_json(rows)
    elif rows or not unknown:
        print_table(
            ("DESTINATION", "WORKER", "LEFT"),
            [(each["destination"], each["worker"], duration(each["left_seconds"])) for each in rows],
            "no destination is in quarantine",
        )
    complain(unknown)


@quarantine.command("release")
@click.argument("destination", required=False)
@click.option("--all", "every", is_flag=True, help="All destinations.")
@token_file_option
@daemon_option
def release_command(settings: Settings, destination: str | None, every: bool, token_file: Path | None) -> None:
    """Have all workers of this host use DESTINATION again at once, as `remora quarantine list` names it.

    DESTINATION#TOPIC is a topic whose endpoint there refuses its events; DESTINATION alone means its topics, too.

    What still fails is in quarantine again after the next bad window.

    \b
    Example:
      remora quarantine release kafka://broker-1:9092
    """
    if (destination is not None) == every:
        raise click.UsageError("name one DESTINATION, or give --all")

    async def work() -> tuple[list[str], list[str]]:
        status = await fetch_status(settings.admin)
        rows, unknown = _rows(status), silence_lines(status, "quarantines")
        names = sorted({each["destination"] for each in rows if is_meant(each["destination"], destination)})
        if destination is not None and not names and not unknown:
            raise NotQuarantined(f"{destination} is not in quarantine; `remora quarantine list` shows what is")
        await DaemonControl(settings, token_file).release(destination)
        return names, unknown

    released, unknown = run_async(work())
    for each in released:
        print_line(f"{each} is used again")
    if not released and not unknown:
        print_line("no destination was in quarantine")
    complain(unknown)


def _rows(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each destination and worker, with the names that `remora quarantine list --json` promises."""
    found = []
    for each in status["workers"]:
        parsed = WorkerCookie.parse(each["cookie"])
        worker = parsed.worker if parsed else each["cookie"]
        found += [
            {"destination": name, "worker": worker, "left_seconds": round(left_s, 3)}
            for name, left_s in each.get("quarantine", {}).items()
        ]
    return sorted(found, key=lambda row: (row["destination"], row["worker"]))
