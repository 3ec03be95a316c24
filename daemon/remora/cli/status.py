"""`remora status`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from typing import Any

import click

from remora.cli import admin_client
from remora.cli.options import config_option
from remora.cli.output import duration, print_json, print_table, run_async
from remora.config import Settings
from remora.model.exits import Exit
from remora.policy.healing import LEAK_COMMAND


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as JSON.")
@click.option("--check", is_flag=True, help="Print only what is wrong, and exit with 1 where anything is.")
def status(settings: Settings, as_json: bool, check: bool) -> None:
    """Show how the running daemon is doing, from its admin port.

    Queues in the same state for the same reason share a line: `orders +10` are orders and ten more. --json has each of
    them. Exit code 69 when no daemon answers; `remora explain` works without one.

    \b
    Example, the queues that something keeps from being delivered:
      remora status --json | jq -r '.shards[] | select(.reason != "") | [.queue, .reason] | @tsv'

    
    Example, for a script or a monitor: 0 when the daemon is ready and delivers all that it holds
      remora status --check || echo "look at remora"
    """
    shown = run_async(admin_client.fetch_status(settings.admin))
    if check:
        _check(shown)
        return
    if as_json:
        print_json(shown)
        return
    for line in (*status_lines(shown), *room_lines(shown["topics"])):
        click.echo(line)
    print_table(("QUEUE", "TOPIC", "STATE", "FOR", "ENDPOINT", "REASON"), status_rows(shown["shards"]))
    for queues, reason in left_rows(shown["left"]):
        click.echo(f"not held: {queues}: {reason}")


def status_lines(shown: dict[str, Any]) -> list[str]:
    """What a status says of the daemon as a whole."""
    store = shown["store"]
    return [
        f"remora {shown['version']}, {'ready' if shown['ready'] else 'not ready: ' + '; '.join(shown['reasons'])}",
        f"store: {store['description'] if store['connected'] else store['state']}",
        *(f"damaged: {each}" for each in store["damaged"]),
        f"ingest: {shown['ingest'] or 'off'}",
        *(f"delivery: {each}" for each in _only_of_delivery(shown)),
    ]


FAILING = ("retrying", "quarantined", "stopped")
"""The states of a queue whose entries do not arrive."""


def what_is_wrong(shown: dict[str, Any]) -> list[str]:
    """A line for each thing that keeps the daemon from taking events in or from delivering; none where all is well."""
    shards = [each for each in shown["shards"] if each["state"] in FAILING]
    return [
        *(f"not ready: {each}" for each in shown["reasons"]),
        *(f"damaged: {each}" for each in shown["store"]["damaged"]),
        *(f"delivery: {each}" for each in _only_of_delivery(shown)),
        *(f"worker {each['number']} does not answer" for each in shown["workers"] if not each["answers"]),
        *(f"{topic}: {queues} {state}: {said}" for queues, topic, state, _, _, said in status_rows(shards)),
        *room_lines(each for each in shown["topics"] if (each.get("room") or {}).get("leaks")),
    ]


def _check(shown: dict[str, Any]) -> None:
    wrong = what_is_wrong(shown)
    for line in wrong:
        click.echo(line)
    if wrong:
        sys.exit(Exit.FAILURE)
    click.echo(f"all is well: {len(shown['shards'])} queues")


def _only_of_delivery(shown: dict[str, Any]) -> list[str]:
    """Why nothing is delivered, where the daemon is ready in other respects."""
    reasons = shown.get("ready_to_deliver", {}).get("reasons", [])
    return [each for each in reasons if each not in shown["reasons"]]


def room_lines(topics: Iterable[dict[str, Any]]) -> list[str]:
    """The topics whose worst queue is full by a leak, or full within a day."""
    return [
        f"room: topic {each['topic']}: {room_text(each['room'], each['topic'])}"
        for each in topics
        if (each.get("room") or {}).get("advice")
    ]


def room_text(room: dict[str, Any], topic: str) -> str:
    """What a status says of a topic's room, with the command that mends it, if one does."""
    said: str = room["advice"]
    leaks = f": {LEAK_COMMAND} --topic {shlex.quote(topic)}" if room["leaks"] else ""
    return said + leaks


def status_rows(shards: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each group of queues that say the same: the shards of a topic are many, and mostly alike."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in shards:
        said = "; ".join(filter(None, [each["reason"], *each["remarks"]]))
        groups.setdefault((each["topic"] or "-", each["state"], each["endpoint"] or "-", said), []).append(each)
    return [
        (some(each["queue"] for each in group), topic, state, _since(group), endpoint, said)
        for (topic, state, endpoint, said), group in groups.items()
    ]


def left_rows(left: list[dict[str, str]]) -> list[tuple[str, str]]:
    """The queues that are not held, those for the same reason together."""
    groups: dict[str, list[str]] = {}
    for each in left:
        groups.setdefault(each["reason"] + (f" ({each['owner']})" if each.get("owner") else ""), []).append(
            each["queue"]
        )
    return [(some(queues), reason) for reason, queues in groups.items()]


def some(queues: Iterable[str]) -> str:
    """The first of some queues, and how many there are besides."""
    first, *others = queues
    return f"{first} +{len(others)}" if others else first


def _since(group: list[dict[str, Any]]) -> str:
    return duration(max(each["since_seconds"] for each in group))
