"""`remora balance`: what the workers do, and what balance by load would move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from remora import app
from remora.cli import admin_client
from remora.cli.groups import CommandGroup
from remora.cli.options import json_option, running_option
from remora.cli.output import print_json, print_line, print_table, run_async, size
from remora.cli.rows import complain
from remora.cli.status import silence_lines
from remora.config import Settings
from remora.model.member import COMMAND_COOKIE, Member, WorkerCookie
from remora.policy.ownership.hosts import host_text

REASONS: Mapping[str, str] = {
    "alone": "no other worker takes part",
    "below": "not busier than the others",
    "minimum": "too little to be worth a move",
    "only_shard": "has one queue only",
    "no_shards": "has no queue",
    "later": "no worker is left that could take some",
    "grace": "its queues were moved a while ago",
    "helps_nobody": "every move would make another worker as busy",
}


@click.group(cls=CommandGroup)
def balance() -> None:
    """Show how busy the workers are, and which queues would move for it."""


@balance.command("show")
@running_option
@json_option
def show_command(settings: Settings, as_json: bool) -> None:
    """Show what a round of balance by load would do now, and change nothing.

    Asks the daemon of this host what each of its workers would do; of workers on other hosts it shows what they
    announce. USAGE is that of a worker's busiest resource. MOVED is the number of queues that it received for their
    load, less those that it gave. The lines below the table say how memory and network of this host are measured.
    Exit code 1 where a worker of this host does not answer.

    \b
    Example, the resources of each worker of this host:
      remora balance show --json | jq '.workers[] | {worker, resources}'
    """

    async def figures() -> tuple[list[Member], dict[str, Any]]:
        status = await admin_client.fetch_status(settings.admin)
        async with app.store_of(settings) as store:
            rows = await store.members.live()
        return [each for each in rows if not each.cookie.startswith(COMMAND_COOKIE)], status

    rows, status = run_async(figures())
    own = {each["cookie"]: each.get("balance", {}) for each in status["workers"]}
    workers = [as_json_row(each, own.get(each.cookie, {})) for each in rows]
    if as_json:
        print_json({"workers": workers})
    else:
        print_table(
            ("WORKER", "HOST", "QUEUES", "MOVED", "USAGE", "HISTORY", "PER SECOND", "NEED", "WHY NOT"),
            map(_row, workers),
            "no worker announces itself",
        )
        for line in (*_moves(workers), *_limits(workers)):
            print_line(line)
    complain(silence_lines(status, "resources and moves"))


def as_json_row(member: Member, own: Mapping[str, Any]) -> dict[str, Any]:
    """A worker with the names that `remora balance show --json` promises; `own` is what it says if asked."""
    parsed = WorkerCookie.parse(member.cookie)
    return {
        "cookie": member.cookie,
        "worker": parsed.worker if parsed else member.cookie,
        "host": member.host,
        "hostname": member.hostname,
        "shards": member.shards,
        "draining": member.draining,
        "strategy": own.get("strategy"),
        "skew": own.get("skew", member.skew),
        "usage": own.get("usage", member.usage),
        "history": own.get("history", member.history if member.usage is not None else None),
        "bytes_per_second": own.get("bytes_per_second", round(member.bytes)),
        "resources": own.get("resources"),
        "limits": own.get("limits"),
        "average": own.get("average"),
        "needed_bytes_per_second": own.get("needed_bytes_per_second"),
        "skipped": own.get("skipped"),
        "moves": own.get("moves"),
    }


def _row(worker: Mapping[str, Any]) -> Sequence[object]:
    return (
        worker["worker"],
        host_text(worker["host"], {worker["host"]: worker["hostname"]}),
        worker["shards"],
        f"{worker['skew']:+d}" if worker["skew"] else "0",
        _percent(worker["usage"]),
        _percent(worker["history"]),
        size(worker["bytes_per_second"]),
        size(worker["needed_bytes_per_second"]) if worker["needed_bytes_per_second"] else "-",
        _why_not(worker),
    )


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f}%"


def _why_not(worker: Mapping[str, Any]) -> str:
    if worker["draining"]:
        return "drains"
    if worker["usage"] is None:
        return "takes no part"
    if worker["moves"]:
        return "-"
    return REASONS.get(worker["skipped"] or "", "-")


def _limits(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the workers of this host measure their memory and network by; they all say the same."""
    limits = next((each["limits"] for each in workers if each["limits"]), None)
    if limits is None:
        return []
    memory = f"{size(limits['memory'])} for each worker ({limits['memory_from']})" if limits["memory"] else "not known"
    return [f"this host: memory {memory}; network {_network(limits)}"]


def _network(limits: Mapping[str, Any]) -> str:
    if limits["network"]:
        return f"{size(limits['network'])} per second each way ({limits['network_from']})"
    card = f": {limits['network_from']} does not tell its speed" if limits["network_from"] else ""
    return f"not known{card}; balance.network_bytes sets it"


def _moves(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {each["cookie"]: each["worker"] for each in workers}
    return [
        f"{worker['worker']} would give {move['queue']} to {names.get(move['to'], move['to'])}"
        f" ({size(move['bytes_per_second'])} per second)"
        for worker in workers
        for move in worker["moves"] or ()
    ]
