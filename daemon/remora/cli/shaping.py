"""`remora shaping`: how the running daemon shapes its traffic, and changes of that until its next reload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from remora.cli.admin_client import DaemonControl, fetch_shaping
from remora.cli.groups import CommandGroup
from remora.cli.options import daemon_option, running_option, token_file_option
from remora.cli.output import print_json, print_line, print_table, run_async, size
from remora.cli.shaping_stats import stats
from remora.cli.status import silence_lines
from remora.config import Settings, parse_size, show_size
from remora.supervisor.shaping_changes import Change, named

COLUMNS = ("SCOPE", "PRIORITY", "GUARANTEED", "MAX", "BURST", "LEVEL", "WAITING", "GRANTED", "DONATED", "TRANSFERRED")


MOST_LINES = 20
"""So many groups of a scope are shown with their share at most, and so many hosts with their addresses."""

NO_LIMIT = -1
"""A maximum of none."""


class Size(click.ParamType[int]):
    """Bytes, or bytes per second, with a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


class SizeOrNone(Size):
    """The same, or `none`."""

    name = "size|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes, or NO_LIMIT."""
        return NO_LIMIT if str(value).lower() == "none" else super().convert(value, param, ctx)


@click.group(cls=CommandGroup)
def shaping() -> None:
    """Show how traffic is divided by priority, and change it until the next reload.

    What is configured stands in the tables [[shaping.scope]] of the configuration file; docs/shaping.md explains it.
    """


shaping.add_command(stats)


@shaping.command()
@running_option
@click.option("--scope", "only", metavar="NAME", help="This scope alone.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, with each group.")
def show(settings: Settings, only: str | None, as_json: bool) -> None:
    """Show scopes, their meters, the credit of all workers, who waits, and what was granted since the start.

    \b
    Example:
      remora shaping show --scope uplink
    """
    shown = run_async(fetch_shaping(settings.admin))
    if only is not None:
        name = named(only, [each["name"] for each in shown["scopes"]], "shaping.scope")
        shown["scopes"] = [each for each in shown["scopes"] if each["name"] == name]
    if as_json:
        print_json(shown)
        return
    print_line(f"default class: {shown['default_class']}" + (", changed by command" if shown["changed"] else ""))
    for each in shown["scopes"]:
        state = "enabled" if each["enabled"] else "disabled: everything passes"
        number = len(each["groups"])
        print_line(
            f"{each['name']} of {each['of']}, {state}; limit {show_size(each['limit'])} per second,"
            f" burst {show_size(each['burst'])}, {number} group{'' if number == 1 else 's'}, {size(each['lost'])} lost"
        )
        for line in (*_shares(each), *_hosts(each)):
            print_line(line)
    for line in silence_lines(shown, "waits"):
        print_line(f"workers: {line}")
    for remark in shown["remarks"]:
        print_line(f"remark: {remark}")
    print_table(
        COLUMNS,
        [_row(each["name"], meter) for each in shown["scopes"] for meter in each["meters"]],
        "no traffic is shaped",
    )


def _shares(scope: dict[str, Any]) -> list[str]:
    """What this host has of the limits that the hosts share, a line for each group, the largest shares first."""
    groups = [each for each in scope["groups"] if "share" in each]
    groups.sort(key=lambda each: (-each["share"], each["name"]))
    return _first([f"  {each['name']}: this host's share is {show_size(each['share'])} per second" for each in groups])


def _hosts(scope: dict[str, Any]) -> list[str]:
    """Where the hosts are that destinations name, beside the networks of a scope; those that are in them first."""
    hosts = sorted(scope.get("hosts", ()), key=lambda each: not each["inside"])
    return _first(
        [
            f"  {each['name']} is {', '.join(each['addresses'])}: {'in' if each['inside'] else 'not in'} its networks"
            for each in hosts
        ]
    )


def _first(lines: list[str]) -> list[str]:
    """As many lines as are read, and how many more there are."""
    more = [f"  and {len(lines) - MOST_LINES} more (--json)"] if len(lines) > MOST_LINES else []
    return lines[:MOST_LINES] + more


def _row(scope: str, meter: dict[str, Any]) -> tuple[str, ...]:
    most = "none" if meter["max"] is None else show_size(meter["max"])
    return (
        scope,
        meter["bucket"],
        show_size(meter["guaranteed"]),
        most,
        show_size(meter["burst"]),
        f"{meter['level']}B",
        str(meter["waiting"]),
        *(size(meter[each]) for each in ("granted", "donated", "transferred")),
    )


@shaping.command("set")
@daemon_option
@click.option("--scope", metavar="NAME|ALL", help="The scope to change.")
@click.option("--enable", is_flag=True, help="Shape it.")
@click.option("--disable", is_flag=True, help="Let everything pass, at once; its credit is forgotten.")
@click.option("--priority", metavar="NAME|ALL", help="The priority to change, or priority_queue, the spare.")
@click.option("--rate", type=Size(), help="Bytes per second that it is guaranteed.")
@click.option("--max", "most", type=SizeOrNone(), help="Bytes per second that it may have at most.")
@click.option("--burst", type=Size(), help="Bytes that it may have at once.")
@click.option("--default-class", metavar="NAME", help="The highest class of topics that no principal names.")
@token_file_option
def set_(settings: Settings, token_file: Path | None, **given: Any) -> None:
    """Change how this host shapes its traffic, from the next tick on, until the next reload or restart.

    Prints a line for each value that is named. Names are in any case.

    \b
    Examples:
      remora shaping set --scope uplink --priority priority_queue --rate 5MB
      remora shaping set --scope ALL --disable
    """
    for line in run_async(DaemonControl(settings, token_file).reshape(change_of(given))):
        print_line(line)


def change_of(given: Mapping[str, Any]) -> Change:
    """What the options of `set` ask for. Raises UsageError where they do not go together."""
    scope, priority, default_class = given["scope"], given["priority"], given["default_class"]
    has_values = any(given[each] is not None for each in ("rate", "most", "burst"))
    of_scope = given["enable"] or given["disable"] or priority is not None
    rules = (
        (given["enable"] and given["disable"], "--enable and --disable exclude each other"),
        (priority is not None and not has_values, "--priority needs --rate, --max or --burst"),
        (priority is None and has_values, "--rate, --max and --burst need --priority"),
        (scope is None and (of_scope or default_class is None), "--scope is missing"),
        (scope is not None and not of_scope, "--enable, --disable or --priority is missing"),
        (scope is not None and default_class is not None, "--default-class is a change of its own, without --scope"),
    )
    for is_broken, text in rules:
        if is_broken:
            raise click.UsageError(text)
    return Change(
        default_class=default_class or "",
        scope=scope or "",
        enabled=given["enable"] if given["enable"] or given["disable"] else None,
        priority=priority or "",
        rate=given["rate"],
        max=None if given["most"] == NO_LIMIT else given["most"],
        unlimited=given["most"] == NO_LIMIT,
        burst=given["burst"],
    )


@shaping.command()
@daemon_option
@token_file_option
def reset(settings: Settings, token_file: Path | None) -> None:
    """Go back to what the configuration file said when the daemon last read it.

    \b
    Example:
      remora shaping reset
    """
    for line in run_async(DaemonControl(settings, token_file).reshape(Change(reset=True))):
        print_line(line)
