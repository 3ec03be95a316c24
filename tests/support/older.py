"""Daemons of earlier commits, beside those of this checkout on one store."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devkit.paths import ROOT
from devkit.processes.daemon import Daemon, Options


def older_commits(*commits: str) -> list[str]:
    """The commits to try, or that of OLDER_COMMIT alone.

    A wheel of it (`scripts/try-upgrade`) is in OLDER_REMORA; without that its code runs with this checkout's packages.
    """
    return [os.environ["OLDER_COMMIT"]] if "OLDER_COMMIT" in os.environ else list(commits)


@asynccontextmanager
async def older_daemon(folder: Path, sections: Options, commit: str) -> AsyncIterator[Daemon]:
    """A daemon of that commit when it is ready."""
    daemon = older(folder, sections, commit)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.close()


def older(folder: Path, sections: Options, commit: str) -> Daemon:
    """A daemon of that commit, which knows neither a control socket nor mends."""
    if program := os.environ.get("OLDER_REMORA"):
        folder.mkdir()
        daemon = Daemon(folder, sections, command=(program,), env={"PYTHONPATH": ""})  # else it runs other code
    else:
        daemon = Daemon(folder, sections, env={"PYTHONPATH": str(older_code(folder, commit))})
    del daemon.sections["admin"]["control_socket"]
    daemon.sections.get("rados", {}).pop("heal", None)
    daemon.rewrite()
    return daemon


def older_code(folder: Path, commit: str) -> Path:
    """The daemon's package as that commit has it."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", commit, "daemon", "config", "systemd", "CHANGELOG.md"],
        capture_output=True, check=False,
    )  # fmt: skip
    if archive.returncode:
        pytest.skip(f"this checkout has no commit {commit}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    named = folder / "daemon/remora-0.1.0.dist-info"  # the first release asks for its own version
    named.mkdir()
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: remora\nVersion: 0.1.0\n")
    return folder / "daemon"
