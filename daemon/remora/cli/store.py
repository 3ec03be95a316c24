"""`remora store`: check, back up and restore the files of the embedded store; copy what is left of a damaged one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from remora import embedded_files
from remora.cli.groups import CommandGroup
from remora.cli.options import config_option, daemon_option, json_option
from remora.cli.output import LETTERS, print_json, print_line, print_table
from remora.cli.steps import SILENT_S, told
from remora.config import Settings
from remora.model.exits import Exit
from remora.model.store_files import FileReport
from remora.model.words import several

FILE = click.Path(dir_okay=False, exists=True, path_type=Path)

DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.group(cls=CommandGroup)
def store() -> None:
    """Check, back up and restore the files of the embedded store, and copy what can be read of a damaged one."""


@store.command("check")
@click.argument("files", nargs=-1, type=FILE, metavar="[FILE]...")
@config_option
@json_option
def check_command(settings: Settings, files: Sequence[Path], as_json: bool) -> None:
    """Check each FILE, or all files of the store in all directories, while the daemon runs or not. Changes nothing.

    Compares pages and indexes, the checksum of each entry and dead letter, positions, sizes, ledgers, reservations and
    numbers of sequences. Entries of releases before checksums are counted as unproven. Exit code 1 when something is
    wrong.

    \b
    Example:
      remora store check /var/lib/remora/queues-003.db
    """
    with told(after_s=SILENT_S) as tell:
        tell("checking the files")
        reports = embedded_files.check_files(settings, files)
    _tell(reports, as_json)


def _tell(reports: Sequence[FileReport], as_json: bool) -> None:
    """Print what is in each file; exits with 1 when something is wrong with one."""
    if as_json:
        print_json(
            [
                {
                    "file": str(each.path),
                    "topics": each.topics,
                    "queues": each.queues,
                    "entries": each.entries,
                    "letters": each.letters,
                    "unproven": each.unproven,
                    "problems": [{"what": problem.what, "problem": problem.text} for problem in each.problems],
                }
                for each in reports
            ]
        )
    else:
        for each in reports:
            unproven = f", {each.unproven} of them unproven" if each.unproven else ""
            found = several(len(each.problems), "problem") if each.problems else "good"
            counts = f"{several(each.topics, 'topic')}, {several(each.queues, 'queue')}"
            counts += f", {several(each.entries, 'entry', 'entries')}, {several(each.letters, *LETTERS)}"
            print_line(f"{each.path}: {found}; {counts}{unproven}")
            for problem in each.problems:
                print_line(f"  {problem.what}: {problem.text}")
    if any(each.problems for each in reports):
        sys.exit(Exit.FAILURE)


@store.command("salvage")
@click.argument("damaged", type=FILE)
@click.argument("new", type=click.Path(path_type=Path))
@json_option
def salvage_command(damaged: Path, new: Path, as_json: bool) -> None:
    """Copy what can be read of the file DAMAGED to the file NEW, which must not be there.

    Says of each entry that is lost which it is. An empty one without a right checksum stands in the place of one that
    cannot be read; one whose bytes have changed stays as it is. The daemon parks both as `corrupt`, so that the ledger
    and the dead letters have them; until then `store check` names them. Open reservations are not copied; their commits
    are refused. DAMAGED stays as it is. Copy its -wal file along when you copy it: what was committed last is
    in there, and nothing would show that it is missing. Exit code 1 when something was lost.

    Move the -wal and -shm files away with DAMAGED before NEW takes its place: SQLite would write what is in them into
    NEW, whose pages are others.

    \b
    Example, with the daemon stopped:
      remora store salvage queues-003.db queues-003.new
      mkdir damaged && mv queues-003.db* damaged/ && mv queues-003.new queues-003.db
    """
    with told(after_s=SILENT_S) as tell:
        tell(f"copying what can be read of {damaged}")
        found = embedded_files.salvage_file(damaged, new)
    if as_json:
        counts = {"entries": found.entries, "unproven": found.unproven, "rows": found.rows}
        print_json({"file": str(new), **counts, "lost": found.lost})
    else:
        unproven = f" ({found.unproven} of them unproven)" if found.unproven else ""
        copied = f"{several(found.entries, 'entry', 'entries')}{unproven}, {several(found.rows, 'other row')}"
        print_line(f"{new}: {copied}; {several(len(found.lost), 'is', 'are')} lost")
        for each in found.lost:
            print_line(f"  lost: {each}")
    if found.lost:
        sys.exit(Exit.FAILURE)


@store.command("backup")
@click.argument("directory", type=DIRECTORY)
@config_option
@json_option
def backup_command(settings: Settings, directory: Path, as_json: bool) -> None:
    """Copy all files of the store to DIRECTORY, as they are at one moment, while the daemon runs or not.

    DIRECTORY is made, or is empty, and belongs to the store's user. Events and deliveries go on; for some milliseconds
    they wait. Each copy is checked. Exit code 1 when something is wrong with one: damage is copied as it is.

    \b
    Example:
      remora store backup /var/backups/remora-2026-11-27
    """
    with told(after_s=SILENT_S) as tell:
        tell(f"copying the store to {directory}, and checking each copy")
        reports = embedded_files.back_up_store(settings, directory)
    _tell(reports, as_json)


@store.command("restore")
@click.argument("copies", type=click.Path(file_okay=False, exists=True, path_type=Path), metavar="DIRECTORY")
@config_option
@json_option
def restore_command(settings: Settings, copies: Path, as_json: bool) -> None:
    """Make the store of sqlite.directory or sqlite.directories out of the copies in DIRECTORY, which stay as they are.

    There must be no store there, and as many directories as the copied store had: stop the daemon, and move what is
    there elsewhere. Queues get new incarnations, so that consumers do not take new events for copies of others. What
    was delivered since the backup is delivered again, and what came in since is not there. When the command is cut
    short no daemon starts until it is repeated.

    \b
    Example, with the daemon stopped:
      mkdir /root/damaged && mv /var/lib/remora/queues-* /root/damaged/
      remora store restore /var/backups/remora-2026-11-27
    """
    with told(after_s=SILENT_S) as tell:
        tell(f"making the store out of {copies}, and checking each file")
        reports = embedded_files.restore_store(settings, copies)
    _tell(reports, as_json)


@store.group("directory", cls=CommandGroup)
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
