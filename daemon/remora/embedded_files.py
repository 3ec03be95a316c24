"""The files of an embedded store, as commands look at them, copy them and own them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from remora.config.settings import Settings
from remora.model.errors import StoreMisconfigured
from remora.model.store_files import DirectoryReport, FileReport, Salvaged


def check_files(settings: Settings, files: Sequence[Path]) -> Sequence[FileReport]:
    """What is wrong with files of an embedded store, or with all of the one that the settings name; blocks.

    Raises StoreMisconfigured where there is none.
    """
    from remora.storage.sqlite.repair.checks import check_directory, check_file

    if files:
        become_owner(files[0])
        return [check_file(each) for each in files]
    directory = _embedded(settings)
    become_owner(directory)
    reports = check_directory(directory)
    if not reports and os.path.exists(directory) and not os.path.isdir(directory):
        raise StoreMisconfigured(f"{directory} is not a directory")
    if not reports and os.path.exists(directory) and not os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
        raise StoreMisconfigured(f"{directory} cannot be read by this user")
    if not reports:
        raise StoreMisconfigured(f"{directory} has no files of a store: queues-000.db is missing")
    return reports


def salvage_file(damaged: Path, new: Path) -> Salvaged:
    """Copy what can be read of a file of an embedded store to a new one; blocks.

    Raises StoreMisconfigured where that is there already, and StoreDamaged where nothing can be read.
    """
    from remora.storage.sqlite.repair.salvager import salvage

    become_owner(damaged)
    return salvage(damaged, new)


def back_up_store(settings: Settings, target: Path) -> Sequence[FileReport]:
    """Copy the files of the embedded store as they are at one moment; what is in each copy; blocks.

    Raises StoreMisconfigured where there is no store or `target` cannot be used, StoreUnavailable and StoreFull.
    """
    from remora.storage.sqlite.repair.backup import back_up

    directory = _embedded(settings)
    become_owner(directory)
    return back_up(directory, target)


def restore_store(settings: Settings, copies: Path) -> Sequence[FileReport]:
    """Make the embedded store that the settings name out of copies; what is in each file; blocks.

    Raises StoreMisconfigured where the copies are not one whole and sound store, or where there is a store already.
    """
    from remora.storage.sqlite.repair.backup import restore

    become_owner(_embedded(settings))
    return restore(copies, [Path(each) for each in settings.sqlite.places])


def store_directories(settings: Settings) -> Sequence[DirectoryReport]:
    """The directories of the embedded store, with what lies in each; blocks. Raises StoreMisconfigured."""
    from remora.storage.sqlite.files import directories

    first = _embedded(settings)
    become_owner(first)
    return directories.reports(first)


def add_directory(settings: Settings, path: Path) -> bool:
    """Have the embedded store use one more directory, or one that was moved; False where it does already; blocks.

    Raises StoreMisconfigured where it cannot be used, and StoreUnavailable where another one of the store is lost.
    """
    from remora.storage.sqlite.files import directories

    first = _embedded(settings)
    become_owner(first)
    return directories.add(first, path, settings.sqlite)


def remove_directory(settings: Settings, path: Path, *, discard: bool) -> DirectoryReport:
    """Have the embedded store use a directory no longer; what was in it; blocks.

    Raises StoreError while anything is in it, unless `discard`.
    """
    from remora.storage.sqlite.files import directories

    first = _embedded(settings)
    become_owner(first)
    return directories.remove(first, path, discard=discard)


def become_owner(path: Path, load: Callable[[], object] = lambda: None) -> None:
    """Become the owner of a path, after `load`: the owner may have no right to read what is loaded on its first use."""
    from remora.storage.sqlite.files import owner

    owner.become_owner(path, load)


def _embedded(settings: Settings) -> Path:
    if settings.store.kind != "sqlite":
        raise StoreMisconfigured("this is for the embedded store; Ceph checks its own (ceph health, ceph pg repair)")
    return Path(settings.sqlite.first)
