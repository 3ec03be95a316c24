"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from remora import config
from remora.cli.output import print_line
from remora.model.errors import ConfigError

CONFIG_FILE = click.Path(dir_okay=False, readable=False, path_type=Path)
"""A configuration. Whether it may be read is for its reader to find out: click would call that wrong usage."""


def config_file_option(
    text: str, default: str = f"{config.DEFAULT_FILE}, or built-in defaults without it"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `-c FILE`, as every command has it; the command gets the path, or None. `default` is for the help."""
    return click.option(
        "-c",
        "--config",
        "config_file",
        type=CONFIG_FILE,
        envvar="REMORA_CONFIG",
        help=f"{text}  [env: REMORA_CONFIG; default: {default}]",
    )


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-c FILE`; the command gets loaded settings."""

    @config_file_option("Configuration file.")
    @functools.wraps(function)
    def wrapper(*args: Any, config_file: Path | None, **kwargs: Any) -> Any:
        return function(*args, settings=load(config_file), **kwargs)

    return wrapper


def daemon_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-c FILE`; the command gets the settings that the running daemon works by.

    Every command has it that asks the daemon, changes what it does or only reads its store. The settings are the
    file's, unless that is refused: then they are what the daemon was last started or reloaded with, since a mistake in
    the file must not take away the commands that an operator needs then. A command that changes the store has it not:
    the file may be about to name another one.
    """

    @config_file_option("Configuration file.")
    @functools.wraps(function)
    def wrapper(*args: Any, config_file: Path | None, **kwargs: Any) -> Any:
        return function(*args, settings=_of_running(config_file), **kwargs)

    return wrapper


def running_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-c FILE` as `daemon_option` does, and `--admin ADDRESS`, for commands that only show something.

    A command that changes the daemon has no `--admin`: it would watch one daemon and change another.
    """

    @daemon_option
    @click.option(
        "--admin",
        "address",
        metavar="ADDRESS",
        help="Where the daemon listens, HOST:PORT or unix:PATH.  [default: admin.listen]",
    )
    @functools.wraps(function)
    def wrapper(*args: Any, settings: config.Settings, address: str | None, **kwargs: Any) -> Any:
        if address is not None:
            try:
                settings = replace(settings, admin=replace(settings.admin, listen=address))
            except ConfigError as exc:
                raise click.BadParameter(exc.reason, param_hint="'--admin'") from exc
        return function(*args, settings=settings, **kwargs)

    return wrapper


def _of_running(file: Path | None) -> config.Settings:
    """The settings of the file, or of the daemon that runs with it where the file is refused."""
    try:
        return load(file)
    except ConfigError as exc:
        from remora.process import kept_settings

        known = kept_settings.recall(config.file_of(file))
        if known is None:
            raise
        for each in exc.problems:
            print_line(f"remora: {each}", err=True)
        print_line("remora: what follows is of the daemon that runs, by the settings that it runs with", err=True)
        return known


def load(file: Path | None) -> config.Settings:
    """The settings of a file, of the default one if it exists, else the defaults; the environment stands over them."""
    return config.load(config.file_of(file), os.environ)


def gathered_into(kind: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Pass a command the options that the frozen dataclass `kind` has as fields in one value, its argument `asked`.

    Stands right above the function, below all options. click passes each option as an argument of its own, and has
    nothing that groups them. dataclass-click and cyclopts make options of annotated fields, but bring a second way of
    declaring options; here options stay click's, and the type checker sees the fields.
    """
    names = [field.name for field in fields(kind)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            asked = kind(**{name: kwargs.pop(name) for name in names})
            return function(*args, asked=asked, **kwargs)

        return wrapper

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
"""A folder that may be there."""

kafka_config_option = click.option(
    "--kafka-config", type=FILE, help="Settings of Kafka's clients, for TLS and logins, as its own tools read them."
)

master_option = click.option(
    "--master", metavar="URL", help="Spark's master.  [default: what spark-submit gave, else this host's processors]"
)

memory_option = click.option(
    "--memory", default="2g", show_default=True, help="Memory of a local Spark; what needs more goes to disk."
)

region_option = click.option(
    "--region",
    envvar=["AWS_REGION", "AWS_DEFAULT_REGION"],
    default="default",
    show_default=True,
    help="The S3 endpoint's region; of a radosgw its zonegroup.",
)

token_file_option = click.option(
    "--token-file", type=FILE, help="A file with a control token: ask over admin.listen, not over the control socket."
)


def length_of_time(text: str) -> float:
    """Seconds of `90`, `1.5` or `5m`. Raises ValueError."""
    return float(text) if text.replace(".", "", 1).isdecimal() else config.parse_duration(text)


def seconds(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """A callback for options with a length of time: seconds, or None without a value."""
    if value is None:
        return None
    try:
        return length_of_time(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def instant(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A callback for options with a time: microseconds of `2026-11-21T02:14:07Z`, or another time of ISO 8601; without
    a zone it is UTC. None without a value."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError as exc:
        raise click.BadParameter(f"{value!r} is not a time such as 2026-11-21T02:14:07Z") from exc
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000_000)
