"""The folder of a landing: batches that are cut short at every step, and folders that do not belong together."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline import directory as directory_module
from remora_pipeline.replay.pipeline.directory import Commit, LandedDirectory, Staged


class Cut(Exception):
    """The process ends here."""


def staged(directory: LandedDirectory, contents: dict[str, str]) -> Staged:
    """A batch as Spark writes it."""
    path = directory.staging()
    for name, text in contents.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.with_name(f".{file.name}.crc").write_text("x")
    return Staged(path, events=2, bad=1)


FILES = {
    "events/day=2026-11-21/bucket_dir=a/part-0.parquet": "a",
    "events/day=2026-11-21/bucket_dir=b/part-0.parquet": "b",
    "bad/day=2026-11-21/part-0.parquet": "x",
}
LANDED = {
    "events/day=2026-11-21/bucket_dir=a/batch-00000000-0000.parquet": "a",
    "events/day=2026-11-21/bucket_dir=b/batch-00000000-0001.parquet": "b",
    "bad/day=2026-11-21/batch-00000000-0000.parquet": "x",
}


def tables(directory: LandedDirectory) -> dict[str, str]:
    """What any reader sees."""
    files = [file for table in (directory.events, directory.bad) for file in table.rglob("*") if file.is_file()]
    return {str(file.relative_to(directory.path)): file.read_text() for file in files}


@pytest.fixture
def directory(tmp_path: Path) -> LandedDirectory:
    (tmp_path / "landed").mkdir()
    return LandedDirectory(tmp_path / "landed")


def test_a_batch_lands_once(directory: LandedDirectory) -> None:
    """A batch that landed is known by its number, in the tables, and counted."""
    assert not directory.has(0)
    commit = directory.land(0, staged(directory, FILES))

    assert tables(directory) == LANDED
    assert commit == directory.commit() == Commit(batch=0, events=2, bad=1)
    assert directory.has(0)
    assert not directory.has(1)


@pytest.mark.parametrize("step", range(9))
@pytest.mark.parametrize("again", ["recover", "has"])
def test_cut_short_at_any_step(
    directory: LandedDirectory, monkeypatch: pytest.MonkeyPatch, step: int, again: str
) -> None:
    """Cut at any step, a batch is either not in the tables at all or is completed by who comes next, never doubled."""
    steps = iter(range(100))

    def cutting(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(steps) == step:
                raise Cut
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", cutting(os.replace))
        patch.setattr(directory_module, "write", cutting(layout.write))
        patch.setattr(shutil, "rmtree", cutting(shutil.rmtree))
        try:
            directory.land(0, staged(directory, FILES))
            assert step > 7
        except Cut:
            assert step <= 7

    seen = tables(directory)
    assert seen.items() <= LANDED.items()
    if again == "recover":
        directory.recover()
    if not directory.has(0):
        assert not seen
        directory.land(0, staged(directory, FILES))
    assert tables(directory) == LANDED
    assert directory.commit() == Commit(batch=0, events=2, bad=1)


def test_attempts_that_never_landed_are_removed(directory: LandedDirectory) -> None:
    """What a killed attempt has written is no part of the tables, and goes when the next one begins."""
    attempt = staged(directory, FILES)

    directory.recover()

    assert tables(directory) == {}
    assert not attempt.path.exists()


def land_but_for_the_moves(directory: LandedDirectory, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Land a batch, and be killed before the first file is moved."""

    def cut(_self: LandedDirectory) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(LandedDirectory, "_finish", cut)
        with pytest.raises(Cut):
            directory.land(batch, staged(directory, FILES))


def test_a_batch_that_is_being_moved_is_not_whole(directory: LandedDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """While files are on their way the batch before is the last whole one."""
    directory.land(0, staged(directory, FILES))
    land_but_for_the_moves(directory, monkeypatch, 1)

    assert directory.commit().whole == 0
    assert directory.has(1)
    assert directory.commit().whole == 1
    assert len(tables(directory)) == 6


def test_files_that_vanished_are_told(directory: LandedDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a landed batch that is neither in its table nor where it was written stops the landing."""
    land_but_for_the_moves(directory, monkeypatch, 0)
    shutil.rmtree(directory.path / "_staging")

    with pytest.raises(ReplayRefused, match="is missing"):
        directory.recover()


def test_an_older_checkpoint_is_refused(directory: LandedDirectory) -> None:
    """A checkpoint from before batches that have landed is refused, since they would land a second time."""
    for batch in (0, 1):
        directory.land(batch, staged(directory, FILES))

    with pytest.raises(ReplayRefused, match="older copy"):
        directory.has(0)


def test_a_folder_that_is_older_than_its_checkpoint_is_refused(directory: LandedDirectory) -> None:
    """A checkpoint that goes on behind batches that the folder does not have would leave these out without a word."""
    for batch in (0, 1):
        directory.land(batch, staged(directory, FILES))

    with pytest.raises(ReplayRefused, match="up to 1, and the checkpoint goes on with 3: the folder is an older copy"):
        directory.has(3)
    assert not directory.has(2)


def test_one_process_at_a_time(directory: LandedDirectory) -> None:
    """While one process lands into a folder, another one is refused; afterwards it is not."""
    with directory.locked(), pytest.raises(ReplayRefused, match="another process"), directory.locked():
        pass
    with directory.locked():
        pass


class TestBelonging:
    """A folder, its checkpoint and its topic."""

    def test_the_same_again(self, directory: LandedDirectory, tmp_path: Path) -> None:
        """What belongs together is taken again, also where brokers do not tell ids."""
        for topic_id, cluster in [("1", "c"), ("1", "c"), (None, None)]:
            directory.bind(tmp_path / "checkpoint", "t", topic_id, cluster)

    @pytest.mark.parametrize(
        ("topic", "topic_id", "cluster", "why"),
        [
            ("u", "1", "c", "topic t, not of u"),
            ("t", "2", "c", "removed and made again"),
            ("t", "1", "d", "another Kafka cluster"),
        ],
    )
    def test_another_topic(
        self, directory: LandedDirectory, tmp_path: Path, topic: str, topic_id: str, cluster: str, why: str
    ) -> None:
        """A folder of another topic, or of one of the same name that is another one, is refused."""
        directory.bind(tmp_path / "checkpoint", "t", "1", "c")

        with pytest.raises(ReplayRefused, match=why):
            directory.bind(tmp_path / "checkpoint", topic, topic_id, cluster)

    def test_another_checkpoint(self, directory: LandedDirectory, tmp_path: Path) -> None:
        """The checkpoint of another folder, or of no landing, is refused."""
        other = LandedDirectory(tmp_path / "other")
        other.path.mkdir()
        directory.bind(tmp_path / "checkpoint", "t", "1", "c")
        (tmp_path / "strange").mkdir()
        (tmp_path / "strange" / "metadata").touch()

        with pytest.raises(ReplayRefused, match="checkpoint"):
            other.bind(tmp_path / "checkpoint", "t", "1", "c")
        for each in (directory, other):
            with pytest.raises(ReplayRefused, match="strange"):
                each.bind(tmp_path / "strange", "t", "1", "c")

    def test_a_checkpoint_that_is_gone(self, directory: LandedDirectory, tmp_path: Path) -> None:
        """Without its checkpoint a folder with batches is refused, since they would land a second time."""
        directory.bind(tmp_path / "checkpoint", "t", "1", "c")
        directory.land(0, staged(directory, FILES))
        shutil.rmtree(tmp_path / "checkpoint")

        with pytest.raises(ReplayRefused, match="would land a second time"):
            directory.bind(tmp_path / "checkpoint", "t", "1", "c")

    def test_cut_short_before_the_first_batch(self, directory: LandedDirectory, tmp_path: Path) -> None:
        """A landing that was killed before its first batch goes on, whether it came to mark the checkpoint or not."""
        directory.bind(tmp_path / "checkpoint", "t", "1", "c")
        shutil.rmtree(tmp_path / "checkpoint")

        directory.bind(tmp_path / "checkpoint", "t", "1", "c")

    @pytest.mark.parametrize("name", ["_staging/theirs", "_lock", "_commit.json", "_x", ".x", "_checkpoint/theirs"])
    def test_somebody_elses_names_are_no_landing(self, directory: LandedDirectory, tmp_path: Path, name: str) -> None:
        """Files of somebody else are refused whatever their names are, before anything is written or removed."""
        theirs = directory.path / name
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("theirs")
        before = sorted(directory.path.rglob("*"))

        with pytest.raises(ReplayRefused, match="no landing has made"):
            directory.refuse_others()
        with pytest.raises(ReplayRefused, match="no landing has made"):
            directory.bind(tmp_path / "checkpoint", "t", "1", "c")

        assert sorted(directory.path.rglob("*")) == before
        assert theirs.read_text() == "theirs"

    def test_a_lock_is_not_emptied(self, directory: LandedDirectory) -> None:
        """Taking the lock changes nothing in the file that it is taken on."""
        (directory.path / "_lock").write_text("theirs")
        with directory.locked():
            assert (directory.path / "_lock").read_text() == "theirs"

    @pytest.mark.parametrize("partial", ["", '{"id":"1","topic":"t","topic_id":null,"cluster":null}'])
    def test_a_beginning_that_was_cut_short_is_gone_on_with(
        self, directory: LandedDirectory, tmp_path: Path, partial: str
    ) -> None:
        """What a landing left that was killed before it knew its topic is no file of somebody else's."""
        (directory.path / "_lock").touch()
        (directory.path / "_checkpoint").mkdir()
        (directory.path / "_landing.json.partial").write_text(partial)

        directory.refuse_others()
        directory.bind(directory.path / "_checkpoint", "t", "1", "c")
        directory.refuse_others()

    def test_a_folder_with_something_else(self, directory: LandedDirectory, tmp_path: Path) -> None:
        """A folder that holds files of somebody else is refused, and stays as it is."""
        (directory.path / "notes.txt").touch()

        with pytest.raises(ReplayRefused, match="no landing has made"):
            directory.bind(tmp_path / "checkpoint", "t", "1", "c")
        assert [file.name for file in directory.path.iterdir()] == ["notes.txt"]
