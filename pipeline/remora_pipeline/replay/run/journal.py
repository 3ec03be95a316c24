"""What a task meant to send and what came of it, kept so that a killed generator leaves no request untold.

`layout` tells what the lines say. Each is handed to the operating system as it is written: what a task has journalled
outlives the task, though not a power cut.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.layout import RunDirectory


class JournalStart(msgspec.Struct, frozen=True, tag_field="kind", tag="start"):
    """The first line: an event is due at `t0_us + (ts_us - ts0_us) / speed`."""

    part: int
    attempt: int
    t0_us: int
    ts0_us: int
    speed: float


class SendIntent(msgspec.Struct, frozen=True, tag_field="kind", tag="intent"):
    """These events go into one request, for the n-th time; written before that is sent."""

    seqs: tuple[int, ...]
    sent_us: int
    tries: int


class FinalOutcome(msgspec.Struct, frozen=True, tag_field="kind", tag="outcome", omit_defaults=True):
    """What is final of some events. `sent_us` is that of the first attempt; null, as `done_us`, for what was not sent.

    `status` is that of the last answer; null where there was none. `limited` answers were those of a rate limit (429),
    for which the request waited `limited_us`. `held_us` has for each of `seqs` how much of the time between due and
    sent the task waited for such limits; it is left out where that is 0 for all of them.
    """

    seqs: tuple[int, ...]
    outcome: str
    tries: int
    sent_us: int | None = None
    done_us: int | None = None
    status: int | None = None
    error: str | None = None
    limited: int = 0
    limited_us: int = 0
    held_us: tuple[int, ...] = ()


Line = JournalStart | SendIntent | FinalOutcome

_encode = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Line] = msgspec.json.Decoder(Line).decode


class Journal:
    """One task's, open for as long as the task may send; `is_written` is true of it meanwhile."""

    def __init__(self, path: Path, part: int, attempt: int, fd: int) -> None:
        """Made by `open_journal`."""
        self.path, self.part, self.attempt = path, part, attempt
        self._fd = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def start(self, t0_us: int, ts0_us: int, speed: float) -> None:
        """The first line."""
        self.write(JournalStart(self.part, self.attempt, t0_us, ts0_us, speed))

    def write(self, line: Line) -> None:
        """Append a line; returns when it is the operating system's. Raises ReplayError where that has no room."""
        rest = memoryview(_encode(line) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as exc:
            raise ReplayError(f"{self.path}: {exc.strerror}") from exc


def open_journal(run: RunDirectory, part: int) -> Journal:
    """A new journal of a part, numbered from 0. Raises ReplayError where it cannot be made."""
    folder = run.journal / f"part={part}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        attempt = 1 + max((_attempt(path) for path in folder.glob("attempt=*.jsonl")), default=-1)
        path = folder / f"attempt={attempt}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        raise ReplayError(f"{exc.filename or folder}: {exc.strerror}") from exc
    return Journal(path, part, attempt, fd)


def journals(run: RunDirectory) -> list[Path]:
    """All journals of a run, by part and attempt."""
    found = run.journal.glob("part=*/attempt=*.jsonl")
    return sorted(found, key=lambda path: (path.parent.name, _attempt(path)))


def is_written(path: Path) -> bool:
    """Whether a task, of whatever process of this host, still has a journal open."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_cut(path: Path) -> bool:
    """Whether a journal ends within a line: its writer was killed, or its disk was full. Reads only how it ends."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        return file.read() not in (b"", b"\n")


def read_journal(path: Path) -> Iterator[Line]:
    """The lines of a journal. The last one may be cut off: then it tells nothing, and what it tells of did not happen.

    An intent that is cut off was not followed by its request, and an outcome that is cut off leaves its events
    unknown. Raises ReplayRefused, with the number of the line, for anything else that is wrong.
    """
    return Tail(path).lines()


class Tail:
    """Reads a journal while it is written: each call gives the lines that were completed since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._number = 0

    def lines(self) -> Iterator[Line]:
        """What is new. Raises ReplayRefused for a line that is none of a journal's."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for text in file:
                    if not text.endswith(b"\n"):
                        return
                    self._offset += len(text)
                    self._number += 1
                    yield self._line(text)
        except OSError as exc:
            raise ReplayRefused(f"{self._path}: {exc.strerror}") from exc

    def _line(self, text: bytes) -> Line:
        try:
            return _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise ReplayRefused(f"{self._path}: line {self._number}: {exc}") from exc


def _attempt(path: Path) -> int:
    number = path.stem.partition("=")[2]
    return int(number) if number.isdecimal() else -1
