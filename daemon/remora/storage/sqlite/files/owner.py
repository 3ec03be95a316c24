"""Becomes the user whom an embedded store belongs to, where a command that root runs opens it.

Files that SQLite makes as root, beside those of the daemon, could not be opened by the daemon any more. So a command
drops all that root may do, for good, before it opens the first file: afterwards it can do no more in the store's folder
than the daemon can.
"""

from __future__ import annotations

import logging
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from remora.model.errors import StoreMisconfigured
from remora.storage.sqlite.files.directory import name_of

MOST_LINKS = 40
"""As many as Linux follows in one path."""

_log = logging.getLogger(__name__)


def become_owner(path: Path, load: Callable[[], object]) -> None:
    """Where root runs this, become the owner of the file or folder at `path`, with the groups of that user.

    Nothing happens to other users, nor where there is nothing at the path. Raises StoreMisconfigured where somebody
    else could have put it there: root would act as a user of their choice. `load` is called before root is another
    user.
    """
    if os.geteuid() != 0 or not path.exists():
        return
    owner = path.stat().st_uid
    if owner == 0:
        return
    if folder := open_folder(path, owner):
        raise StoreMisconfigured(
            f"{folder} may be written to by others than root and {name_of(owner)}, so they may have put {path} there:"
            f" chmod go-w {folder}, or run this as {name_of(owner)}"
        )
    load()
    try:
        user = pwd.getpwuid(owner)
    except KeyError:  # of a container, whose users this host does not know
        group = path.stat().st_gid
        os.setgroups([group])
    else:
        group = user.pw_gid
        os.initgroups(user.pw_name, group)
    os.setresgid(group, group, group)
    os.setresuid(owner, owner, owner)
    _log.info("%s belongs to %s: this goes on as that user", path, name_of(owner))


def open_folder(path: Path, owner: int) -> Path | None:
    """The first folder above the path in which others than root and the owner may put something else in its place.

    In one with the sticky bit, as /tmp, nobody else can: there only its owner may rename or remove a file.
    """
    for folder in _folders_above(path.absolute()):
        found = folder.lstat()
        is_shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if is_shared or found.st_uid not in (0, owner):
            return folder
    return None


def _folders_above(path: Path, links: int = MOST_LINKS) -> Iterator[Path]:
    """Each folder that is passed on the way to a path, those behind symbolic links, too."""
    at = Path(path.anchor)
    parts = path.parts[1:]
    for number, part in enumerate(parts):
        if part == "..":
            at = at.parent
            continue
        yield at
        below = at / part
        if below.is_symlink():
            if not links:
                raise StoreMisconfigured(f"{path} has too many symbolic links")
            yield from _folders_above(Path(at / below.readlink(), *parts[number + 1 :]), links - 1)
            return
        at = below
