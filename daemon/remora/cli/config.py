"""`remora config`: the files that an installation needs beside the program, which lie in the package."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import click

from remora.cli.groups import CommandGroup

UNITS = (
    "remora.service", "remora-sequencer.service", "remora-land.service", "remora-land.timer", "remora.sysusers",
)  # fmt: skip
PROGRAM = "/opt/remora/bin/remora"
"""Where the units as they are shipped have the command."""


@click.group(cls=CommandGroup)
def config() -> None:
    """Print the files that come with remora: configuration, units, alerts, dashboard and changelog."""


def _shipped(name: str) -> str:
    return (files("remora") / "shipped" / name).read_text()


@config.command()
@click.option("--all", "every", is_flag=True, help="Print every option there is.")
def default(every: bool) -> None:
    """Print a configuration file with the options that people set, each commented out at its default.

    \b
    Example:
      remora config default > /etc/remora/remora.toml
    """
    click.echo(_shipped("options.toml" if every else "remora.toml"), nl=False)


@config.command()
@click.argument("name", type=click.Choice(UNITS), default=UNITS[0])
def units(name: str) -> None:
    """Print the unit NAME of systemd, with the path of this command in it; remora.sysusers makes its user.

    \b
    Example:
      remora config units > /etc/systemd/system/remora.service
      remora config units remora.sysusers > /etc/sysusers.d/remora.conf
      systemd-sysusers && systemctl daemon-reload
    """
    click.echo(_shipped(name).replace(PROGRAM, str(Path(sys.prefix) / "bin/remora")), nl=False)


@config.command()
@click.option(
    "--scrape", is_flag=True, help="Print a configuration of Prometheus that reads this host's metrics instead."
)
def alerts(scrape: bool) -> None:
    """Print the rules of Prometheus that alert.

    \b
    Example:
      remora config alerts > /etc/prometheus/alerts.yml
    """
    click.echo(_shipped("prometheus.yml" if scrape else "alerts.yml"), nl=False)


@config.command()
def dashboard() -> None:
    """Print the dashboard for Grafana, which reads it under Dashboards, Import.

    \b
    Example:
      remora config dashboard > remora.json
    """
    click.echo(_shipped("grafana-dashboard.json"), nl=False)


@config.command()
def changelog() -> None:
    """Print what has changed, release by release.

    \b
    Example:
      remora config changelog | less
    """
    click.echo(_shipped("CHANGELOG.md"), nl=False)
