"""`remora store directory`: the directories of the embedded store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from remora import embedded_files
from remora.cli.groups import CommandGroup
from remora.cli.options import config_option, daemon_option, json_option
from remora.cli.output import print_json, print_line, print_table
from remora.config import Settings

DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.group("directory", cls=CommandGroup)
def directory_group() -> None:
    """List the directories of the embedded store, add one, and remove one.

    A topic lies whole in one directory, which is chosen by its name when it is made, and stays there. The first
    directory also has what concerns the whole store: members, notifications, shared logs, and where each topic lies.
    """


@directory_group.command("list")
@daemon_option
@json_option
def list_command(settings: Settings, as_json: bool) -> None:
    """List the directories of the store, with what lies in each, while the daemon runs or not.

    \b
    Example:
      remora store directory list
    """
    found = embedded_files.store_directories(settings)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        ("DIRECTORY", "NEW TOPICS", "HOLDS"),
        [(each.path, "yes" if each.takes_topics else "no", each.text) for each in found],
        "there is no directory",
    )


@directory_group.command("add")
@click.argument("path", type=DIRECTORY, metavar="DIRECTORY")
@config_option
def add_command(settings: Settings, path: Path) -> None:
    """Have the store use DIRECTORY too, for topics that are made from now on. No topic moves.

    DIRECTORY is made, or is empty, and belongs to the store's user. A directory of the store that was moved to
    another path is given with the new one. A running daemon uses it within seconds; it must be able to write there,
    which under systemd takes a drop-in with ReadWritePaths=. Add it to sqlite.directories as well: from there other
    commands know it.

    \b
    Example:
      install -d -m 0700 -o remora -g remora /srv/disk2/remora
      remora store directory add /srv/disk2/remora
    """
    is_new = embedded_files.add_directory(settings, path.absolute())
    print_line(f"{path.absolute()} {'is used' if is_new else 'is in use already'}")


@directory_group.command("rm")
@click.argument("path", type=DIRECTORY, metavar="DIRECTORY")
@click.option("--discard", is_flag=True, help="Give up all that lies in it; also for one that is lost for good.")
@config_option
def rm_command(settings: Settings, path: Path, discard: bool) -> None:
    """Stop using DIRECTORY for the store. Its files stay, and can be deleted then.

    The directory takes no new topics from the first call on. While topics or dead letters lie in it this fails with
    exit code 75: remove the topics when they are delivered, and repeat it. The first directory cannot be removed.

    \b
    Example:
      remora store directory rm /srv/disk2/remora
    """
    found = embedded_files.remove_directory(settings, path.absolute(), discard=discard)
    print_line(f"{found.path} is used no longer; it had {found.text}")
