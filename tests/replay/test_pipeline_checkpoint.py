"""The offsets of a batch, by what Spark writes before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.pipeline.checkpoint import named, offsets_of


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_batch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    """The first batch begins where the source did, each other one behind the last, and a new partition at its
    beginning."""
    write(tmp_path / "sources/0/0", 'v1\n{"t":{"0":5}}')
    write(tmp_path / "offsets/0", 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":7}}')
    write(tmp_path / "offsets/1", 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":7,"1":4}}')

    assert offsets_of(tmp_path, "t", 0, {}) == {0: (5, 7)}
    assert offsets_of(tmp_path, "t", 1, {1: 2}) == {0: (7, 7), 1: (2, 4)}


@pytest.mark.parametrize("text", ["", "v1", 'v1\n{}\n{"u":{"0":1}}', "v1\n{}\n[]"])
def test_other_checkpoints_are_named(tmp_path: Path, text: str) -> None:
    """A file that is not as Spark writes it is named."""
    write(tmp_path / "offsets/0", text)

    with pytest.raises(ReplayError, match="offsets/0"):
        offsets_of(tmp_path, "t", 0, {})


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ({}, "no new offsets"),
        ({0: (5, 9), 1: (2, 2)}, "partition 0 offsets 5 to 8"),
        (
            dict.fromkeys(range(5), (0, 1)),
            "partition 0 offsets 0 to 0, partition 1 offsets 0 to 0, partition 2 offsets 0 to 0, 2 partitions more",
        ),
    ],
)
def test_offsets_are_said_in_few_words(offsets: dict[int, tuple[int, int]], said: str) -> None:
    """Partitions with something new are named, the first three of them."""
    assert named(offsets) == said
