"""`remora run` and `remora check-config`.

The supervisor is to start quickly and to stay small, so nothing here imports what only workers and other commands need.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import click

from remora import config
from remora.cli.options import CONFIG_FILE, config_file_option
from remora.cli.output import print_line, run_async
from remora.config import Settings
from remora.model.errors import StoreUnavailable
from remora.process.usage import default_workers
from remora.supervisor import process


@click.command()
@config_file_option("Configuration file.")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="Worker processes.  [default: supervisor.workers, else one for each core, at most 4]",
)
def run(config_file: Path | None, workers: int | None) -> None:
    """Take events in and deliver them until SIGTERM or SIGINT.

    A supervisor keeps worker processes alive, which share the queues with each other and with other hosts. A worker
    that ends or hangs is replaced; one that cannot even start ends the command, with its reason and exit code.

    Starts and waits also while Ceph or Kafka are away; /-/ready on the admin port says so. SIGTERM drains: nothing
    more is taken in or read, what is in flight is finished and removed, the locks are released. A second SIGTERM
    stops at once. SIGHUP reads the configuration again and says what changed and what needs a restart.

    \b
    Example:
      remora run -c /etc/remora/remora.toml
    """
    # One that comes before the supervisor listens waits for it, and does not end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    settings, retired = config.loaded(config.file_of(config_file), os.environ)
    if workers is not None:
        settings = replace(settings, supervisor=replace(settings.supervisor, workers=workers))
    # For the processes that are forked, and not for those who ask for help.
    from remora.worker.process import run as work

    sys.exit(process.run(settings, config_file, work, retired))


async def _description(settings: Settings) -> str:
    """What the store says of itself. Raises StoreUnavailable where it is away."""
    from remora import app  # with all that a store needs, which `run` does not

    async with app.store_of(settings) as store:
        if why := "; ".join(store.failing.values()):
            raise StoreUnavailable(why)
        return store.description


@click.command("check-config")
@click.argument("file", required=False, type=CONFIG_FILE)
@config_file_option("The same as FILE, as other commands take it.")
@click.option("--store", "asks_store", is_flag=True, help="Open the store, too, and say which one it is.")
@click.option("--user", help="Look at files as this user would, as whom the daemon runs.  [default: who runs this]")
def check_config(file: Path | None, config_file: Path | None, asks_store: bool, user: str | None) -> None:
    """Check a configuration file, and the paths on this host that it names; nothing is contacted.

    With --store the store is: of a cluster it names the pool and the release of the OSDs, and whether their queues leak
    room. Nothing is changed. Exit code 69 where a cluster does not answer.

    Where no file is named and the default one is not there, the built-in configuration is checked, as `run` takes it.

    Options of the environment, REMORA_<SECTION>_<OPTION>, stand over those of the file, and are named. Exits with 78
    and a line for each problem, which begins with the path of its key or the name of its variable and ends with the
    line of the file. What is allowed and may not be what is meant is remarked on, and so is each file or directory that
    is missing, or that the daemon's user may not use, and each directory of the store that shares a file system.

    \b
    Example:
      remora check-config /etc/remora/remora.toml --user remora
      REMORA_LOG_LEVEL=debug remora check-config
    """
    chosen = config.file_of(file or config_file)
    settings, retired = config.loaded(chosen, os.environ)
    changed = config.changes(Settings(), settings)
    keys = sorted((*changed.live, *changed.restart))
    name = chosen or f"{config.BUILT_IN} ({config.DEFAULT_FILE} is not there)"
    said = f"{name} is good; it sets {', '.join(keys) if keys else 'nothing but defaults'}"
    overrides = config.from_environment(os.environ)
    if overrides:
        said += f"; from the environment: {', '.join(overrides)}"
    print_line(said)
    if asks_store:
        print_line(f"store: {run_async(_description(settings))}")
    for remark in retired:
        print_line(f"remark: {remark}")
    for variable, why in config.strangers(os.environ):
        print_line(f"remark: {variable} is passed over: {why}")
    for remark in settings.shaping.remarks(settings.supervisor.workers or default_workers()):
        print_line(f"remark: {remark}")
    _look_at_files(settings, user)


def _look_at_files(settings: Settings, user: str | None) -> None:
    """Remark on the paths that the daemon could not use, and say what was not looked at."""
    from remora.cli import local_files

    try:
        who = local_files.User.named(user) if user is not None else local_files.User.current()
    except KeyError:
        raise click.BadParameter(f"there is no user {user!r} on this host", param_hint="'--user'") from None
    found = local_files.problems(list(local_files.named_paths(settings)), who)
    if settings.store.kind == "sqlite":
        found += local_files.shared(settings.sqlite.directories)
    for problem in found:
        print_line(f"remark: {problem}")
    print_line(local_files.NOT_LOOKED_AT)
