"""What lies in an inventory's folder, and how it changes at once. Needs no Spark.

::

    INVENTORY/
      current -> snapshot-00000012-1795227938000000      what readers open: current/objects
      snapshot-.../objects/bucket_dir=photos/*.parquet   columns.OBJECT
      snapshot-.../inventory.json                        Inventory
      _lock                                              held by the process that makes a snapshot

A snapshot is written beside the others under a name that readers pass over, renamed when it is whole, and then
`current` is pointed to it in one step. The one before stays, for those who opened it.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import held, read, write


class Inventory(msgspec.Struct, frozen=True):
    """What a snapshot tells of: the events of a landing up to a batch, of some buckets (empty: of all).

    `landed` is where the landing was; empty in one that an older remora has made.
    """

    landing: str
    batch: int
    buckets: tuple[str, ...]
    made_us: int
    objects: int
    landed: str = ""


@dataclass(frozen=True)
class InventoryDirectory:
    """Where inventories are."""

    path: Path

    @property
    def current(self) -> Path:
        """The link to the newest snapshot."""
        return self.path / "current"

    def newest(self) -> Inventory | None:
        """What the current snapshot tells of; None before the first one, or where it was removed.

        Raises ReplayRefused where `current` is somebody else's.
        """
        if not self.current.is_symlink() and not self.current.exists():
            return None
        is_ours = self.current.is_symlink() and _SNAPSHOT.fullmatch(str(self.current.readlink()))
        if is_ours and not self.current.exists():
            return None
        return read(self.current / "inventory.json", Inventory)

    def refuse_others(self) -> None:
        """Raise ReplayRefused for a folder that is somebody else's. Changes nothing in it."""
        if self.path.exists() and self.newest() is None:
            for path in self.path.iterdir():
                if not (_MAKING.fullmatch(path.name) or _is_snapshot(path) or path in (self.current, self._lock)):
                    raise ReplayRefused(f"{self.path}: there are files that no inventory has made, as {path.name}")

    @property
    def _lock(self) -> Path:
        return self.path / "_lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from making a snapshot here while the block runs; what killed ones have left is removed.

        Raises ReplayRefused while another process makes one, and for a folder that is somebody else's.
        """
        self.refuse_others()
        with held(self._lock, f"{self.path}: another process makes an inventory there"):
            for path in self.path.iterdir():
                if _MAKING.fullmatch(path.name):
                    path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
            yield

    def staging(self) -> Path:
        """A folder for a snapshot that is being made. Raises ReplayRefused for a folder that is somebody else's."""
        self.refuse_others()
        folder = self.path / f"_making-{uuid.uuid4().hex}"
        folder.mkdir(parents=True)
        return folder

    def publish(self, staging: Path, inventory: Inventory, keep: int) -> Path:
        """Make a written snapshot the current one, and remove those before the last `keep`.

        It stays also where the clock has gone back, and those before it seem to be later ones.
        """
        write(staging / "inventory.json", inventory)
        snapshot = self.path / f"snapshot-{inventory.batch:08d}-{inventory.made_us}"
        staging.rename(snapshot)
        link = self.path / f"_current-{uuid.uuid4().hex}"
        link.symlink_to(snapshot.name)
        os.replace(link, self.current)
        before = [path for path in self.path.iterdir() if _is_snapshot(path) and path != snapshot]
        last_first = sorted(before, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
        for old in last_first[keep - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
        return snapshot


_MAKING = re.compile(r"_(making|current)-[0-9a-f]{32}")
_SNAPSHOT = re.compile(r"snapshot-(-0000001|[0-9]{8,})-[0-9]+")  # batch -1 is that of nothing landed


def _is_snapshot(path: Path) -> bool:
    """Whether an inventory has made this: by its name and by what it says of itself."""
    try:
        return bool(_SNAPSHOT.fullmatch(path.name) and read(path / "inventory.json", Inventory))
    except ReplayRefused:
        return False
