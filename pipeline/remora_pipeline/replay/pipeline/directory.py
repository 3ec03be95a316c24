"""What lies in a landing's folder, and why every event is in it once, for any reader of Parquet. Needs no Spark.

::

    LANDED/
      events/day=2026-11-21/bucket_dir=photos/batch-00000012-0003.parquet     columns.EVENT
      bad/day=2026-11-21/batch-00000012-0001.parquet                          columns.BAD
      _landing.json           Landing: of which topic it is; never changes
      _commit.json            Commit: the last batch, and what of it still has to be moved
      _staging/               batches that are being written; readers pass over names with an underscore
      _checkpoint/            Spark's, unless it was put elsewhere
      _lock                   held by the process that lands

Spark gives each batch a number and writes its offsets into the checkpoint before it runs; after a crash the batch runs
again, with the same number and offsets. A batch is written into a staging folder of its own. When all of it is there,
`_commit.json` is replaced by one that names every file and where it belongs: from then on the batch has landed, and
the next run finishes the moves. So a batch that runs again either finds nothing of itself in the tables, or finds
itself named and writes nothing. Spark's own file sink keeps a log instead, `_spark_metadata`, without which other
readers see the files of a failed attempt as well.

A reader beside a running landing sees each file whole or not at all, and no event twice; of the batch that is just
being moved it may see a part. `batch <= Commit.whole` leaves that out.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import held, read, write

MARK = "remora-landing.json"
"""Beside Spark's own files in a checkpoint: which landing it belongs to."""


class Landing(msgspec.Struct, frozen=True):
    """Which topic a folder is of. `topic_id` and `cluster` are Kafka's; None where the brokers do not tell them."""

    id: str
    topic: str
    topic_id: str | None
    cluster: str | None


class Belongs(msgspec.Struct, frozen=True):
    """The landing that a checkpoint is of."""

    landing: str


class FileMove(msgspec.Struct, frozen=True):
    """A file of a batch; both paths are relative to the landing's folder."""

    source: str
    target: str


class Commit(msgspec.Struct, frozen=True):
    """The last batch that has landed, -1 for none, and the totals up to it; `moves` is empty once all is there."""

    batch: int = -1
    events: int = 0
    bad: int = 0
    moves: tuple[FileMove, ...] = ()

    @property
    def whole(self) -> int:
        """The last batch that is completely in the tables."""
        return self.batch - 1 if self.moves else self.batch


@dataclass(frozen=True)
class Staged:
    """A batch that is completely written, with its rows by table."""

    path: Path
    events: int
    bad: int


@dataclass(frozen=True)
class LandedDirectory:
    """Where events land."""

    path: Path

    @property
    def events(self) -> Path:
        """The table of events."""
        return self.path / "events"

    @property
    def bad(self) -> Path:
        """The table of what could not become events."""
        return self.path / "bad"

    @property
    def landing(self) -> Path:
        """A Landing."""
        return self.path / "_landing.json"

    def commit(self) -> Commit:
        """What has landed."""
        path = self.path / "_commit.json"
        return read(path, Commit) if path.exists() else Commit()

    def refuse_others(self) -> None:
        """Raise ReplayRefused for a folder with anything in it that no landing has made. Changes nothing in it."""
        if self.landing.exists() or not self.path.exists():
            return
        for path in self.path.iterdir():
            if not _is_of_a_beginning(path):
                raise ReplayRefused(f"{self.path}: there are files in it that no landing has made, as {path.name}")

    def locked(self) -> AbstractContextManager[None]:
        """Keep others from landing here while the block runs. Raises ReplayRefused while another process does."""
        return held(self.path / "_lock", f"{self.path}: another process is landing into it")

    def bind(self, checkpoint: Path, topic: str, topic_id: str | None, cluster: str | None) -> None:
        """Make this the folder of a topic and a checkpoint, or see that it is.

        Raises ReplayRefused where folder, checkpoint and topic do not belong together: offsets of one topic say nothing
        about another one, even of the same name, and without its checkpoint everything would land again.
        """
        mark = checkpoint / MARK
        if not self.landing.exists():
            self.refuse_others()
            if checkpoint.exists() and any(checkpoint.iterdir()):
                raise ReplayRefused(f"{checkpoint}: is the checkpoint of something else than {self.path}")
            write(self.landing, Landing(uuid.uuid4().hex, topic, topic_id, cluster))
        landing = self.see(topic, topic_id, cluster)
        if mark.exists():
            if read(mark, Belongs).landing != landing.id:
                raise ReplayRefused(f"{checkpoint}: is the checkpoint of another folder than {self.path}")
        elif checkpoint.exists() and any(checkpoint.iterdir()):
            raise ReplayRefused(f"{checkpoint}: is the checkpoint of something else than {self.path}")
        elif (batch := self.commit().batch) >= 0:
            raise ReplayRefused(
                f"{checkpoint}: the checkpoint of {self.path} is missing, and batches 0 to {batch} would land a second"
                " time; bring it back, or land everything into a new folder"
            )
        else:
            write(mark, Belongs(landing.id))

    def see(self, topic: str, topic_id: str | None, cluster: str | None) -> Landing:
        """Whose folder this is. Raises ReplayRefused where that is another topic."""
        landing = read(self.landing, Landing)
        if landing.topic != topic:
            raise ReplayRefused(f"{self.path}: holds the events of topic {landing.topic}, not of {topic}")
        if cluster and landing.cluster and cluster != landing.cluster:
            raise ReplayRefused(
                f"{self.path}: holds the events of {topic} of another Kafka cluster ({landing.cluster})"
            )
        if topic_id and landing.topic_id and topic_id != landing.topic_id:
            raise ReplayRefused(
                f"{self.path}: topic {topic} was removed and made again since; land it into a new folder"
            )
        return landing

    def staging(self) -> Path:
        """A folder for one attempt at a batch, not made yet."""
        return self.path / "_staging" / uuid.uuid4().hex

    def recover(self) -> None:
        """Finish what was left unfinished; attempts that never landed are removed."""
        self._finish()
        shutil.rmtree(self.path / "_staging", ignore_errors=True)

    def has(self, batch: int) -> bool:
        """Whether this batch has landed; its moves are finished then.

        Raises ReplayRefused for one from long ago, and for one behind others that are not here.
        """
        last = self.commit().batch
        if batch > last + 1:
            raise ReplayRefused(
                f"{self.path}: holds batches up to {last}, and the checkpoint goes on with {batch}: the folder is an"
                " older copy, and what has landed since would be missing"
            )
        if batch < last:
            raise ReplayRefused(
                f"{self.path}: holds batches up to {last}, but the checkpoint goes on with {batch}: it is an older copy"
            )
        if batch == last:
            self._finish()
        return batch == last

    def land(self, batch: int, staged: Staged) -> Commit:
        """Put a written batch into the tables, all of it, whatever happens from here on."""
        before = self.commit()
        moves = []
        for table in ("events", "bad"):
            files = sorted((staged.path / table).rglob("part-*.parquet"))
            for number, file in enumerate(files):
                target = (
                    Path(table)
                    / file.relative_to(staged.path / table).parent
                    / f"batch-{batch:08d}-{number:04d}.parquet"
                )
                moves.append(FileMove(str(file.relative_to(self.path)), str(target)))
        commit = Commit(batch, before.events + staged.events, before.bad + staged.bad, tuple(moves))
        write(self.path / "_commit.json", commit)
        self._finish()
        shutil.rmtree(staged.path, ignore_errors=True)
        return self.commit()

    def _finish(self) -> None:
        commit = self.commit()
        for move in commit.moves:
            source, target = self.path / move.source, self.path / move.target
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                os.replace(source, target)
            elif not target.exists():
                raise ReplayRefused(f"{source}: is missing, and was to become {target}")
        if commit.moves:
            write(self.path / "_commit.json", msgspec.structs.replace(commit, moves=()))


def _is_of_a_beginning(path: Path) -> bool:
    """Whether a landing that was cut short before it had a Landing may have left this."""
    match path.name:
        case "_checkpoint":
            return path.is_dir() and not any(path.iterdir())
        case "_lock":
            return path.is_file() and not path.stat().st_size
        case "_landing.json.partial":
            return path.is_file() and (not path.stat().st_size or _is_landing(path))
    return False


def _is_landing(path: Path) -> bool:
    try:
        return bool(read(path, Landing))
    except ReplayRefused:
        return False
