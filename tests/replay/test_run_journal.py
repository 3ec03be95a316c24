"""Journals of tasks: what is written is read back, also when the writer was killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.run.journal import (
    FinalOutcome,
    JournalStart,
    Line,
    SendIntent,
    Tail,
    is_cut,
    is_written,
    journals,
    open_journal,
    read_journal,
)

LINES: list[Line] = [
    JournalStart(1, 0, t0_us=10, ts0_us=5, speed=2.0),
    SendIntent((3, 4), sent_us=11, tries=1),
    FinalOutcome((3, 4), "acked", 1, sent_us=11, done_us=12, status=200),
    SendIntent((5,), sent_us=13, tries=1),
    FinalOutcome((6,), "dropped", 0),
]


def written(run: RunDirectory) -> Path:
    with open_journal(run, 1) as journal:
        journal.start(10, 5, 2.0)
        for line in LINES[1:]:
            journal.write(line)
        return journal.path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """All lines come back, each is the JSON object that the layout tells of, and files are numbered by attempt."""
    run = RunDirectory(tmp_path)
    first, second = written(run), written(run)

    assert list(read_journal(first)) == LINES
    assert journals(run) == [first, second]
    assert [str(path.relative_to(run.journal)) for path in journals(run)] == [
        "part=1/attempt=0.jsonl",
        "part=1/attempt=1.jsonl",
    ]
    objects = [json.loads(line) for line in first.read_text().splitlines()]
    assert objects[0] == {"kind": "start", "part": 1, "attempt": 0, "t0_us": 10, "ts0_us": 5, "speed": 2.0}
    assert objects[1] == {"kind": "intent", "seqs": [3, 4], "sent_us": 11, "tries": 1}
    assert objects[4] == {"kind": "outcome", "seqs": [6], "outcome": "dropped", "tries": 0}


def test_a_line_that_is_cut_off_tells_nothing(tmp_path: Path) -> None:
    """Wherever a journal is cut, the lines before the cut are read, and the one that is cut is passed over."""
    path = written(RunDirectory(tmp_path))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert list(read_journal(path)) == LINES[: whole[:length].count(b"\n")]


def test_how_a_journal_ends_is_known_by_its_end(tmp_path: Path) -> None:
    """One that was cut off is told from a whole one and an empty one; of a large one nothing else is read."""
    path = written(RunDirectory(tmp_path))
    (tmp_path / "empty.jsonl").touch()
    large = tmp_path / "large.jsonl"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # all of it would be more than any memory

    assert [is_cut(path), is_cut(tmp_path / "empty.jsonl"), is_cut(large)] == [False, False, True]
    path.write_bytes(path.read_bytes()[:-1])
    assert is_cut(path)


@pytest.mark.parametrize("wrong", [b"\n", b"{}\n", b'{"kind":"intent"}\n', b'{"kind":"end"}\n', b"\xff\n"])
def test_a_wrong_line_is_named(tmp_path: Path, wrong: bytes) -> None:
    """A whole line that is none of a journal's is refused by file and number, after those before it."""
    path = written(RunDirectory(tmp_path))
    path.write_bytes(path.read_bytes() + wrong)
    found = read_journal(path)
    assert [next(found) for _ in LINES] == LINES
    with pytest.raises(ReplayRefused, match=r"attempt=0\.jsonl: line 6: "):
        next(found)


def test_a_tail_gives_each_line_once(tmp_path: Path) -> None:
    """Who reads along gets each line when it is whole, and none twice."""
    path = written(RunDirectory(tmp_path))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    tail = Tail(path)
    assert list(tail.lines()) == LINES[:-1]
    path.write_bytes(whole)
    assert list(tail.lines()) == LINES[-1:]
    assert list(tail.lines()) == []


def test_a_journal_without_room_says_so(tmp_path: Path) -> None:
    """A folder that cannot be made is an error that names it."""
    (tmp_path / "journal").write_text("")
    with pytest.raises(ReplayError, match="journal"):
        open_journal(RunDirectory(tmp_path), 0)


_WRITER = """
import sys
from pathlib import Path
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.run.journal import SendIntent, open_journal
with open_journal(RunDirectory(Path(sys.argv[1])), 0) as journal:
    journal.start(0, 0, 1.0)
    print("begun", flush=True)
    for n in range(1 << 30):
        journal.write(SendIntent((n,), n, 1))
"""


def test_a_killed_writer_leaves_all_that_it_wrote(tmp_path: Path) -> None:
    """After SIGKILL every line is there in order, nobody writes it any more, and until then somebody did."""
    run = RunDirectory(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        (path,) = journals(run)
        assert is_written(path)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()

    assert not is_written(path)
    start, *intents = read_journal(path)
    assert start == JournalStart(0, 0, 0, 0, 1.0)
    assert intents == [SendIntent((n,), n, 1) for n in range(len(intents))]
