"""`remora run`, `remora check-config` and `remora status`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from remora import app, config
from remora.cli.output import (
    DEFAULT_CONFIG,
    config_file_option,
    config_option,
    duration,
    load,
    print_json,
    print_table,
    run_async,
)
from remora.config import Settings


@click.command()
@config_file_option("Configuration file.")
def run(config_file: Path | None) -> None:
    """Take events in and deliver them until SIGTERM or SIGINT.

    Starts and waits also while Ceph or Kafka are away; /-/ready on the admin port tells. SIGTERM drains: nothing
    more is taken in or read, what is in flight is finished and removed, the locks are released. A second SIGTERM
    stops at once. SIGHUP reads the configuration again and says what changed and what needs a restart.

    \b
    Example:
      remora run -c /etc/remora/remora.toml
    """
    settings = load(config_file)
    sys.exit(app.run(settings, config_file or DEFAULT_CONFIG))


@click.command("check-config")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@config_file_option("The same as FILE, as other commands take it.", default=str(DEFAULT_CONFIG))
def check_config(file: Path | None, config_file: Path | None) -> None:
    """Check a configuration file; nothing is contacted.

    Exits with 78 and the path of the first wrong key.

    \b
    Example:
      remora check-config /etc/remora/remora.toml
    """
    chosen = file or config_file or DEFAULT_CONFIG
    settings = config.load(chosen)
    changed = config.changes(Settings(), settings)
    keys = sorted((*changed.live, *changed.restart))
    click.echo(f"{chosen} is good; it sets {', '.join(keys) if keys else 'nothing but defaults'}")


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as JSON.")
def status(settings: Settings, as_json: bool) -> None:
    """Show how the running daemon is doing, from its admin port.

    \b
    Example, the queues that do not get on:
      remora status --json | jq -r '.shards[] | select(.reason != "") | [.queue, .reason] | @tsv'
    """
    shown = run_async(app.fetch_status(settings.admin))
    if as_json:
        print_json(shown)
        return
    ready = "ready" if shown["ready"] else "not ready: " + "; ".join(shown["reasons"])
    click.echo(f"remora {shown['version']}, {ready}")
    store = shown["store"]
    click.echo(f"store: {store['description'] if store['connected'] else store['state']}")
    print_table(
        ("QUEUE", "TOPIC", "STATE", "FOR", "ENDPOINT", "REASON"),
        [
            (
                each["queue"],
                each["topic"] or "-",
                each["state"],
                duration(each["since_seconds"]),
                each["endpoint"] or "-",
                "; ".join(filter(None, [each["reason"], *each["remarks"]])),
            )
            for each in shown["shards"]
        ],
    )
    for each in shown["left"]:
        click.echo(f"not held: {each['queue']}: {each['reason']}{_owner(each)}")


def _owner(left: dict[str, str]) -> str:
    return f" ({left['owner']})" if left.get("owner") else ""
