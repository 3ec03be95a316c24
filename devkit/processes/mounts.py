"""Mounts that only one process sees, and that end with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from devkit.processes.programs import program


def with_mount(script: str, place: Path, command: Sequence[str]) -> list[str]:
    """A command that runs this one where the script has mounted something at `$0`.

    Where no mount is allowed, it skips the test on a laptop and lets it fail in CI.
    """
    alone = [program("unshare", "util-linux"), "--mount", "--propagation", "private"]
    if os.geteuid():
        alone += ["--user", "--map-root-user"]
    if "CI" not in os.environ and subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs to be allowed a mount")
    return [*alone, "sh", "-c", f'{script} && exec "$@"', str(place), *command]


TMPFS = 'mount -t tmpfs -o size={megabytes}m,mode=0700 tmpfs "$0"'
EXT4 = (
    'truncate -s {megabytes}M "$0.image" && mkfs.ext4 -q -b {block} "$0.image" && mount -o loop "$0.image" "$0" &&'
    ' chmod 0700 "$0"'
)
"""Small disks, as scripts for `with_mount`."""


def ext4(megabytes: int, block: int) -> str:
    """The script of a file system in an image. It skips the test on a laptop where nobody but root may mount one."""
    program("mkfs.ext4", "e2fsprogs")
    if os.geteuid() and "CI" not in os.environ:
        pytest.skip("only root may mount an image")
    return EXT4.format(megabytes=megabytes, block=block)


@contextmanager
def mounted(script: str, place: Path) -> Iterator[tuple[Sequence[str], Path]]:
    """As `with_mount`, for several programs: what comes before a command that is to see the mount, and the path by
    which this process sees it."""
    keeper = ["sh", "-c", "echo ready && exec cat"]  # until its input ends
    with subprocess.Popen(with_mount(script, place, keeper), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        enter = [program("nsenter", "util-linux"), "--target", str(holder.pid), "--mount"]
        if os.geteuid():
            enter += ["--user", "--preserve-credentials"]
        yield enter, Path(f"/proc/{holder.pid}/root{place}")
        holder.communicate()
