"""scripts/release: which tags it takes, and what it writes beside what is made."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = "# Changelog\n\n## [Unreleased]\n\n- A new thing.\n\n## [1.0.0] - 2026-12-01\n\n- The first thing.\n"


def release(root: Path, version: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it on a checkout of a version."""
    root.mkdir(exist_ok=True)
    (root / "pyproject.toml").write_text(f'[project]\nname = "remorad"\nversion = "{version}"\n')
    (root / "CHANGELOG.md").write_text(CHANGES)
    command = [ROOT / "scripts/release", "--root", root, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("version", "tag", "complaint"),
    [
        ("1.0.0", "v1.0.0", ""),
        ("1.0.0", "v1.0.1", "the tag is v1.0.1, and pyproject.toml has version 1.0.0"),
        ("1.1.0.dev0", "v1.1.0.dev0", "between two releases"),
        ("1.1.0", "v1.1.0", "CHANGELOG.md has nothing below ## [1.1.0]"),
    ],
    ids=["right", "another version", "between releases", "no notes"],
)
def test_a_tag_is_of_the_version_that_is_released(tmp_path: Path, version: str, tag: str, complaint: str) -> None:
    """A tag of another version, of one between releases, or of one without notes is refused with the reason."""
    done = release(tmp_path / "checkout", version, "--check", tag)

    assert done.returncode == bool(complaint)
    assert complaint in done.stderr


def test_what_was_made_is_gathered_with_checksums_and_notes(tmp_path: Path) -> None:
    """Files of all folders come together, and sha256sum finds each as it was; the notes are the version's own."""
    for name in ("dist/remorad-1.0.0.tar.gz", "wheels/remorad-1.0.0-cp314.whl", "dist/SHA256SUMS"):
        (tmp_path / "made" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made" / name).write_text(name)

    done = release(tmp_path / "checkout", "1.0.0", "--gather", tmp_path / "made", tmp_path / "out", "v1.0.0")

    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out/SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sorted(sums) == ["remorad-1.0.0-cp314.whl", "remorad-1.0.0.tar.gz"]
    assert sums["remorad-1.0.0.tar.gz"] == hashlib.sha256(b"dist/remorad-1.0.0.tar.gz").hexdigest()
    assert (tmp_path / "out/NOTES.md").read_text().startswith("- The first thing.\n")


def test_nothing_is_no_release(tmp_path: Path) -> None:
    """Where nothing was made there is nothing to publish."""
    (tmp_path / "made").mkdir()

    done = release(tmp_path / "checkout", "1.0.0", "--gather", tmp_path / "made", tmp_path / "out", "v1.0.0")

    assert (done.returncode, "there is nothing in" in done.stderr) == (1, True)


def told(tmp_path: Path, command: str) -> subprocess.CompletedProcess[str]:
    """What a script does that runs a command so that its wait is told, and then says that it goes on."""
    script = f'set -euo pipefail; source "{ROOT}/scripts/dev/common.sh"; SAID_EVERY_S=0.1; {command}; say "goes on"'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)


def test_a_script_says_what_it_waits_for_and_for_how_long(tmp_path: Path) -> None:
    """A line comes at once, more while the command runs, and none after it."""
    wait = "until_told() { until grep -q 'building: ' log; do :; done; }; exec 2>log; told building until_told"

    assert told(tmp_path, wait).returncode == 0
    first, *more, last = (tmp_path / "log").read_text().splitlines()
    assert (first, last) == ("remora: building", "remora: goes on")
    assert more
    assert all(re.fullmatch(r"remora: building: \d+ s", each) for each in more)


def test_a_command_that_fails_while_it_is_told_ends_the_script(tmp_path: Path) -> None:
    """Also one in the middle of a function, whose later commands do not run."""
    done = told(tmp_path, 'fails() { false; say "not here"; }; told building fails')

    assert (done.returncode, done.stderr) == (1, "remora: building\n")
