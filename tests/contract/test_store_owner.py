"""Whose an embedded store is: commands of root go on as its owner, and those of others are refused."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import remora
from devkit.processes.daemon import complaints
from remora.model.exits import Exit
from remora.storage.sqlite.files.owner import open_folder

OWNER = pwd.getpwnam("daemon").pw_uid
PACKAGE = Path(remora.__file__).parent
UNKNOWN = 54_321
"""A user that this host does not know, as one of a container."""

AS_NOBODY = """
import os, pwd
import remora.cli.topic, remora.storage.sqlite
from remora.cli import main
os.setgroups([])
os.setuid(pwd.getpwnam("nobody").pw_uid)
main()
"""
"""Runs a command as a user who need not be able to read the program."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="remora-owner-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run(
    folder: Path, *words: str | Path, begin: tuple[str, ...] = ("-m", "remora"), python_path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, with a configuration whose store lies in the folder."""
    file = folder / "remora.toml"
    file.write_text(f'[sqlite]\ndirectory = "{folder}/above/queues"\nfiles = 2\n')
    return subprocess.run(
        [sys.executable, *begin, *words, "-c", file],
        capture_output=True, text=True, check=False, cwd="/",
        env={**os.environ, **({"PYTHONPATH": str(python_path)} if python_path else {})},
    )  # fmt: skip


def a_store(folder: Path, owner: int) -> Path:
    """An embedded store with one topic, which belongs to a user."""
    (folder / "above").mkdir()
    made = run(folder, "topic", "create", "orders", "--endpoint", "kafka://127.0.0.1:1")
    assert made.returncode == 0, made.stderr
    queues = folder / "above/queues"
    for each in (queues, *queues.rglob("*")):
        os.chown(each, owner, -1)
    return queues


@as_root
@pytest.mark.parametrize(("owner", "name"), [(OWNER, "daemon"), (UNKNOWN, str(UNKNOWN))], ids=["known", "unknown"])
def test_a_command_of_root_goes_on_as_the_owner(folder: Path, owner: int, name: str) -> None:
    """Root's commands read and change the store, and every file that they leave belongs to its owner."""
    queues = a_store(folder, owner)

    listed = run(folder, "-v", "topic", "list")
    made = run(folder, "topic", "create", "more", "--endpoint", "kafka://127.0.0.1:1")
    checked = run(folder, "store", "check")

    assert (listed.returncode, made.returncode, checked.returncode) == (0, 0, 0), listed.stderr + made.stderr
    assert "orders" in listed.stdout
    assert f"{queues} belongs to {name}: this goes on as that user" in listed.stderr
    assert "belongs to" not in made.stderr, "nobody asked for it"
    assert {each.stat().st_uid for each in (queues, *queues.rglob("*"))} == {owner}


@as_root
def test_the_owner_need_not_be_able_to_read_the_program(folder: Path, tmp_path: Path) -> None:
    """A command of root works where the program lies in a folder that only root may enter, as one below /root."""
    a_store(folder, OWNER)
    shutil.copytree(PACKAGE, tmp_path / "remora", symlinks=True)
    tmp_path.chmod(0o700)

    for words in (
        ["topic", "list"],
        ["topic", "show", "orders"],
        ["topic", "stats"],
        ["ledger"],
        ["explain", "orders"],
    ):
        done = run(folder, *words, python_path=tmp_path)

        assert done.returncode == 0, done.stderr
        assert "orders" in done.stdout


@as_root
def test_root_becomes_nobody_whom_others_could_choose(folder: Path) -> None:
    """Where others may put something else in the place of the store, root's command refuses to look at it."""
    queues = a_store(folder, OWNER)
    queues.parent.chmod(0o777)

    done = run(folder, "topic", "list")

    assert done.returncode == Exit.NO_PERMISSION
    assert f"{queues.parent} may be written to by others than root and daemon" in done.stderr
    assert f"chmod go-w {queues.parent}" in done.stderr


@as_root
def test_a_command_of_another_user_is_refused(folder: Path) -> None:
    """Who is neither root nor the owner is told in one line whose the store is, and who can look at it."""
    queues = a_store(folder, OWNER)

    done = run(folder, "topic", "list", begin=("-c", AS_NOBODY))

    assert done.returncode == Exit.NO_PERMISSION
    (line,) = complaints(done.stderr)
    assert f"{queues} belongs to daemon and not to nobody" in line
    assert "as root, which then becomes that user" in line
    assert "chown" not in line


@as_root
@pytest.mark.parametrize(
    ("mode", "owner", "is_open"),
    [
        (0o755, 0, False),
        (0o700, OWNER, False),
        (0o1777, 0, False),
        (0o775, 0, True),
        (0o757, 0, True),
        (0o755, 4, True),
    ],
    ids=["root's", "the owner's", "sticky", "the group's", "everybody's", "another user's"],
)
@pytest.mark.parametrize("is_link", [False, True], ids=["plain", "behind a link"])
def test_a_folder_above_the_store_that_others_may_change(
    folder: Path, mode: int, owner: int, is_open: bool, is_link: bool
) -> None:
    """One that another user may write to is found, also behind a symbolic link; one with the sticky bit is none."""
    above, store = folder / "above", folder / "above/store"
    store.mkdir(parents=True)
    above.chmod(mode)
    os.chown(above, owner, -1)
    (folder / "link").symlink_to("above/../above/store")

    found = open_folder(folder / "link" if is_link else store, OWNER)

    assert found == (above if is_open else None)
