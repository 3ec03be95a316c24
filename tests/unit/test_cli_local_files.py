"""`check-config` looks at what a configuration names of this host, as the daemon's user would."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.processes.mounts import with_mount
from remora.cli.local_files import Named, User, problems
from remora.model.exits import Exit
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

STRANGER = User("stranger", 4711, frozenset({4711}))


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that everybody may pass through, as all above it."""
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)
    return tmp_path


def test_what_a_user_may_not_use_is_named(open_path: Path) -> None:
    """Missing, of another kind, not readable, or below a folder that is closed: each is said with its option."""
    for name, mode in (("readable", 0o644), ("secret", 0o600)):
        (open_path / name).write_text("")
        (open_path / name).chmod(mode)
    (open_path / "closed").mkdir(mode=0o700)
    paths = {
        "readable": "", "secret": "stranger may not read it", "nothing": "missing", "closed": "not a file",
        "closed/file": f"stranger may not pass through {open_path}/closed", "none/file": f"{open_path}/none is missing",
    }  # fmt: skip

    found = problems([Named("a.b", f"{open_path}/{name}") for name in paths], STRANGER)

    assert found == [f"a.b: {open_path}/{name}: {why}" for name, why in paths.items() if why]


def test_a_directory_that_the_daemon_makes_may_be_missing(open_path: Path) -> None:
    """Where its user may make it; else it is named with the folder that would have to let him."""
    own, made = User.current(), Named("sqlite.directory", f"{open_path}/q", is_directory=True, wanted=7, is_made=True)

    assert problems([made], own) == []
    open_path.chmod(0o755)
    assert problems([made], STRANGER) == [
        f"sqlite.directory: {open_path}/q: missing, and stranger may not make it in {open_path}"
    ]


def test_check_config_names_wrong_paths(remora: Run, config: Path, tmp_path: Path) -> None:
    """The file is good all the same, and the last line says what was not looked at."""
    config.write_text(f'[ingest]\ntokens = "{tmp_path}/tokens"\n[sqlite]\ndirectory = "{tmp_path}/q"\n')

    done = remora("check-config", config)

    assert done.code == Exit.OK
    lines = done.out.decode().splitlines()
    assert f"remark: ingest.tokens: {tmp_path}/tokens: missing" in lines
    assert lines[-1].startswith("not looked at: ")


def test_directories_on_one_file_system_are_told(remora: Run, config: Path, tmp_path: Path) -> None:
    """A further directory whose disk is not mounted lies where another one lies; one on a disk of its own does not."""
    config.write_text(f'[sqlite]\ndirectories = ["{tmp_path}/a", "/proc", "{tmp_path}/none/b"]\n')

    told = [line for line in remora("check-config", config).out.decode().splitlines() if "same file system" in line]

    assert told == [
        f"remark: sqlite.directories: {tmp_path}/none/b: on the same file system as {tmp_path}/a: is its disk mounted?"
    ]


def test_a_read_only_directory_is_told(config: Path, tmp_path: Path) -> None:
    """Whatever its mode says, one that is there and one that would have to be made cannot be written to."""
    config.write_text(f'[sqlite]\ndirectories = ["{tmp_path}/a", "{tmp_path}/disk", "{tmp_path}/disk/made"]\n')
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-m", "remora", "check-config", str(config)]
    mount = 'mount -t tmpfs -o ro,mode=0777 tmpfs "$0"'

    done = subprocess.run(with_mount(mount, tmp_path / "disk", command), capture_output=True, text=True, check=True)

    for path in ("disk", "disk/made"):
        assert f"remark: sqlite.directories: {tmp_path}/{path}: on a read-only file system" in done.stdout


def test_the_user_can_be_named(remora: Run, config: Path) -> None:
    """One of this host is looked up with his groups; one that is not there is wrong usage."""
    config.write_text("")

    assert remora("check-config", config, "--user", pwd.getpwuid(os.geteuid()).pw_name).code == Exit.OK
    assert remora("check-config", config, "--user", "no-such-user").code == Exit.USAGE
